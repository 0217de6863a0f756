#include "common/tensor/hf_source.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/minmax.h"

static const char prefix[] = "transformer.";

enum { COMPARED = 64 }; /* floats of one comparison */

static bool holds(const char *folder, const char *file)
{
    char path[FILEIO_PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return file_exists(path);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

static enum status add_file(struct hf_source *source, const char *folder, const char *name, struct err *err)
{
    size_t cap = strlen(folder) + strlen(name) + 2, n = source->n_files;
    struct hf_source_file *files = mem_resize(source->files, n * sizeof *files, (n + 1) * sizeof *files);
    if (!files) return err_set(err, STATUS_NOMEM, "no memory to read %.300s", folder);
    source->files = files;
    files[n] = (struct hf_source_file){.path = mem_alloc(1, cap)};
    if (!files[n].path) return err_set(err, STATUS_NOMEM, "no memory to read %.300s", folder);
    source->n_files++;
    snprintf(files[n].path, cap, "%s/%s", folder, name);
    return safetensors_open(&files[n].st, files[n].path, err);
}

/* Adds each distinct file of the index's weight_map once, in order of first mention. */
static enum status add_shards(struct hf_source *source, const char *folder, const json_t *map, struct err *err)
{
    json_t *done = json_object();
    const char *tensor;
    json_t *value;
    enum status status = done ? STATUS_OK : STATUS_NOMEM;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value)
    {
        const char *file = json_string_value(value);
        if (status != STATUS_OK || (file && json_object_get(done, file))) continue;
        if (!file || !file[0] || strchr(file, '/') || json_object_set_new(done, file, json_true()))
            status = err_set(err, STATUS_CORRUPT, "%s/" HF_INDEX_FILE ": bad file name for '%.96s'", folder, tensor);
        else
            status = add_file(source, folder, file, err);
    }
    json_decref(done);
    return status;
}

enum status hf_source_open(struct hf_source *source, const char *folder, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    void *text;
    size_t size;
    *source = (struct hf_source){0};
    if (holds(folder, HF_MODEL_FILE)) return add_file(source, folder, HF_MODEL_FILE, err);
    if (!holds(folder, HF_INDEX_FILE))
        return add_file(source, folder, holds(folder, HF_ADAPTER_FILE) ? HF_ADAPTER_FILE : HF_MODEL_FILE, err);
    snprintf(path, sizeof path, "%s/" HF_INDEX_FILE, folder);
    TRY(file_read(path, SAFETENSORS_HEADER_MAX, &text, &size, err));
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
    const json_t *map = json_object_get(root, "weight_map");
    enum status status = json_is_object(map) ? add_shards(source, folder, map, err)
                                             : err_set(err, STATUS_CORRUPT, "%s: weight_map is missing", path);
    json_decref(root);
    mem_free(text);
    return status;
}

void hf_source_close(struct hf_source *source)
{
    for (uint32_t i = 0; i < source->n_files; i++) {
        safetensors_close(&source->files[i].st);
        mem_free(source->files[i].path);
    }
    mem_free(source->files);
    *source = (struct hf_source){0};
}

/* --- tensors ------------------------------------------------------------------------------------------------------ */

static bool is_ignored(const char *name)
{
    size_t n = strlen(name);
    static const char *const tails[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++)
        if (n > strlen(tails[i]) && !strcmp(name + n - strlen(tails[i]), tails[i])) return true;
    return false;
}

static bool is_head(const char *name)
{
    return !strcmp(name, "lm_head.weight");
}

static int embedding_of(const struct layout *layout)
{
    int at = layout_find(layout, "wte.weight");
    return at < 0 ? layout_find(layout, "model.embed_tokens.weight") : at;
}

static bool same_shape(const struct tensor *t, const struct safetensors_entry *e)
{
    if (t->ndim != e->ndim) return false;
    for (uint32_t d = 0; d < e->ndim; d++)
        if (t->shape[d] != e->shape[d]) return false;
    return true;
}

static enum status other_shape(const char *path, const struct tensor *t, const struct safetensors_entry *e,
                               struct err *err)
{
    char theirs[LAYOUT_SHAPE], ours[LAYOUT_SHAPE];
    return err_set(err, STATUS_MISMATCH,
                   "%.240s: tensor '%.96s' has shape %s, the model has %s: compare config.json with the "
                   "model section",
                   path, t->name, layout_shape(e->shape, e->ndim, " x ", theirs),
                   layout_shape(t->shape, t->ndim, " x ", ours));
}

struct matching {
    const struct layout *layout;
    bool part;
    const struct frozen *others;
    struct hf_source_tensor *out;
    struct hf_source_tensor head; /* an lm_head that the layout lacks */
};

static enum status match(struct matching *m, const struct safetensors_entry *e, const char *path, struct err *err)
{
    const struct layout *layout = m->layout;
    const char *name = e->name;
    int at = layout_find(layout, name); /* a program's layout may have the prefix */
    if (at < 0 && !strncmp(name, prefix, sizeof prefix - 1)) name += sizeof prefix - 1;
    if (at < 0) at = layout_find(layout, name);
    if (at < 0 && m->part && (!m->others || frozen_find(m->others, e->name))) return STATUS_OK;
    if (at < 0 && m->part && is_head(name) && embedding_of(layout) < 0) return STATUS_OK; /* tied to a frozen one */
    if (at < 0 && is_ignored(name)) return STATUS_OK;
    if (at < 0 && is_head(name)) {
        m->head = (struct hf_source_tensor){e, path};
        return STATUS_OK;
    }
    if (at < 0) return err_set(err, STATUS_MISMATCH, "%.300s: the model has no tensor '%.96s'", path, name);
    if (!same_shape(&layout->tensors[at], e)) return other_shape(path, &layout->tensors[at], e, err);
    if (m->out[at].entry) return err_set(err, STATUS_CORRUPT, "%.300s: tensor '%.96s' appears twice", path, name);
    assert(layout->tensors[at].count == e->count);
    m->out[at] = (struct hf_source_tensor){e, path};
    return STATUS_OK;
}

static bool equal_values(const struct safetensors_entry *a, const struct safetensors_entry *b)
{
    float x[COMPARED], y[COMPARED];
    if (a->count != b->count) return false;
    for (uint64_t i = 0, n; i < a->count; i += n) {
        n = min_u64(a->count - i, COMPARED);
        struct safetensors_entry left = safetensors_slice(a, i, n), right = safetensors_slice(b, i, n);
        if (safetensors_read_f32(&left, x, NULL) != STATUS_OK || safetensors_read_f32(&right, y, NULL) != STATUS_OK ||
            memcmp(x, y, n * sizeof *x) != 0)
            return false;
    }
    return true;
}

/* An lm_head that the layout lacks must equal the embedding, whatever config.json says: dropping a trained output layer
 * would change the model. */
static enum status check_head(const struct matching *m, struct err *err)
{
    int at = embedding_of(m->layout);
    if (!m->head.entry || (at >= 0 && equal_values(m->head.entry, m->out[at].entry))) return STATUS_OK;
    return err_set(err, STATUS_MISMATCH,
                   "%.300s: lm_head.weight differs from the embedding, but the model ties them: untie them "
                   "(tie_word_embeddings false in config.json, model.tie_embeddings=off; only Llama) or remove "
                   "lm_head.weight from the file",
                   m->head.path);
}

enum status hf_source_match(const struct hf_source *source, const char *folder, const struct layout *layout, bool part,
                            const struct frozen *others, struct hf_source_tensor *out, struct err *err)
{
    struct matching m = {.layout = layout, .part = part, .others = others, .out = out};
    for (uint32_t i = 0; i < layout->n_tensors; i++) out[i] = (struct hf_source_tensor){0};
    for (uint32_t f = 0; f < source->n_files; f++) {
        const struct safetensors *st = &source->files[f].st;
        for (uint32_t i = 0; i < st->n; i++) TRY(match(&m, &st->entries[i], source->files[f].path, err));
    }
    for (uint32_t i = 0; i < layout->n_tensors; i++)
        if (!out[i].entry)
            return err_set(err, STATUS_MISMATCH, "%s: tensor '%s' is missing", folder, layout->tensors[i].name);
    return check_head(&m, err);
}

enum status hf_source_read(const struct hf_source_tensor *t, float *out, struct err *err)
{
    const struct safetensors_entry *e = t->entry;
    enum status status = safetensors_read_f32(e, out, err);
    if (status != STATUS_OK) {
        err_prefix(err, "%.300s", t->path);
        return status;
    }
    for (uint64_t i = 0; i < e->count; i++)
        if (!isfinite(out[i]))
            return err_set(err, STATUS_NONFINITE, "%.300s: tensor '%.96s' holds NaN or infinity", t->path, e->name);
    return STATUS_OK;
}
