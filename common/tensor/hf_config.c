#include "common/tensor/hf_config.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"

static enum status read_number(const json_t *root, const char *key, uint32_t *out, const char *where, struct err *err)
{
    const json_t *value = json_object_get(root, key);
    json_int_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < 1 || n > INT32_MAX)
        return err_set(err, STATUS_CORRUPT, "%.200s: '%s' is missing or not a positive integer", where, key);
    *out = (uint32_t)n;
    return STATUS_OK;
}

/* The same, with `otherwise` as the default for a missing key or null. */
static enum status read_optional(const json_t *root, const char *key, uint32_t otherwise, uint32_t *out,
                                 const char *where, struct err *err)
{
    const json_t *value = json_object_get(root, key);
    *out = otherwise;
    return !value || json_is_null(value) ? STATUS_OK : read_number(root, key, out, where, err);
}

static enum status read_real(const json_t *object, const char *key, double *out, const char *where, struct err *err)
{
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value)) return STATUS_OK;
    double x = json_number_value(value);
    if (!json_is_number(value) || !(x > 0) || !isfinite(x))
        return err_set(err, STATUS_CORRUPT, "%.200s: '%s' is not a positive number", where, key);
    *out = x;
    return STATUS_OK;
}

static enum status check_heads(const struct model_config *c, const char *where, struct err *err)
{
    if (c->n_embd % c->n_head)
        return err_set(err, STATUS_CORRUPT, "%.200s: width %u is not a multiple of %u heads", where, c->n_embd,
                       c->n_head);
    return STATUS_OK;
}

static enum status read_gpt2(struct model_config *config, const json_t *root, const char *where, struct err *err)
{
    TRY(read_number(root, "n_layer", &config->n_layer, where, err));
    TRY(read_number(root, "n_head", &config->n_head, where, err));
    TRY(read_number(root, "n_embd", &config->n_embd, where, err));
    TRY(read_number(root, "n_positions", &config->block_size, where, err));
    TRY(read_number(root, "vocab_size", &config->vocab_size, where, err));
    const char *activation = json_string_value(json_object_get(root, "activation_function"));
    if (activation && strcmp(activation, "gelu_new") != 0)
        return err_set(err, STATUS_UNSUPPORTED, "%.200s: activation_function '%.31s' is not supported, only gelu_new",
                       where, activation);
    const json_t *eps = json_object_get(root, "layer_norm_epsilon"), *inner = json_object_get(root, "n_inner");
    if (eps && fabs(json_number_value(eps) - 1e-5) > 1e-9)
        return err_set(err, STATUS_UNSUPPORTED, "%.200s: layer_norm_epsilon other than 1e-5 is not supported", where);
    if (json_is_integer(inner) && json_integer_value(inner) != 4 * (json_int_t)config->n_embd)
        return err_set(err, STATUS_UNSUPPORTED, "%.200s: n_inner other than 4 * n_embd is not supported", where);
    if (json_is_false(json_object_get(root, "scale_attn_weights")) ||
        json_is_true(json_object_get(root, "scale_attn_by_inverse_layer_idx")))
        return err_set(err, STATUS_UNSUPPORTED,
                       "%.200s: this scaling of attention is not supported (scale_attn_weights, "
                       "scale_attn_by_inverse_layer_idx)",
                       where);
    if (json_is_true(json_object_get(root, "add_cross_attention")))
        return err_set(err, STATUS_UNSUPPORTED, "%.200s: cross attention is not supported (add_cross_attention)",
                       where);
    if (json_is_false(json_object_get(root, "tie_word_embeddings")))
        return err_set(err, STATUS_UNSUPPORTED,
                       "%.200s: an untied output layer is not supported for gpt2 (tie_word_embeddings false)", where);
    config->tied = true;
    return check_heads(config, where, err);
}

/* Reads the scaling from one object, if it has one. */
static enum status read_scaling(struct rope_scaling *out, const json_t *object, const char *where, struct err *err)
{
    struct rope_scaling s = {0};
    const char *type = json_string_value(json_object_get(object, "rope_type"));
    if (!type) type = json_string_value(json_object_get(object, "type"));
    if (type ? !strcmp(type, "default") : !json_object_get(object, "factor")) return STATUS_OK;
    if (!type || strcmp(type, "llama3") != 0)
        return err_set(err, STATUS_UNSUPPORTED,
                       "%.200s: scaling of rotary positions '%.31s' is not supported, only default and llama3", where,
                       type ? type : "factor");
    TRY(read_real(object, "factor", &s.factor, where, err));
    TRY(read_real(object, "low_freq_factor", &s.low, where, err));
    TRY(read_real(object, "high_freq_factor", &s.high, where, err));
    TRY(read_real(object, "original_max_position_embeddings", &s.original, where, err));
    if (s.factor == 0 || !rope_scaling_ok(&s))
        return err_set(err, STATUS_CORRUPT,
                       "%.200s: invalid scaling of rotary positions: factor %g, low %g, high %g, original %g", where,
                       s.factor, s.low, s.high, s.original);
    *out = s;
    return STATUS_OK;
}

/* Older files have `rope_theta` and `rope_scaling`; since transformers 5 both are in `rope_parameters`. */
static enum status read_rope(struct model_config *config, const json_t *root, const char *where, struct err *err)
{
    const json_t *all = json_object_get(root, "rope_parameters");
    config->rope_theta = 10000;
    TRY(read_real(root, "rope_theta", &config->rope_theta, where, err));
    TRY(read_real(all, "rope_theta", &config->rope_theta, where, err));
    TRY(read_scaling(&config->rope_scaling, json_object_get(root, "rope_scaling"), where, err));
    return read_scaling(&config->rope_scaling, all, where, err);
}

static enum status read_llama(struct model_config *config, const json_t *root, const char *where, struct err *err)
{
    uint32_t head_dim;
    TRY(read_number(root, "num_hidden_layers", &config->n_layer, where, err));
    TRY(read_number(root, "num_attention_heads", &config->n_head, where, err));
    TRY(read_number(root, "hidden_size", &config->n_embd, where, err));
    TRY(read_number(root, "intermediate_size", &config->ffn, where, err));
    TRY(read_number(root, "max_position_embeddings", &config->block_size, where, err));
    TRY(read_number(root, "vocab_size", &config->vocab_size, where, err));
    TRY(read_optional(root, "num_key_value_heads", config->n_head, &config->n_kv_head, where, err));
    TRY(read_optional(root, "head_dim", config->n_embd / config->n_head, &head_dim, where, err));
    config->norm_eps = 1e-6; /* the default of transformers */
    TRY(read_real(root, "rms_norm_eps", &config->norm_eps, where, err));
    config->tied = json_is_true(json_object_get(root, "tie_word_embeddings"));
    TRY(read_rope(config, root, where, err));
    TRY(check_heads(config, where, err));
    if (config->n_head % config->n_kv_head)
        return err_set(err, STATUS_CORRUPT, "%.200s: num_key_value_heads %u does not divide num_attention_heads %u",
                       where, config->n_kv_head, config->n_head);
    if ((uint64_t)head_dim * config->n_head != config->n_embd || head_dim % 2)
        return err_set(err, STATUS_UNSUPPORTED,
                       "%.200s: heads of %u columns are not supported, only an even hidden_size / num_attention_heads",
                       where, head_dim);
    const char *act = json_string_value(json_object_get(root, "hidden_act"));
    if (act && strcmp(act, "silu") != 0)
        return err_set(err, STATUS_UNSUPPORTED, "%.200s: hidden_act '%.31s' is not supported, only silu", where, act);
    if (json_is_true(json_object_get(root, "attention_bias")) || json_is_true(json_object_get(root, "mlp_bias")))
        return err_set(err, STATUS_UNSUPPORTED,
                       "%.200s: biases of linear layers are not supported (attention_bias, mlp_bias)", where);
    return STATUS_OK;
}

static enum status read_config(struct model_config *config, const json_t *root, const char *where, struct err *err)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    bool gpt2 = type && !strcmp(type, "gpt2");
    if (!gpt2 && !(type && !strcmp(type, "llama")))
        return err_set(err, STATUS_UNSUPPORTED, "%.200s: model_type '%.31s' is not supported, only gpt2 and llama",
                       where, type ? type : "missing");
    memcpy(config->family, type, strlen(type) + 1);
    TRY((gpt2 ? read_gpt2 : read_llama)(config, root, where, err));
    const json_t *end = json_object_get(root, "eos_token_id");
    config->bytes = json_is_integer(end) && !json_integer_value(end) && config->vocab_size <= HF_BYTES_VOCAB_MAX;
    return STATUS_OK;
}

enum status hf_config_parse(struct model_config *config, const char *text, size_t size, const char *where,
                            struct err *err)
{
    json_error_t why;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(err, STATUS_CORRUPT, "%.200s: not a JSON object: %.100s", where, root ? "" : why.text);
    }
    *config = (struct model_config){0};
    enum status status = read_config(config, root, where, err);
    json_decref(root);
    return status;
}

enum status hf_config_load(struct model_config *config, const char *folder, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    void *text;
    size_t size;
    snprintf(path, sizeof path, "%s/config.json", folder);
    TRY(file_read(path, HF_CONFIG_MAX, &text, &size, err));
    enum status status = hf_config_parse(config, text, size, path, err);
    mem_free(text);
    return status;
}
