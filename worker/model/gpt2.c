#include "worker/model/gpt2.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "worker/model/decoder.h"

enum { GPT2_SIDE_MAX = 1 << 24 }; /* largest dimension: keeps every product within 64 bits */

struct block_tensor {
    const char *name;
    uint8_t ndim, in, out; /* shape [in * C, out * C], or [out * C] */
    uint8_t init;
    bool residual; /* adds to the residual stream: smaller initial values */
};

static const struct block_tensor block_tensors[GPT2_BLOCK_TENSORS] = {
    [GPT2_LN1_W] = {"ln_1.weight", 1, 0, 1, LAYOUT_INIT_ONES, false},
    [GPT2_LN1_B] = {"ln_1.bias", 1, 0, 1, LAYOUT_INIT_ZEROS, false},
    [GPT2_QKV_W] = {"attn.c_attn.weight", 2, 1, 3, LAYOUT_INIT_NORMAL, false},
    [GPT2_QKV_B] = {"attn.c_attn.bias", 1, 0, 3, LAYOUT_INIT_ZEROS, false},
    [GPT2_PROJ_W] = {"attn.c_proj.weight", 2, 1, 1, LAYOUT_INIT_NORMAL, true},
    [GPT2_PROJ_B] = {"attn.c_proj.bias", 1, 0, 1, LAYOUT_INIT_ZEROS, false},
    [GPT2_LN2_W] = {"ln_2.weight", 1, 0, 1, LAYOUT_INIT_ONES, false},
    [GPT2_LN2_B] = {"ln_2.bias", 1, 0, 1, LAYOUT_INIT_ZEROS, false},
    [GPT2_FC_W] = {"mlp.c_fc.weight", 2, 1, 4, LAYOUT_INIT_NORMAL, false},
    [GPT2_FC_B] = {"mlp.c_fc.bias", 1, 0, 4, LAYOUT_INIT_ZEROS, false},
    [GPT2_FCPROJ_W] = {"mlp.c_proj.weight", 2, 4, 1, LAYOUT_INIT_NORMAL, true},
    [GPT2_FCPROJ_B] = {"mlp.c_proj.bias", 1, 0, 1, LAYOUT_INIT_ZEROS, false},
};

static enum status config_check(const struct model_config *c, struct err *err)
{
    if (!c->n_layer || !c->n_head || !c->n_embd || !c->block_size || !c->vocab_size)
        return err_set(err, STATUS_INVALID,
                       "model: n_layer, n_head, n_embd, block_size and vocab_size must be at least 1");
    if (c->n_embd % c->n_head)
        return err_set(err, STATUS_INVALID, "model.n_embd %u is not a multiple of model.n_head %u", c->n_embd,
                       c->n_head);
    if (c->n_embd > GPT2_SIDE_MAX || c->block_size > GPT2_SIDE_MAX || c->vocab_size > GPT2_SIDE_MAX ||
        c->n_layer > LAYOUT_TENSORS_MAX / GPT2_BLOCK_TENSORS - 1)
        return err_set(err, STATUS_INVALID, "model too large: n_layer %u, n_embd %u, vocab_size %u, block_size %u",
                       c->n_layer, c->n_embd, c->vocab_size, c->block_size);
    return STATUS_OK;
}

static enum status add_block(const struct model_config *config, uint32_t i, struct layout *layout)
{
    uint64_t c = config->n_embd;
    for (int j = 0; j < GPT2_BLOCK_TENSORS; j++) {
        const struct block_tensor *t = &block_tensors[j];
        char name[LAYOUT_NAME_MAX];
        uint64_t matrix[2] = {t->in * c, t->out * c}, vector[1] = {t->out * c};
        double sigma = t->init != LAYOUT_INIT_NORMAL ? 0 : t->residual ? 0.02 / sqrt(2.0 * config->n_layer) : 0.02;
        snprintf(name, sizeof name, "h.%u.%s", i, t->name);
        TRY(layout_add(layout, name, t->ndim, t->ndim == 2 ? matrix : vector, (enum layout_init)t->init, (float)sigma,
                       t->ndim == 2));
    }
    return STATUS_OK;
}

static enum status add_all(const struct model_config *config, struct layout *layout)
{
    uint64_t c = config->n_embd, wte[2] = {config->vocab_size, c}, wpe[2] = {config->block_size, c};
    TRY(layout_add(layout, "wte.weight", 2, wte, LAYOUT_INIT_NORMAL, 0.02f, LAYOUT_DECAY));
    TRY(layout_add(layout, "wpe.weight", 2, wpe, LAYOUT_INIT_NORMAL, 0.02f, LAYOUT_DECAY));
    for (uint32_t g = 0; g < (config->groups > 1 ? config->groups : 1); g++)
        for (uint32_t i = g; i<config->n_layer; i += config->groups> 1 ? config->groups : 1)
            TRY(add_block(config, i, layout));
    TRY(layout_add(layout, "ln_f.weight", 1, &c, LAYOUT_INIT_ONES, 0, 0));
    return layout_add(layout, "ln_f.bias", 1, &c, LAYOUT_INIT_ZEROS, 0, 0);
}

enum status gpt2_layout(const struct model_config *config, struct layout *layout, struct err *err)
{
    TRY(config_check(config, err));
    enum status status = add_all(config, layout);
    assert(status != STATUS_OK || layout->n_params == gpt2_offsets_of(config).n_params);
    if (status == STATUS_INVALID) /* config_check passed, so only the total size can be wrong */
        return err_set(err, status, "model too large: n_layer %u and n_embd %u give more than %llu parameters",
                       config->n_layer, config->n_embd, (unsigned long long)LAYOUT_PARAMS_MAX);
    return status == STATUS_OK ? status : err_set(err, status, "cannot lay out the model: %s", status_text(status));
}

uint32_t gpt2_hidden_blocks(const struct tensor *tensor)
{
    if (tensor->ndim != 2 || strncmp(tensor->name, "h.", 2) != 0) return 0;
    return strstr(tensor->name, block_tensors[GPT2_QKV_W].name) ? 3 : 1;
}

struct gpt2_offsets gpt2_offsets_of(const struct model_config *config)
{
    uint64_t c = config->n_embd;
    struct gpt2_offsets o = {.wpe = config->vocab_size * c};
    o.block0 = o.wpe + config->block_size * c;
    for (int j = 0; j < GPT2_BLOCK_TENSORS; j++) {
        const struct block_tensor *t = &block_tensors[j];
        o.block[j] = o.block_stride;
        o.block_stride += t->ndim == 2 ? t->in * c * t->out * c : t->out * c;
    }
    o.lnf_w = o.block0 + config->n_layer * o.block_stride;
    o.lnf_b = o.lnf_w + c;
    o.n_params = o.lnf_b + c;
    return o;
}

enum status gpt2_config_json(const struct model_config *c, char *out, size_t cap)
{
    char ids[96];
    int n = snprintf(out, cap,
                     "{\n"
                     "  \"architectures\": [\"GPT2LMHeadModel\"],\n"
                     "  \"model_type\": \"gpt2\",\n"
                     "  \"vocab_size\": %u,\n"
                     "  \"n_positions\": %u,\n"
                     "  \"n_ctx\": %u,\n"
                     "  \"n_embd\": %u,\n"
                     "  \"n_layer\": %u,\n"
                     "  \"n_head\": %u,\n"
                     "  \"n_inner\": null,\n"
                     "  \"activation_function\": \"gelu_new\",\n"
                     "  \"layer_norm_epsilon\": 1e-05,\n"
                     "  \"initializer_range\": 0.02,\n"
                     "  \"embd_pdrop\": 0.0,\n"
                     "  \"attn_pdrop\": 0.0,\n"
                     "  \"resid_pdrop\": 0.0,\n"
                     "  \"scale_attn_weights\": true,\n"
                     "  \"tie_word_embeddings\": true,\n"
                     "%s"
                     "  \"torch_dtype\": \"float32\"\n"
                     "}\n",
                     c->vocab_size, c->block_size, c->block_size, c->n_embd, c->n_layer, c->n_head,
                     hf_config_ids_text(c, ids));
    return n > 0 && (size_t)n < cap ? STATUS_OK : STATUS_LIMIT;
}

static struct decoder_kind gpt2_kind_of(const struct model_config *config)
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

const struct model_family gpt2_family = {
    .name = "gpt2",
    .hidden_blocks = gpt2_hidden_blocks,
    .layout = gpt2_layout,
    .config_json = gpt2_config_json,
    .kind_of = gpt2_kind_of,
};
