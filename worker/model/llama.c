#include "worker/model/llama.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/number.h"
#include "worker/model/decoder.h"

enum { LLAMA_SIDE_MAX = 1 << 24 }; /* largest dimension: keeps every product within 64 bits */

enum side { SIDE_NONE, SIDE_C, SIDE_KV, SIDE_F };

struct block_tensor {
    const char *name;
    uint8_t out, in; /* enum side; in = SIDE_NONE: a vector */
    bool residual;   /* adds to the residual stream: smaller initial values */
};

static const struct block_tensor block_tensors[LLAMA_BLOCK_TENSORS] = {
    [LLAMA_NORM1] = {"input_layernorm", SIDE_C, SIDE_NONE, false},
    [LLAMA_Q] = {"self_attn.q_proj", SIDE_C, SIDE_C, false},
    [LLAMA_K] = {"self_attn.k_proj", SIDE_KV, SIDE_C, false},
    [LLAMA_V] = {"self_attn.v_proj", SIDE_KV, SIDE_C, false},
    [LLAMA_O] = {"self_attn.o_proj", SIDE_C, SIDE_C, true},
    [LLAMA_NORM2] = {"post_attention_layernorm", SIDE_C, SIDE_NONE, false},
    [LLAMA_GATE] = {"mlp.gate_proj", SIDE_F, SIDE_C, false},
    [LLAMA_UP] = {"mlp.up_proj", SIDE_F, SIDE_C, false},
    [LLAMA_DOWN] = {"mlp.down_proj", SIDE_C, SIDE_F, true},
};

static uint64_t side_of(const struct model_config *config, enum side side)
{
    switch (side) {
    case SIDE_NONE: return 1;
    case SIDE_C: return config->n_embd;
    case SIDE_KV: return llama_kv_width(config);
    case SIDE_F: return config->ffn;
    }
    return 0;
}

static enum status config_check(const struct model_config *c, struct err *err)
{
    if (!c->n_layer || !c->n_head || !c->n_embd || !c->block_size || !c->vocab_size || !c->n_kv_head || !c->ffn)
        return err_set(err, STATUS_INVALID,
                       "model: n_layer, n_head, n_kv_head, n_embd, ffn, block_size and vocab_size must be at least 1");
    if (c->n_embd % c->n_head || c->n_embd / c->n_head % 2)
        return err_set(err, STATUS_INVALID, "model.n_embd %u must be an even multiple of model.n_head %u", c->n_embd,
                       c->n_head);
    if (c->n_head % c->n_kv_head)
        return err_set(err, STATUS_INVALID, "model.n_kv_head %u does not divide model.n_head %u", c->n_kv_head,
                       c->n_head);
    if (!(c->rope_theta >= 1) || !(c->norm_eps > 0) || !isfinite(c->rope_theta) || !isfinite(c->norm_eps))
        return err_set(err, STATUS_INVALID,
                       "model: rope_theta is %g and must be at least 1; norm_eps is %g and must be above 0",
                       c->rope_theta, c->norm_eps);
    if (!rope_scaling_ok(&c->rope_scaling))
        return err_set(err, STATUS_INVALID,
                       "model.rope_scaling: factor %g, low %g, high %g, original %g are not valid together",
                       c->rope_scaling.factor, c->rope_scaling.low, c->rope_scaling.high, c->rope_scaling.original);
    if (c->n_embd > LLAMA_SIDE_MAX || c->block_size > LLAMA_SIDE_MAX || c->vocab_size > LLAMA_SIDE_MAX ||
        c->ffn > LLAMA_SIDE_MAX || c->n_layer > LAYOUT_TENSORS_MAX / LLAMA_BLOCK_TENSORS - 1)
        return err_set(err, STATUS_INVALID,
                       "model too large: n_layer %u, n_embd %u, ffn %u, vocab_size %u, block_size %u", c->n_layer,
                       c->n_embd, c->ffn, c->vocab_size, c->block_size);
    return STATUS_OK;
}

static enum status add_block(const struct model_config *config, uint32_t i, struct layout *layout)
{
    for (int j = 0; j < LLAMA_BLOCK_TENSORS; j++) {
        const struct block_tensor *t = &block_tensors[j];
        char name[LAYOUT_NAME_MAX];
        uint64_t shape[2] = {side_of(config, (enum side)t->out), side_of(config, (enum side)t->in)};
        bool matrix = t->in != SIDE_NONE;
        double sigma = !matrix ? 0 : t->residual ? 0.02 / sqrt(2.0 * config->n_layer) : 0.02;
        snprintf(name, sizeof name, "model.layers.%u.%s.weight", i, t->name);
        TRY(layout_add(layout, name, matrix ? 2 : 1, shape, matrix ? LAYOUT_INIT_NORMAL : LAYOUT_INIT_ONES,
                       (float)sigma, matrix));
    }
    return STATUS_OK;
}

static enum status add_all(const struct model_config *config, struct layout *layout)
{
    uint64_t c = config->n_embd, words[2] = {config->vocab_size, c};
    TRY(layout_add(layout, "model.embed_tokens.weight", 2, words, LAYOUT_INIT_NORMAL, 0.02f, LAYOUT_DECAY));
    for (uint32_t g = 0; g < (config->groups > 1 ? config->groups : 1); g++)
        for (uint32_t i = g; i<config->n_layer; i += config->groups> 1 ? config->groups : 1)
            TRY(add_block(config, i, layout));
    TRY(layout_add(layout, "model.norm.weight", 1, &c, LAYOUT_INIT_ONES, 0, 0));
    if (config->tied) return STATUS_OK;
    return layout_add(layout, "lm_head.weight", 2, words, LAYOUT_INIT_NORMAL, 0.02f, LAYOUT_DECAY);
}

enum status llama_layout(const struct model_config *config, struct layout *layout, struct err *err)
{
    TRY(config_check(config, err));
    enum status status = add_all(config, layout);
    assert(status != STATUS_OK || layout->n_params == llama_offsets_of(config).n_params);
    if (status == STATUS_INVALID) /* config_check passed, so only the total size can be wrong */
        return err_set(err, status, "model too large: n_layer %u and n_embd %u give more than %llu parameters",
                       config->n_layer, config->n_embd, (unsigned long long)LAYOUT_PARAMS_MAX);
    return status == STATUS_OK ? status : err_set(err, status, "cannot lay out the model: %s", status_text(status));
}

uint32_t llama_hidden_blocks(const struct tensor *tensor)
{
    return tensor->ndim == 2 && !strncmp(tensor->name, "model.layers.", strlen("model.layers."));
}

struct llama_offsets llama_offsets_of(const struct model_config *config)
{
    uint64_t c = config->n_embd, words = config->vocab_size * c;
    struct llama_offsets o = {.block0 = words};
    for (int j = 0; j < LLAMA_BLOCK_TENSORS; j++) {
        const struct block_tensor *t = &block_tensors[j];
        o.block[j] = o.block_stride;
        o.block_stride += side_of(config, (enum side)t->out) * side_of(config, (enum side)t->in);
    }
    o.norm = o.block0 + config->n_layer * o.block_stride;
    o.head = config->tied ? o.embed : o.norm + c;
    o.n_params = o.norm + c + (config->tied ? 0 : words);
    return o;
}

/* Writes the shortest JSON number that reads back as the same double, with a point so that it is not an integer. */
static const char *json_real(double v, char out[40])
{
    size_t n = strlen(number_real_text(v, out));
    if (!strpbrk(out, ".e")) snprintf(out + n, 40 - n, ".0");
    return out;
}

/* Writes the members that rope_scaling and rope_parameters share. */
static const char *json_scaling(const struct rope_scaling *s, char out[240])
{
    char factor[40], low[40], high[40];
    if (s->factor == 0)
        snprintf(out, 240, "\"rope_type\": \"default\"");
    else
        snprintf(out, 240,
                 "\"rope_type\": \"llama3\", \"factor\": %s, \"low_freq_factor\": %s, \"high_freq_factor\": %s, "
                 "\"original_max_position_embeddings\": %.0f",
                 json_real(s->factor, factor), json_real(s->low, low), json_real(s->high, high), s->original);
    return out;
}

/* Rotary positions and the dtype appear twice: in the form of transformers 5 and in the form that earlier versions
 * read. */
enum status llama_config_json(const struct model_config *c, char *out, size_t cap)
{
    char eps[40], theta[40], scaling[240], ids[96];
    bool scaled = c->rope_scaling.factor != 0;
    json_scaling(&c->rope_scaling, scaling);
    int n = snprintf(out, cap,
                     "{\n"
                     "  \"architectures\": [\"LlamaForCausalLM\"],\n"
                     "  \"model_type\": \"llama\",\n"
                     "  \"vocab_size\": %u,\n"
                     "  \"max_position_embeddings\": %u,\n"
                     "  \"hidden_size\": %u,\n"
                     "  \"intermediate_size\": %u,\n"
                     "  \"num_hidden_layers\": %u,\n"
                     "  \"num_attention_heads\": %u,\n"
                     "  \"num_key_value_heads\": %u,\n"
                     "  \"head_dim\": %u,\n"
                     "  \"hidden_act\": \"silu\",\n"
                     "  \"rms_norm_eps\": %s,\n",
                     c->vocab_size, c->block_size, c->n_embd, c->ffn, c->n_layer, c->n_head, c->n_kv_head,
                     c->n_embd / c->n_head, json_real(c->norm_eps, eps));
    if (n < 0 || (size_t)n >= cap) return STATUS_LIMIT;
    out += n;
    cap -= (size_t)n;
    n = snprintf(out, cap,
                 "  \"rope_theta\": %s,\n"
                 "  \"rope_scaling\": %s%s%s,\n"
                 "  \"rope_parameters\": {\"rope_theta\": %s, %s},\n"
                 "  \"attention_bias\": false,\n"
                 "  \"attention_dropout\": 0.0,\n"
                 "  \"mlp_bias\": false,\n"
                 "  \"initializer_range\": 0.02,\n"
                 "  \"tie_word_embeddings\": %s,\n"
                 "%s"
                 "  \"torch_dtype\": \"float32\",\n"
                 "  \"dtype\": \"float32\"\n"
                 "}\n",
                 json_real(c->rope_theta, theta), scaled ? "{" : "", scaled ? scaling : "null", scaled ? "}" : "",
                 theta, scaling, c->tied ? "true" : "false", hf_config_ids_text(c, ids));
    return n > 0 && (size_t)n < cap ? STATUS_OK : STATUS_LIMIT;
}

static struct decoder_kind llama_kind_of(const struct model_config *config)
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

const struct model_family llama_family = {
    .name = "llama",
    .hidden_blocks = llama_hidden_blocks,
    .layout = llama_layout,
    .config_json = llama_config_json,
    .kind_of = llama_kind_of,
};
