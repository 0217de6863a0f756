#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "common/tensor/hf_config.h"

enum { IDS_MAX = 64 }; /* ids in one list */

const char *hf_config_ids_text(const struct model_config *config, char out[96])
{
    static const struct {
        uint32_t vocab_size, bos, eos;
    } known[] = {{50257, 50256, 50256}, {50304, 50256, 50256}, {128256, 128000, 128001}};
    static const char format[] = "  \"bos_token_id\": %u,\n  \"eos_token_id\": %u,\n";
    snprintf(out, 96, "  \"bos_token_id\": null,\n  \"eos_token_id\": null,\n");
    if (config->bytes && config->vocab_size <= HF_BYTES_VOCAB_MAX) snprintf(out, 96, format, 0u, 0u);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].vocab_size == config->vocab_size) snprintf(out, 96, format, known[i].bos, known[i].eos);
    return out;
}

static enum status print(const json_t *root, char **out, struct err *err)
{
    size_t flags = JSON_INDENT(2) | JSON_REAL_PRECISION(17), size = json_dumpb(root, NULL, 0, flags);
    char *text = size ? mem_alloc(1, size + 2) : NULL;
    if (!text || json_dumpb(root, text, size, flags) != size) {
        mem_free(text);
        return err_set(err, STATUS_NOMEM, "no memory for a config.json");
    }
    memcpy(text + size, "\n", 2);
    *out = text;
    return STATUS_OK;
}

static bool is_id(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) <= INT32_MAX;
}

/* True for an id, a list of ids, null or a missing key. */
static bool are_ids(const json_t *value)
{
    if (!json_is_array(value)) return !value || json_is_null(value) || is_id(value);
    bool good = json_array_size(value) <= IDS_MAX;
    for (size_t i = 0; good && i < json_array_size(value); i++) good = is_id(json_array_get(value, i));
    return good;
}

/* A key missing in `from` is deleted in `to`, so that the same default applies to both. */
static enum status copy_ids(json_t *to, const json_t *from, const char *where, struct err *err)
{
    static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *value = json_object_get(from, keys[i]);
        if (!are_ids(value))
            return err_set(err, STATUS_CORRUPT, "%.200s: '%s' is neither a token id nor a list of up to %d ids", where,
                           keys[i], IDS_MAX);
        if (!value)
            json_object_del(to, keys[i]);
        else if (json_object_set(to, keys[i], value))
            return err_set(err, STATUS_NOMEM, "no memory for a config.json");
    }
    return STATUS_OK;
}

enum status hf_config_with_ids(const char *text, const char *folder, char **out, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    void *source;
    size_t size;
    *out = NULL;
    snprintf(path, sizeof path, "%s/config.json", folder);
    if (!file_exists(path)) return STATUS_OK;
    TRY(file_read(path, HF_CONFIG_MAX, &source, &size, err));
    json_t *from = json_loadb(source, size, 0, NULL), *to = json_loads(text, 0, NULL);
    enum status status = STATUS_OK;
    if (json_is_object(from) && json_is_object(to)) {
        status = copy_ids(to, from, path, err);
        if (status == STATUS_OK) status = print(to, out, err);
    }
    json_decref(from);
    json_decref(to);
    mem_free(source);
    return status;
}

enum status hf_config_with_dtype(const char *text, size_t size, const char *dtype, char **out, struct err *err)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    enum { N_KEYS = sizeof keys / sizeof *keys };
    json_t *root = json_loadb(text, size, 0, NULL);
    enum status status = json_is_object(root) ? STATUS_OK : err_set(err, STATUS_CORRUPT, "config.json is not JSON");
    bool any = false;
    for (size_t i = 0; status == STATUS_OK && i < N_KEYS; i++) {
        bool last = i + 1 == N_KEYS;
        if (!json_object_get(root, keys[i]) && (!last || any)) continue;
        any = true;
        if (json_object_set_new(root, keys[i], json_string(dtype)))
            status = err_set(err, STATUS_NOMEM, "no memory for a config.json");
    }
    if (status == STATUS_OK) status = print(root, out, err);
    json_decref(root);
    return status;
}
