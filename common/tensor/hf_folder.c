#include "common/tensor/hf_folder.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "common/tensor/hf_files.h"
#include "common/tensor/hf_source.h"
#include "common/tensor/safetensors.h"

static bool holds(const char *folder, const char *file)
{
    char path[FILEIO_PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return file_exists(path);
}

/* --- names ------------------------------------------------------------------------------------------------------- */

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
    if (holds(folder, HF_MODEL_FILE) || holds(folder, HF_INDEX_FILE) || holds(folder, HF_ADAPTER_FILE))
        return STATUS_OK;
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
    return err_set(err, STATUS_INVALID, "%.300s holds no %s: give the folder of a model", folder, HF_MODEL_FILE);
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

static enum status load(const char *folder, const struct layout *layout, bool part, const struct frozen *others,
                        float *theta, struct err *err)
{
    struct hf_source source = {0};
    struct hf_source_tensor *tensors = mem_alloc(layout->n_tensors, sizeof *tensors);
    if (!tensors) return err_set(err, STATUS_NOMEM, "no memory to load %s", folder);
    enum status status = hf_source_open(&source, folder, err);
    if (status == STATUS_OK) status = hf_source_match(&source, folder, layout, part, others, tensors, err);
    for (uint32_t i = 0; status == STATUS_OK && i < layout->n_tensors; i++)
        status = hf_source_read(&tensors[i], theta + layout->tensors[i].offset, err);
    hf_source_close(&source);
    mem_free(tensors);
    return status;
}

enum status hf_folder_load(const char *folder, const struct layout *layout, float *theta, struct err *err)
{
    return load(folder, layout, false, NULL, theta, err);
}

enum status hf_folder_load_part(const char *folder, const struct layout *layout, const struct frozen *others,
                                float *theta, struct err *err)
{
    return load(folder, layout, true, others, theta, err);
}

/* --- tensors as they are ----------------------------------------------------------------------------------------- */

/* Sets the data of the tensors that the source holds as listed. Returns the first one that it lacks, or NULL. */
static const struct frozen_tensor *take(const struct hf_source *source, const struct frozen *list,
                                        struct safetensors_tensor *tensors)
{
    for (uint32_t f = 0; f < source->n_files; f++) {
        const struct safetensors *st = &source->files[f].st;
        for (uint32_t i = 0; i < st->n; i++) {
            const struct frozen_tensor *wanted = frozen_find(list, st->entries[i].name);
            if (wanted && frozen_is(wanted, &st->entries[i]))
                tensors[wanted - list->tensors].data = st->entries[i].data;
        }
    }
    for (uint32_t i = 0; i < list->n; i++)
        if (!tensors[i].data) return &list->tensors[i];
    return NULL;
}

enum status hf_folder_take(const char *folder, const struct frozen *list, const char *path, struct err *err)
{
    struct hf_source source = {0};
    struct safetensors_tensor *tensors = mem_alloc(list->n, sizeof *tensors);
    if (!tensors) return err_set(err, STATUS_NOMEM, "no memory to read %.300s", folder);
    frozen_entries(list, tensors);
    enum status status = hf_source_open(&source, folder, err);
    if (status == STATUS_OK) {
        const struct frozen_tensor *missing = take(&source, list, tensors);
        status = missing ? err_set(err, STATUS_NOTFOUND,
                                   "%.300s lacks the frozen tensor '%.191s' with dtype %s and its shape", folder,
                                   missing->name, missing->dtype)
                         : safetensors_write(path, tensors, list->n, err);
    }
    hf_source_close(&source);
    mem_free(tensors);
    return status;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

enum status hf_folder_link_adapter(const char *folder, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    struct err why = {0};
    if (!holds(folder, HF_FILES_ADAPTER)) return STATUS_OK;
    snprintf(path, sizeof path, "%s/" HF_ADAPTER_FILE, folder);
    enum status status = file_link(path, HF_MODEL_FILE, &why);
    return status == STATUS_OK || status == STATUS_UNSUPPORTED ? STATUS_OK : err_set(err, status, "%s", why.msg);
}

/* theta NULL: a copy. */
static enum status write_model(const char *path, const struct layout *layout, const float *theta, const char *files,
                               struct err *err)
{
    char frozen[FILEIO_PATH_MAX], model[FILEIO_PATH_MAX];
    struct safetensors st;
    snprintf(model, sizeof model, "%s/%s", files ? files : "", HF_MODEL_FILE);
    if (!theta) return file_copy(path, model, err);
    if (!files || !holds(files, FROZEN_FILE)) return safetensors_write_theta(path, layout, theta, NULL, err);
    snprintf(frozen, sizeof frozen, "%s/" FROZEN_FILE, files);
    TRY(safetensors_open(&st, frozen, err));
    enum status status = safetensors_write_theta(path, layout, theta, &st, err);
    safetensors_close(&st);
    return status;
}

enum status hf_folder_make(const char *folder, hf_folder_fill_fn *fill, void *ctx, struct err *err)
{
    char target[FILEIO_PATH_MAX - 64], tmp[FILEIO_PATH_MAX - 64], parent[FILEIO_PATH_MAX];
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/') n--;
    if (!n || n >= sizeof target) return err_set(err, STATUS_INVALID, "bad folder name '%.80s'", folder);
    snprintf(target, sizeof target, "%.*s", (int)n, folder);
    TRY(temporary_name(target, tmp, sizeof tmp, err));
    snprintf(parent, sizeof parent, "%s/..", target);
    TRY(dir_remove_flat(tmp, err));
    enum status status = dir_make(tmp, err);
    if (status == STATUS_OK) status = fill(ctx, tmp, err);
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

enum status hf_folder_fill(const char *folder, const struct layout *layout, const float *theta, const char *config_json,
                           const char *files, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    snprintf(path, sizeof path, "%s/config.json", folder);
    if (*config_json) TRY(file_write(path, config_json, strlen(config_json), err));
    if (files) TRY(hf_files_copy(files, folder, HF_FILES_ALL | (*config_json ? 0 : HF_FILES_CONFIGS), err));
    snprintf(path, sizeof path, "%s/" HF_MODEL_FILE, folder);
    TRY(write_model(path, layout, theta, files, err));
    return hf_folder_link_adapter(folder, err);
}

struct content {
    const struct layout *layout;
    const float *theta;
    const char *config_json, *files;
};

static enum status fill_model(void *ctx, const char *folder, struct err *err)
{
    const struct content *c = ctx;
    return hf_folder_fill(folder, c->layout, c->theta, c->config_json, c->files, err);
}

enum status hf_folder_write(const char *folder, const struct layout *layout, const float *theta,
                            const char *config_json, const char *files, struct err *err)
{
    struct content content = {layout, theta, config_json, files};
    return hf_folder_make(folder, fill_model, &content, err);
}

enum status hf_folder_copy(const char *folder, const char *from, struct err *err)
{
    return hf_folder_write(folder, NULL, NULL, "", from, err);
}
