#include "common/config/config_init.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/config/config_keys.h"
#include "common/os/fileio.h"
#include "common/tensor/hf_config.h"

#define KEY(field) offsetof(struct config, model.field)
static const size_t keys[] = {KEY(family), KEY(n_layer), KEY(n_head), KEY(n_embd), KEY(block_size), KEY(vocab_size)};
static const size_t llama_keys[] = {KEY(n_kv_head),    KEY(ffn),      KEY(rope_theta),
                                    KEY(rope_scaling), KEY(norm_eps), KEY(tie_embeddings)};
#undef KEY
enum { KEYS_MAX = sizeof keys / sizeof *keys, LLAMA_KEYS_MAX = sizeof llama_keys / sizeof *llama_keys };

enum status config_init_load(struct config *config, const char *folder, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    struct config_sources sources;
    struct model_config hf;
    config_defaults(config, &sources);
    if ((size_t)snprintf(path, sizeof path, "%s/config.json", folder) >= sizeof path || !file_exists(path))
        return err_set(err, STATUS_NOTFOUND, "%.300s has no config.json", folder);
    TRY(hf_config_load(&hf, folder, err));
    snprintf(config->model.family, sizeof config->model.family, "%s", hf.family);
    config->model.n_layer = hf.n_layer;
    config->model.n_head = hf.n_head;
    config->model.n_embd = hf.n_embd;
    config->model.block_size = hf.block_size;
    config->model.vocab_size = hf.vocab_size;
    if (!hf.n_kv_head) return STATUS_OK; /* gpt2 */
    config->model.n_kv_head = hf.n_kv_head;
    config->model.ffn = hf.ffn;
    config->model.rope_theta = hf.rope_theta;
    config->model.norm_eps = hf.norm_eps;
    config->model.tie_embeddings = hf.tied ? CHOICE_ON : CHOICE_OFF;
    rope_scaling_text(&hf.rope_scaling, config->model.rope_scaling, sizeof config->model.rope_scaling);
    return STATUS_OK;
}

/* The value of a key; texts of one scaling are equal. */
static const char *value_of(const struct config *config, int key, char out[CONFIG_VALUE_MAX])
{
    struct rope_scaling scaling;
    config_value_text(config, key, out);
    if (config_keys[key].offset == offsetof(struct config, model.rope_scaling) &&
        rope_scaling_parse(&scaling, config->model.rope_scaling, NULL) == STATUS_OK)
        rope_scaling_text(&scaling, out, CONFIG_VALUE_MAX);
    return out;
}

static double real_of(const struct config *config, int key)
{
    double value;
    memcpy(&value, (const char *)config + config_keys[key].offset, sizeof value);
    return value;
}

static bool is_derived_zero(const char *key, const char *value)
{
    return (!strcmp(key, "n_kv_head") || !strcmp(key, "ffn")) && !strcmp(value, "0");
}

/* Appends the key to out[cap] if it differs. */
static void compare(const struct config *config, const struct config *init, int key, char *out, size_t cap)
{
    char ours[CONFIG_VALUE_MAX], theirs[CONFIG_VALUE_MAX];
    const char *name = config_keys[key].key;
    if (!strcmp(value_of(config, key, ours), value_of(init, key, theirs)) || is_derived_zero(name, ours)) return;
    if (!strcmp(name, "block_size") && strcmp(init->model.family, "llama") == 0 &&
        config->model.block_size < init->model.block_size)
        return;
    if (config_keys[key].type == CONFIG_TYPE_REAL) {
        snprintf(ours, sizeof ours, "%.9g", real_of(config, key));
        snprintf(theirs, sizeof theirs, "%.9g", real_of(init, key));
    }
    size_t used = strlen(out);
    snprintf(out + used, cap - used, "%smodel.%s is %.40s, not %.40s", used ? ", " : "", name, theirs, ours);
}

enum status config_init_model(struct config *config, struct config_sources *sources, const struct config *init,
                              const char *folder, struct err *err)
{
    char differ[400] = "", value[CONFIG_VALUE_MAX];
    int n = KEYS_MAX + (strcmp(init->model.family, "llama") ? 0 : LLAMA_KEYS_MAX);
    for (int i = 0; i < n; i++) {
        int key = config_key_at(i < KEYS_MAX ? keys[i] : llama_keys[i - KEYS_MAX]);
        bool unset = sources && (sources->of[key] == CONFIG_DEFAULT ||
                                 is_derived_zero(config_keys[key].key, config_value_text(config, key, value)));
        if (!unset) {
            compare(config, init, key, differ, sizeof differ);
            continue;
        }
        TRY(config_value_set(config, key, config_value_text(init, key, value), err));
        sources->of[key] = CONFIG_PRESET;
    }
    if (!differ[0]) return STATUS_OK;
    int room = 430 - (int)strlen(differ); /* for the folder */
    return err_set(err, STATUS_INVALID, "model.init_from: in %.*s %s: remove these settings, or take another folder",
                   room, folder, differ);
}
