#include "worker/model/llama.h"

#include "worker/model/decoder.h"

static struct decoder_kind kind_of(const struct model_config *config)
{
    struct llama_offsets at = llama_offsets_of(config);
    return (struct decoder_kind){
        .rms = true,
        .rotary = true,
        .gated = true,
        .out_in = true,
        .kv = llama_kv_width(config),
        .hidden = config->ffn,
        .embed = at.embed,
        .block0 = at.block0,
        .block_stride = at.block_stride,
        .norm1 = at.block[LLAMA_NORM1],
        .qkv = at.block[LLAMA_Q],
        .proj = at.block[LLAMA_O],
        .norm2 = at.block[LLAMA_NORM2],
        .up = at.block[LLAMA_GATE],
        .down = at.block[LLAMA_DOWN],
        .norm = at.norm,
        .head = at.head,
        .n_params = at.n_params,
    };
}

static enum status llama_create(const struct model_config *config, struct device *dev, size_t batch, size_t seq,
                                unsigned uses, struct model **out, struct err *err)
{
    struct decoder_kind kind = kind_of(config);
    return decoder_create(&kind, config, dev, batch, seq, uses, out, err);
}

static size_t llama_memory(const struct model_config *config, size_t act_bytes, size_t batch, size_t seq, unsigned uses)
{
    struct decoder_kind kind = kind_of(config);
    return decoder_memory(&kind, config, act_bytes, batch, seq, uses);
}

const struct model_family llama_family = {
    .name = "llama",
    .hidden_blocks = llama_hidden_blocks,
    .layout = llama_layout,
    .config_json = llama_config_json,
    .create = llama_create,
    .destroy = decoder_destroy,
    .run = decoder_run,
    .logits = decoder_logits,
    .shapes = decoder_shapes,
    .memory = llama_memory,
};
