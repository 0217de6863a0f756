/* The model section: presets, keys of each family, checks of sizes. */
#include "common/config/config_resolve.h"

#include <assert.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "common/config/model_flops.h"
#include "common/tensor/layout.h"
#include "common/tensor/rope_scaling.h"

bool config_unset(const struct config_resolve *r, int index)
{
    assert(index >= 0 && index < config_keys_count);
    return r->sources->of[index] <= CONFIG_PRESET;
}

enum status config_derive(const struct config_resolve *r, int index, const char *text)
{
    if (!config_unset(r, index)) return STATUS_OK;
    r->sources->of[index] = CONFIG_PRESET;
    return config_value_set(r->config, index, text, r->err);
}

enum status config_derive_u32(const struct config_resolve *r, int index, uint32_t value)
{
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    return config_derive(r, index, text);
}

const char *config_multiples(uint32_t value, uint32_t of, char out[48])
{
    uint64_t low = value / of * (uint64_t)of;
    if (low)
        snprintf(out, 48, "%llu or %llu", (unsigned long long)low, (unsigned long long)low + of);
    else
        snprintf(out, 48, "%u", of);
    return out;
}

/* --- presets ------------------------------------------------------------------------------------------------------ */

/* Published models; block_size is the usual training length, not the longest supported context. */
struct preset {
    const char *name, *family;
    uint32_t n_layer, n_head, n_embd, block_size, vocab_size, n_kv_head, ffn;
    const char *rope_theta, *tie_embeddings; /* NULL: the default */
};

static const struct preset presets[] = {
    {"gpt2", "gpt2", 12, 12, 768, 1024, 50257, 0, 0, NULL, NULL},
    {"llama-1b", "llama", 16, 32, 2048, 2048, 128256, 8, 8192, "500000", NULL},   /* Llama 3.2 1B */
    {"llama-3b", "llama", 28, 24, 3072, 2048, 128256, 8, 8192, "500000", NULL},   /* Llama 3.2 3B */
    {"llama-8b", "llama", 32, 32, 4096, 8192, 128256, 8, 14336, "500000", "off"}, /* Llama 3 8B */
};

static enum status apply_preset(const struct config_resolve *r, const struct preset *p)
{
    TRY(config_derive(r, AT(model.family), p->family));
    if (strcmp(r->config->model.family, p->family) != 0)
        return config_refuse(r, KEYS(AT(model.preset), AT(model.family)), "%s is for model.family %s, not %s", p->name,
                             p->family, r->config->model.family);
    TRY(config_derive_u32(r, AT(model.n_layer), p->n_layer));
    TRY(config_derive_u32(r, AT(model.n_head), p->n_head));
    TRY(config_derive_u32(r, AT(model.n_embd), p->n_embd));
    TRY(config_derive_u32(r, AT(model.block_size), p->block_size));
    TRY(config_derive_u32(r, AT(model.vocab_size), p->vocab_size));
    if (p->n_kv_head) TRY(config_derive_u32(r, AT(model.n_kv_head), p->n_kv_head));
    if (p->ffn) TRY(config_derive_u32(r, AT(model.ffn), p->ffn));
    if (p->rope_theta) TRY(config_derive(r, AT(model.rope_theta), p->rope_theta));
    if (p->tie_embeddings) TRY(config_derive(r, AT(model.tie_embeddings), p->tie_embeddings));
    return STATUS_OK;
}

enum status config_model_preset(const struct config_resolve *r)
{
    const char *preset = r->config->model.preset;
    if (!preset[0]) return STATUS_OK;
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (!strcmp(preset, presets[i].name)) return apply_preset(r, &presets[i]);
    uint32_t depth = 0;
    if (preset[0] == 'd' && isdigit((unsigned char)preset[1]) && preset[1] != '0' && strlen(preset) <= 3 &&
        (!preset[2] || isdigit((unsigned char)preset[2])))
        depth = (uint32_t)atol(preset + 1);
    if (depth < 2 || depth > 48)
        return config_refuse(r, KEYS(AT(model.preset)),
                             "\"%.40s\" is unknown; allowed: d2 to d48, gpt2, llama-1b, llama-3b, llama-8b", preset);
    TRY(config_derive_u32(r, AT(model.n_layer), depth));
    TRY(config_derive_u32(r, AT(model.n_head), depth));
    return config_derive_u32(r, AT(model.n_embd), 64 * depth);
}

/* --- families ----------------------------------------------------------------------------------------------------- */

/* A key of another family is refused, not ignored, unless it has its default. */
static enum status check_gpt2(const struct config_resolve *r)
{
    const int foreign[] = {AT(model.n_kv_head),    AT(model.ffn),      AT(model.rope_theta),
                           AT(model.rope_scaling), AT(model.norm_eps), AT(model.tie_embeddings)};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        char value[CONFIG_VALUE_MAX];
        const struct config_key *key = &config_keys[foreign[i]];
        if (strcmp(config_value_text(r->config, foreign[i], value), key->preset) != 0)
            return config_refuse(r, KEYS(foreign[i], AT(model.family)),
                                 "%.40s is for model.family llama: remove it for gpt2", value);
    }
    return STATUS_OK;
}

/* Sets a key whose 0 means a value derived from other keys. */
static enum status fill_zero(const struct config_resolve *r, int index, uint32_t now, uint64_t value)
{
    char text[24];
    if (now) return STATUS_OK;
    if (config_unset(r, index)) r->sources->of[index] = CONFIG_PRESET;
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return config_value_set(r->config, index, text, r->err);
}

static enum status resolve_llama(const struct config_resolve *r)
{
    const struct config *c = r->config;
    uint64_t units = (8 * (uint64_t)c->model.n_embd + 2) / 3; /* as many weights as an ungated MLP of width 4 n_embd */
    TRY(fill_zero(r, AT(model.n_kv_head), c->model.n_kv_head, c->model.n_head));
    TRY(fill_zero(r, AT(model.ffn), c->model.ffn, (units + 63) / 64 * 64));
    struct rope_scaling scaling;
    if (rope_scaling_parse(&scaling, c->model.rope_scaling, r->err) != STATUS_OK) {
        config_prefix_sources(r->sources, KEYS(AT(model.rope_scaling)), r->err);
        return STATUS_INVALID;
    }
    if (c->model.n_head % c->model.n_kv_head)
        return config_refuse(r, KEYS(AT(model.n_kv_head), AT(model.n_head)), "%u does not divide model.n_head = %u",
                             c->model.n_kv_head, c->model.n_head);
    if (c->model.n_embd / c->model.n_head % 2)
        return config_refuse(r, KEYS(AT(model.n_head), AT(model.n_embd)),
                             "%u makes heads of %u columns from model.n_embd = %u, but rotary positions turn pairs: "
                             "an even number is needed",
                             c->model.n_head, c->model.n_embd / c->model.n_head, c->model.n_embd);
    return STATUS_OK;
}

static enum status check_sizes(const struct config_resolve *r)
{
    const struct config *c = r->config;
    char nearest[48];
    if (c->model.n_embd % c->model.n_head)
        return config_refuse(r, KEYS(AT(model.n_embd), AT(model.n_head)),
                             "%u is not divisible by model.n_head = %u; nearest: %s", c->model.n_embd, c->model.n_head,
                             config_multiples(c->model.n_embd, c->model.n_head, nearest));
    if (!c->data.tokenizer[0])
        return config_refuse(r, KEYS(AT(data.tokenizer)), "is empty; allowed: bytes, none, or a tokenizer.json");
    if (!strcmp(c->data.tokenizer, "bytes") && c->model.vocab_size < 256)
        return config_refuse(r, KEYS(AT(model.vocab_size), AT(data.tokenizer)),
                             "%u is too small for data.tokenizer bytes; nearest: 256 (or set data.tokenizer none)",
                             c->model.vocab_size);
    return STATUS_OK;
}

static enum status check_init_from(const struct config_resolve *r)
{
    if (r->config->model.init_from[0]) return STATUS_OK;
    return config_refuse(r, KEYS(AT(model.init_from)), "is empty; allowed: scratch, or a folder");
}

static enum status check_total(const struct config_resolve *r)
{
    const struct config *c = r->config;
    double weights = model_weights(c), most = (double)LAYOUT_PARAMS_MAX;
    if (weights <= most) return STATUS_OK;
    return config_refuse(
        r, KEYS(AT(model.n_layer), AT(model.n_embd), AT(model.ffn), AT(model.vocab_size)),
        "%u layers of model.n_embd = %u and a vocabulary of %u make %.3g parameters; the maximum is %.3g",
        c->model.n_layer, c->model.n_embd, c->model.vocab_size, weights, most);
}

enum status config_model_resolve(const struct config_resolve *r)
{
    TRY(check_init_from(r));
    if (config_is_external(r->config)) return STATUS_OK;
    TRY(config_model_preset(r));
    TRY(check_sizes(r));
    TRY(strcmp(r->config->model.family, "llama") ? check_gpt2(r) : resolve_llama(r));
    return check_total(r);
}
