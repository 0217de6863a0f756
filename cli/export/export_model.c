#include "cli/export/export_model.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/minmax.h"
#include "common/os/fileio.h"
#include "common/tensor/hf_config.h"
#include "common/tensor/hf_files.h"
#include "common/tensor/hf_folder.h"
#include "common/tensor/hf_source.h"
#include "compress/half.h"

enum {
    BLOCK = 1 << 16, /* elements that are converted at once */
    SHARDS_MAX = 99999,
    BF16_BYTES = 2,
};

/* A tensor on its way. */
struct item {
    const char *name;
    struct hf_source_tensor from;
    const char *dtype; /* in the new file */
    bool raw;          /* copied without a look at its values */
    uint64_t bytes;    /* in the new file */
    uint32_t shard;
};

struct job {
    const struct export_options *options;
    const struct layout *layout;
    const char *folder;
    struct hf_source source;
    struct item *items; /* [n] in the order in which they are divided into shards */
    uint32_t n, n_shards;
    float *floats;   /* [BLOCK] */
    uint8_t *halves; /* [BLOCK x BF16_BYTES] */
};

/* --- what is written ---------------------------------------------------------------------------------------------- */

static void set_item(struct item *item, const char *name, struct hf_source_tensor from, bool raw, bool bf16)
{
    const struct safetensors_entry *e = from.entry;
    *item = (struct item){.name = name, .from = from, .raw = raw, .dtype = bf16 ? "BF16" : "F32"};
    if (raw) item->dtype = e->dtype;
    item->bytes = raw ? e->bytes : e->count * (bf16 ? BF16_BYTES : sizeof(float));
}

static enum status items_of_layout(struct job *job, struct err *err)
{
    const struct layout *layout = job->layout;
    struct hf_source_tensor *found = mem_alloc(layout->n_tensors, sizeof *found);
    job->items = mem_alloc(layout->n_tensors, sizeof *job->items);
    enum status status = found && job->items ? STATUS_OK : err_set(err, STATUS_NOMEM, "no memory for the tensors");
    if (status == STATUS_OK) status = hf_source_match(&job->source, job->folder, layout, false, NULL, found, err);
    for (uint32_t i = 0; status == STATUS_OK && i < layout->n_tensors; i++)
        set_item(&job->items[job->n++], layout->tensors[i].name, found[i], false, job->options->bf16);
    mem_free(found);
    return status;
}

/* The bytes of theta in a file that holds other tensors, too (docs/protocol.md); the whole file without this mark. */
static void theta_range(const struct safetensors *st, uint64_t *begin, uint64_t *end)
{
    const char *text = json_string_value(json_object_get(json_object_get(st->json, "__metadata__"), "theta"));
    unsigned long long from, to;
    *begin = 0;
    *end = UINT64_MAX;
    if (!text || sscanf(text, "%llu %llu", &from, &to) != 2) return;
    *begin = from;
    *end = to;
}

static enum status items_of_file(struct job *job, const struct hf_source_file *file, struct err *err)
{
    const struct safetensors *st = &file->st;
    size_t before = job->n * sizeof *job->items;
    struct item *items = mem_resize(job->items, before, before + st->n * sizeof *items);
    if (!items) return err_set(err, STATUS_NOMEM, "no memory for the tensors");
    job->items = items;
    uint64_t begin, end;
    theta_range(st, &begin, &end);
    for (uint32_t i = 0; i < st->n; i++) {
        const struct safetensors_entry *e = &st->entries[i];
        uint64_t at = (uint64_t)(e->data - st->entries[0].data);
        bool exchanged = at >= begin && at < end && !strcmp(e->dtype, "F32");
        if (e->ndim > LAYOUT_DIMS_MAX)
            return err_set(err, STATUS_UNSUPPORTED, "%.300s: tensor '%.96s' has more than %d dimensions", file->path,
                           e->name, LAYOUT_DIMS_MAX);
        set_item(&job->items[job->n++], e->name, (struct hf_source_tensor){e, file->path}, !exchanged,
                 job->options->bf16);
    }
    return STATUS_OK;
}

static enum status items_of_files(struct job *job, struct err *err)
{
    for (uint32_t f = 0; f < job->source.n_files; f++) TRY(items_of_file(job, &job->source.files[f], err));
    return STATUS_OK;
}

/* As huggingface_hub divides a state dict: in order, a new file when the next tensor does not fit. */
static enum status divide(struct job *job, uint64_t most, struct err *err)
{
    uint64_t filled = 0;
    uint32_t shard = 0;
    for (uint32_t i = 0; i < job->n; i++) {
        uint64_t bytes = job->items[i].bytes;
        if (filled && filled + bytes > most) {
            shard++;
            filled = 0;
        }
        job->items[i].shard = shard;
        filled += bytes;
    }
    job->n_shards = shard + 1;
    if (job->n_shards <= SHARDS_MAX) return STATUS_OK;
    return err_set(err, STATUS_INVALID, "--max-shard-size: that gives %u files: give a larger size", job->n_shards);
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static enum status put_values(struct job *job, const struct item *item, struct file_out *out, struct err *err)
{
    const struct safetensors_entry *e = item->from.entry;
    bool bf16 = !strcmp(item->dtype, "BF16");
    for (uint64_t at = 0, n; at < e->count; at += n) {
        n = min_u64(e->count - at, BLOCK);
        struct safetensors_entry block = safetensors_slice(e, at, n);
        TRY(hf_source_read(&(struct hf_source_tensor){&block, item->from.path}, job->floats, err));
        if (bf16) bf16_narrow(job->floats, n, job->halves);
        TRY(file_out_put(out, bf16 ? (const void *)job->halves : job->floats, n * (bf16 ? BF16_BYTES : sizeof(float)),
                         err));
    }
    return STATUS_OK;
}

/* The tensors of one file for safetensors_head; `data` is the item. */
static uint32_t list_shard(const struct job *job, uint32_t shard, struct safetensors_tensor *tensors)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < job->n; i++) {
        const struct item *item = &job->items[i];
        const struct safetensors_entry *e = item->from.entry;
        if (item->shard != shard) continue;
        /* `frozen` without theta beside it orders tensors by the size of their elements, which aligns them. */
        tensors[n] = (struct safetensors_tensor){.name = item->name,
                                                 .dtype = item->dtype,
                                                 .bytes = item->bytes,
                                                 .frozen = true,
                                                 .ndim = e->ndim,
                                                 .data = item};
        memcpy(tensors[n].shape, e->shape, sizeof tensors[n].shape);
        n++;
    }
    return n;
}

static enum status write_shard(struct job *job, uint32_t shard, const char *path, struct err *err)
{
    struct file_out out = {.fd = -1};
    uint8_t *head = NULL;
    size_t size;
    struct safetensors_tensor *tensors = mem_alloc(job->n, sizeof *tensors);
    if (!tensors) return err_set(err, STATUS_NOMEM, "no memory to write %s", path);
    uint32_t n = list_shard(job, shard, tensors);
    enum status status = safetensors_head(tensors, n, &head, &size, err);
    if (status == STATUS_OK) status = file_out_open(&out, path, err);
    if (status == STATUS_OK) status = file_out_put(&out, head, size, err);
    for (uint32_t i = 0; status == STATUS_OK && i < n; i++) {
        const struct item *item = tensors[i].data;
        status =
            item->raw ? file_out_put(&out, item->from.entry->data, item->bytes, err) : put_values(job, item, &out, err);
    }
    if (status == STATUS_OK) status = file_out_commit(&out, err);
    if (status != STATUS_OK) file_out_abort(&out);
    mem_free(head);
    mem_free(tensors);
    return status;
}

enum { SHARD_NAME = 48 };

static const char *shard_name(const struct job *job, uint32_t shard, char out[SHARD_NAME])
{
    if (job->n_shards == 1)
        snprintf(out, SHARD_NAME, HF_MODEL_FILE);
    else
        snprintf(out, SHARD_NAME, "model-%05u-of-%05u.safetensors", shard + 1, job->n_shards);
    return out;
}

static enum status write_index(const struct job *job, const char *folder, struct err *err)
{
    char path[FILEIO_PATH_MAX], name[SHARD_NAME];
    json_int_t total = 0;
    json_t *map = json_object();
    bool ok = map;
    for (uint32_t i = 0; ok && i < job->n; i++) {
        ok = !json_object_set_new(map, job->items[i].name, json_string(shard_name(job, job->items[i].shard, name)));
        total += (json_int_t)job->items[i].bytes;
    }
    json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", total, "weight_map", map);
    char *text = ok && root ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(root);
    if (!text) return err_set(err, STATUS_NOMEM, "no memory for " HF_INDEX_FILE);
    snprintf(path, sizeof path, "%s/" HF_INDEX_FILE, folder);
    enum status status = file_write(path, text, strlen(text), err);
    free(text);
    return status;
}

/* The folder's config.json, with the dtype of the new tensors. A model without one has none in the copy, too. */
static enum status write_config(const struct job *job, const char *folder, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    void *config;
    char *text = NULL;
    size_t size;
    bool bf16 = job->options->bf16;
    snprintf(path, sizeof path, "%s/" HF_FILES_CONFIG, job->folder);
    if (!job->layout && !file_exists(path)) return STATUS_OK;
    TRY(file_read(path, HF_CONFIG_MAX, &config, &size, err));
    snprintf(path, sizeof path, "%s/" HF_FILES_CONFIG, folder);
    enum status status = STATUS_OK;
    if (job->layout || bf16) status = hf_config_with_dtype(config, size, bf16 ? "bfloat16" : "float32", &text, err);
    if (status == STATUS_OK)
        status = text ? file_write(path, text, strlen(text), err) : file_write(path, config, size, err);
    mem_free(config);
    mem_free(text);
    return status;
}

static enum status fill(void *ctx, const char *folder, struct err *err)
{
    struct job *job = ctx;
    char path[FILEIO_PATH_MAX], name[SHARD_NAME];
    TRY(hf_files_copy(job->folder, folder, HF_FILES_ALL | (job->layout ? 0 : HF_FILES_CONFIGS), err));
    TRY(write_config(job, folder, err));
    for (uint32_t shard = 0; shard < job->n_shards; shard++) {
        snprintf(path, sizeof path, "%s/%s", folder, shard_name(job, shard, name));
        TRY(write_shard(job, shard, path, err));
    }
    if (job->n_shards > 1) TRY(write_index(job, folder, err));
    if (job->layout) TRY(hf_files_check_config(job->folder, err));
    return hf_folder_link_adapter(folder, err);
}

static bool is_adapter(const char *folder)
{
    char path[FILEIO_PATH_MAX];
    snprintf(path, sizeof path, "%s/" HF_FILES_ADAPTER, folder);
    return file_exists(path);
}

static enum status run(struct job *job, const char *out, struct err *err)
{
    uint64_t total = 0;
    TRY(hf_source_open(&job->source, job->folder, err));
    TRY(job->layout ? items_of_layout(job, err) : items_of_files(job, err));
    for (uint32_t i = 0; i < job->n; i++) total += job->items[i].bytes;
    bool whole = total <= job->options->shard_most || (!job->layout && is_adapter(job->folder));
    TRY(divide(job, whole ? UINT64_MAX : job->options->shard_most, err));
    if (!job->layout && !job->options->bf16 && whole) return hf_folder_copy(out, job->folder, err);
    job->floats = mem_alloc(BLOCK, sizeof *job->floats);
    job->halves = mem_alloc(BLOCK, BF16_BYTES);
    if (!job->floats || !job->halves) return err_set(err, STATUS_NOMEM, "no memory for a block of a tensor");
    return hf_folder_make(out, fill, job, err);
}

enum status export_model(const char *out, const char *from, const struct layout *layout,
                         const struct export_options *options, struct export_result *result, struct err *err)
{
    struct job job = {.options = options, .layout = layout, .folder = from};
    enum status status = run(&job, out, err);
    *result = (struct export_result){.tensors = job.n, .files = job.n_shards};
    for (uint32_t i = 0; i < job.n; i++) result->params += job.items[i].from.entry->count;
    hf_source_close(&job.source);
    mem_free(job.items);
    mem_free(job.floats);
    mem_free(job.halves);
    return status;
}
