#include "common/tensor/hf_folder.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "common/tensor/hf_files.h"
#include "common/tensor/safetensors.h"

static const char prefix[] = "transformer.", model_file[] = "model.safetensors";
static const char index_file[] = "model.safetensors.index.json", adapter_file[] = "adapter_model.safetensors";

static bool holds(const char *folder, const char *file)
{
    char path[FILEIO_PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return file_exists(path);
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

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

/* State of a load. */
struct loading {
    const struct layout *layout;
    bool part;                   /* the folder may hold other tensors */
    const struct frozen *others; /* these; NULL: any */
    float *theta;
    bool *seen;                 /* [n_tensors] tensors of the layout that were found */
    char head[FILEIO_PATH_MAX]; /* file with an lm_head that the layout lacks; "": none */
};

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

static enum status read_tensor(const struct safetensors_entry *e, float *out, const char *path, struct err *err)
{
    enum status status = safetensors_read_f32(e, out, err);
    if (status != STATUS_OK) {
        err_prefix(err, "%.300s", path);
        return status;
    }
    for (uint64_t i = 0; i < e->count; i++)
        if (!isfinite(out[i]))
            return err_set(err, STATUS_NONFINITE, "%.300s: tensor '%.96s' holds NaN or infinity", path, e->name);
    return STATUS_OK;
}

static int embedding_of(const struct layout *layout)
{
    int at = layout_find(layout, "wte.weight");
    return at < 0 ? layout_find(layout, "model.embed_tokens.weight") : at;
}

static enum status load_file(void *ctx, const char *path, struct err *err)
{
    struct loading *f = ctx;
    const struct layout *layout = f->layout;
    struct safetensors st;
    TRY(safetensors_open(&st, path, err));
    enum status status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < st.n; i++) {
        const struct safetensors_entry *e = &st.entries[i];
        const char *name = e->name;
        int at = layout_find(layout, name); /* a program's layout may have the prefix */
        if (at < 0 && !strncmp(name, prefix, sizeof prefix - 1)) name += sizeof prefix - 1;
        if (at < 0) at = layout_find(layout, name);
        if (at < 0 && f->part && (!f->others || frozen_find(f->others, e->name))) continue;
        if (at < 0 && f->part && is_head(name) && embedding_of(layout) < 0) continue; /* tied to a frozen one */
        if (at < 0 && is_ignored(name)) continue;
        if (at < 0 && is_head(name)) {
            snprintf(f->head, sizeof f->head, "%s", path);
            continue;
        }
        if (at < 0)
            status = err_set(err, STATUS_MISMATCH, "%.300s: the model has no tensor '%.96s'", path, name);
        else if (!same_shape(&layout->tensors[at], e))
            status = other_shape(path, &layout->tensors[at], e, err);
        else if (f->seen[at])
            status = err_set(err, STATUS_CORRUPT, "%.300s: tensor '%.96s' appears twice", path, name);
        else {
            assert(layout->tensors[at].count == e->count);
            f->seen[at] = true;
            status = read_tensor(e, f->theta + layout->tensors[at].offset, path, err);
        }
    }
    safetensors_close(&st);
    return status;
}

typedef enum status visit_fn(void *ctx, const char *path, struct err *err);

/* Visits each distinct file of the index's weight_map once, in order of first mention. */
static enum status each_shard(const char *folder, const json_t *map, visit_fn *visit, void *ctx, struct err *err)
{
    json_t *done = json_object();
    const char *tensor;
    json_t *value;
    enum status status = done ? STATUS_OK : STATUS_NOMEM;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value)
    {
        const char *file = json_string_value(value);
        char path[FILEIO_PATH_MAX];
        if (status != STATUS_OK || (file && json_object_get(done, file))) continue;
        if (!file || !file[0] || strchr(file, '/') || json_object_set_new(done, file, json_true())) {
            status = err_set(err, STATUS_CORRUPT, "%s/%s: bad file name for '%.96s'", folder, index_file, tensor);
            continue;
        }
        snprintf(path, sizeof path, "%s/%s", folder, file);
        status = visit(ctx, path, err);
    }
    json_decref(done);
    return status;
}

/* Visits the files with the folder's tensors: model.safetensors, or the shards of an index, or what PEFT saves. */
static enum status each_file(const char *folder, visit_fn *visit, void *ctx, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    bool whole = holds(folder, model_file), sharded = !whole && holds(folder, index_file);
    const char *file = sharded ? index_file : whole || !holds(folder, adapter_file) ? model_file : adapter_file;
    void *text;
    size_t size;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    if (!sharded) return visit(ctx, path, err);
    TRY(file_read(path, SAFETENSORS_HEADER_MAX, &text, &size, err));
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
    const json_t *map = json_object_get(root, "weight_map");
    enum status status = json_is_object(map) ? each_shard(folder, map, visit, ctx, err)
                                             : err_set(err, STATUS_CORRUPT, "%s: weight_map is missing", path);
    json_decref(root);
    mem_free(text);
    return status;
}

/* True when an lm_head equals the embedding, which a tied model uses as its head. */
static bool equals_embedding(const struct safetensors_entry *head, const struct loading *f)
{
    int at = embedding_of(f->layout);
    if (at < 0 || f->layout->tensors[at].count != head->count) return false;
    float part[64];
    const float *words = f->theta + f->layout->tensors[at].offset;
    for (uint64_t i = 0, n; i < head->count; i += n) {
        n = head->count - i < 64 ? head->count - i : 64;
        struct safetensors_entry slice = *head;
        slice.count = n;
        slice.bytes = head->bytes / head->count * n;
        slice.data = head->data + head->bytes / head->count * i;
        if (safetensors_read_f32(&slice, part, NULL) != STATUS_OK || memcmp(part, words + i, n * sizeof *part) != 0)
            return false;
    }
    return true;
}

/* An lm_head that the layout lacks must equal the embedding, whatever config.json says: dropping a trained output layer
 * would change the model. */
static enum status check_head(const struct loading *f, struct err *err)
{
    struct safetensors st;
    if (!f->head[0]) return STATUS_OK;
    TRY(safetensors_open(&st, f->head, err));
    bool same = false;
    for (uint32_t i = 0; i < st.n; i++) {
        const char *name = st.entries[i].name;
        if (!strncmp(name, prefix, sizeof prefix - 1)) name += sizeof prefix - 1;
        if (is_head(name)) same = equals_embedding(&st.entries[i], f);
    }
    safetensors_close(&st);
    if (same) return STATUS_OK;
    return err_set(err, STATUS_MISMATCH,
                   "%.300s: lm_head.weight differs from the embedding, but the model ties them: untie them "
                   "(tie_word_embeddings false in config.json, model.tie_embeddings=off; only Llama) or remove "
                   "lm_head.weight from the file",
                   f->head);
}

/* True for a file name of printable characters, without slash. */
static bool is_name(const char *text)
{
    for (const char *c = text; *c; c++)
        if (*c == '/' || !isgraph((unsigned char)*c)) return false;
    return *text && strcmp(text, ".") != 0 && strcmp(text, "..") != 0;
}

enum status hf_folder_latest(const char *run, char *name, size_t cap, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    void *text;
    size_t size;
    if (snprintf(path, sizeof path, "%s/checkpoints/latest", run) >= (int)sizeof path)
        return err_set(err, STATUS_LIMIT, "the path of %.200s is too long", run);
    ssize_t n = readlink(path, name, cap);
    if (n < 0 && errno == EINVAL) {
        TRY(file_read(path, FILEIO_PATH_MAX, &text, &size, err));
        size_t line = strcspn(text, "\r\n");
        n = line < cap ? (ssize_t)line : (ssize_t)cap;
        memcpy(name, text, (size_t)n);
        mem_free(text);
        if (!n) return err_set(err, STATUS_NOTFOUND, "%.300s is empty", path);
    } else if (n < 0) {
        return err_set(err, errno == ENOENT || errno == ENOTDIR ? STATUS_NOTFOUND : STATUS_IO, "cannot read %.300s: %s",
                       path, strerror(errno));
    }
    if ((size_t)n < cap) name[n] = '\0';
    if ((size_t)n < cap && is_name(name)) return STATUS_OK;
    return err_set(err, STATUS_CORRUPT, "%.300s does not name a checkpoint: give a checkpoint folder", path);
}

enum status hf_folder_check(const char *folder, struct err *err)
{
    struct stat st;
    char latest[64];
    if (holds(folder, model_file) || holds(folder, index_file) || holds(folder, adapter_file)) return STATUS_OK;
    if (stat(folder, &st))
        return errno == ENOENT ? err_set(err, STATUS_INVALID, "folder %.300s does not exist", folder)
                               : err_set(err, STATUS_INVALID, "cannot examine %.300s: %s", folder, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return err_set(err, STATUS_INVALID, "%.300s is a file: give the folder of a model", folder);
    bool run = hf_folder_latest(folder, latest, sizeof latest, NULL) == STATUS_OK;
    int n = (int)strlen(folder);
    while (n > 1 && folder[n - 1] == '/') n--;
    if (run && n <= 180)
        return err_set(err, STATUS_INVALID,
                       "%.*s is a run folder: give one of its checkpoints, for example %.*s/checkpoints/%s", n, folder,
                       n, folder, latest);
    return err_set(err, STATUS_INVALID, "%.300s holds no %s: give the folder of a model", folder, model_file);
}

static enum status load(const char *folder, struct loading f, struct err *err)
{
    const struct layout *layout = f.layout;
    f.seen = mem_alloc(layout->n_tensors, sizeof *f.seen);
    if (!f.seen) return err_set(err, STATUS_NOMEM, "no memory to load %s", folder);
    enum status status = each_file(folder, load_file, &f, err);
    for (uint32_t i = 0; status == STATUS_OK && i < layout->n_tensors; i++)
        if (!f.seen[i])
            status = err_set(err, STATUS_MISMATCH, "%s: tensor '%s' is missing", folder, layout->tensors[i].name);
    if (status == STATUS_OK) status = check_head(&f, err);
    mem_free(f.seen);
    return status;
}

enum status hf_folder_load(const char *folder, const struct layout *layout, float *theta, struct err *err)
{
    return load(folder, (struct loading){.layout = layout, .theta = theta}, err);
}

enum status hf_folder_load_part(const char *folder, const struct layout *layout, const struct frozen *others,
                                float *theta, struct err *err)
{
    return load(folder, (struct loading){.layout = layout, .part = true, .others = others, .theta = theta}, err);
}

/* --- tensors as they are ----------------------------------------------------------------------------------------- */

struct taking {
    const struct frozen *list;
    struct safetensors_tensor *tensors; /* [list->n] data NULL: not found yet */
    struct safetensors *maps;           /* [n_maps] open files: they hold the data */
    uint32_t n_maps;
};

static enum status take_file(void *ctx, const char *path, struct err *err)
{
    struct taking *t = ctx;
    struct safetensors *maps = mem_resize(t->maps, t->n_maps * sizeof *maps, (t->n_maps + 1) * sizeof *maps);
    if (!maps) return STATUS_NOMEM;
    t->maps = maps;
    struct safetensors *st = &maps[t->n_maps];
    TRY(safetensors_open(st, path, err));
    t->n_maps++;
    for (uint32_t i = 0; i < st->n; i++) {
        const struct safetensors_entry *e = &st->entries[i];
        const struct frozen_tensor *wanted = frozen_find(t->list, e->name);
        if (wanted && frozen_is(wanted, e)) t->tensors[wanted - t->list->tensors].data = e->data;
    }
    return STATUS_OK;
}

static const struct frozen_tensor *first_missing(const struct taking *t)
{
    for (uint32_t i = 0; i < t->list->n; i++)
        if (!t->tensors[i].data) return &t->list->tensors[i];
    return NULL;
}

enum status hf_folder_take(const char *folder, const struct frozen *list, const char *path, struct err *err)
{
    struct taking t = {.list = list, .tensors = mem_alloc(list->n, sizeof *t.tensors)};
    enum status status = STATUS_NOMEM;
    if (t.tensors) {
        frozen_entries(list, t.tensors);
        status = each_file(folder, take_file, &t, err);
    }
    if (status == STATUS_NOMEM) status = err_set(err, status, "no memory to read %.300s", folder);
    if (status == STATUS_OK) {
        const struct frozen_tensor *missing = first_missing(&t);
        status = missing ? err_set(err, STATUS_NOTFOUND,
                                   "%.300s lacks the frozen tensor '%.191s' with dtype %s and its shape", folder,
                                   missing->name, missing->dtype)
                         : safetensors_write(path, t.tensors, list->n, err);
    }
    for (uint32_t i = 0; i < t.n_maps; i++) safetensors_close(&t.maps[i]);
    mem_free(t.maps);
    mem_free(t.tensors);
    return status;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

enum status hf_folder_link_adapter(const char *folder, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    struct err why = {0};
    if (!holds(folder, HF_FILES_ADAPTER)) return STATUS_OK;
    snprintf(path, sizeof path, "%s/%s", folder, adapter_file);
    enum status status = file_link(path, model_file, &why);
    return status == STATUS_OK || status == STATUS_UNSUPPORTED ? STATUS_OK : err_set(err, status, "%s", why.msg);
}

/* theta NULL: a copy. */
static enum status write_model(const char *path, const struct layout *layout, const float *theta, const char *files,
                               struct err *err)
{
    char frozen[FILEIO_PATH_MAX], model[FILEIO_PATH_MAX];
    struct safetensors st;
    snprintf(model, sizeof model, "%s/%s", files ? files : "", model_file);
    if (!theta) return file_copy(path, model, err);
    if (!files || !holds(files, FROZEN_FILE)) return safetensors_write_theta(path, layout, theta, NULL, err);
    snprintf(frozen, sizeof frozen, "%s/" FROZEN_FILE, files);
    TRY(safetensors_open(&st, frozen, err));
    enum status status = safetensors_write_theta(path, layout, theta, &st, err);
    safetensors_close(&st);
    return status;
}

static enum status fill_folder(const char *tmp, const struct layout *layout, const float *theta,
                               const char *config_json, const char *files, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    TRY(dir_make(tmp, err));
    snprintf(path, sizeof path, "%s/config.json", tmp);
    if (*config_json) TRY(file_write(path, config_json, strlen(config_json), err));
    if (files) TRY(hf_files_copy(files, tmp, HF_FILES_ALL | (*config_json ? 0 : HF_FILES_CONFIGS), err));
    snprintf(path, sizeof path, "%s/%s", tmp, model_file);
    TRY(write_model(path, layout, theta, files, err));
    return hf_folder_link_adapter(tmp, err);
}

enum status hf_folder_copy(const char *folder, const char *from, struct err *err)
{
    return hf_folder_write(folder, NULL, NULL, "", from, err);
}

enum status hf_folder_write(const char *folder, const struct layout *layout, const float *theta,
                            const char *config_json, const char *files, struct err *err)
{
    char target[FILEIO_PATH_MAX - 64], tmp[FILEIO_PATH_MAX - 64], parent[FILEIO_PATH_MAX];
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/') n--;
    if (!n || n >= sizeof target) return err_set(err, STATUS_INVALID, "bad folder name '%.80s'", folder);
    snprintf(target, sizeof target, "%.*s", (int)n, folder);
    TRY(temporary_name(target, tmp, sizeof tmp, err));
    snprintf(parent, sizeof parent, "%s/..", target);
    TRY(dir_remove_flat(tmp, err));
    enum status status = fill_folder(tmp, layout, theta, config_json, files, err);
    if (status == STATUS_OK) status = dir_sync(tmp, err);
    if (status == STATUS_OK) status = dir_remove_flat(folder, err);
    if (status == STATUS_OK && rename(tmp, folder) != 0)
        status = err_set(err, STATUS_IO, "cannot rename %s into place: %s", tmp, strerror(errno));
    if (status != STATUS_OK) {
        if (dir_remove_flat(tmp, NULL) != STATUS_OK) { /* err keeps the first error */
        }
        return status;
    }
    return dir_sync(parent, err);
}
