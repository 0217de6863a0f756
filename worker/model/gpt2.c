#include "worker/model/gpt2.h"

#include "worker/model/decoder.h"

static struct decoder_kind kind_of(const struct model_config *config)
{
    struct gpt2_offsets at = gpt2_offsets_of(config);
    return (struct decoder_kind){
        .bias = true,
        .kv = config->n_embd,
        .hidden = (size_t)4 * config->n_embd,
        .embed = at.wte,
        .positions = at.wpe,
        .block0 = at.block0,
        .block_stride = at.block_stride,
        .norm1 = at.block[GPT2_LN1_W],
        .qkv = at.block[GPT2_QKV_W],
        .proj = at.block[GPT2_PROJ_W],
        .norm2 = at.block[GPT2_LN2_W],
        .up = at.block[GPT2_FC_W],
        .down = at.block[GPT2_FCPROJ_W],
        .norm = at.lnf_w,
        .head = at.wte,
        .n_params = at.n_params,
    };
}

static enum status gpt2_create(const struct model_config *config, struct device *dev, size_t batch, size_t seq,
                               unsigned uses, struct model **out, struct err *err)
{
    struct decoder_kind kind = kind_of(config);
    return decoder_create(&kind, config, dev, batch, seq, uses, out, err);
}

static size_t gpt2_memory(const struct model_config *config, size_t act_bytes, size_t batch, size_t seq, unsigned uses)
{
    struct decoder_kind kind = kind_of(config);
    return decoder_memory(&kind, config, act_bytes, batch, seq, uses);
}

const struct model_family gpt2_family = {
    .name = "gpt2",
    .hidden_blocks = gpt2_hidden_blocks,
    .layout = gpt2_layout,
    .config_json = gpt2_config_json,
    .create = gpt2_create,
    .destroy = decoder_destroy,
    .run = decoder_run,
    .logits = decoder_logits,
    .shapes = decoder_shapes,
    .memory = gpt2_memory,
};
