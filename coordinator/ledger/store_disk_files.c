#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "common/tensor/hf_files.h"
#include "common/tensor/hf_folder.h"
#include "coordinator/ledger/store_disk.h"

void store_disk_files_path(const struct store_disk *d, char out[FILEIO_PATH_MAX])
{
    snprintf(out, FILEIO_PATH_MAX, "%s/tokenizer", d->dir);
}

/* Whether the folder's tokenizer.json equals `text`. If so, the other files there belong to this tokenizer. */
static bool is_of_folder(const char *folder, const void *text, size_t size)
{
    char path[FILEIO_PATH_MAX];
    void *other;
    size_t n;
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    if (file_read(path, size, &other, &n, NULL) != STATUS_OK) return false;
    bool same = n == size && !memcmp(other, text, n);
    mem_free(other);
    return same;
}

/* A folder with a model but no config.json is not a checkpoint of a run, so no run removes it. */
static bool is_bare(const char *folder)
{
    return hf_files_check_config(folder, NULL) != STATUS_OK && hf_folder_check(folder, NULL) == STATUS_OK;
}

static enum status fill(const char *folder, const char *init_dir, const void *text, size_t size, bool configs,
                        struct err *err)
{
    bool all = init_dir && (!text || is_of_folder(init_dir, text, size)), bare = init_dir && is_bare(init_dir);
    char path[FILEIO_PATH_MAX];
    TRY(dir_make(folder, err));
    unsigned kinds = (all ? HF_FILES_ALL : HF_FILES_GENERATION) | (configs ? HF_FILES_CONFIGS : 0);
    if (init_dir) TRY(hf_files_copy(init_dir, folder, kinds, err));
    if (init_dir && !bare) TRY(hf_files_check_config(init_dir, err));
    if (text && !all) {
        snprintf(path, sizeof path, "%s/tokenizer.json", folder);
        TRY(file_write(path, text, size, err));
    }
    return dir_sync(folder, err);
}

/* Links the file that a worker uploaded; another file system gets a copy. */
static enum status take_frozen(const char *init_dir, const struct frozen *frozen, const char *path, struct err *err)
{
    char uploaded[FILEIO_PATH_MAX];
    snprintf(uploaded, sizeof uploaded, "%s/" FROZEN_FILE, init_dir);
    bool there = file_exists(uploaded);
    if (there && !link(uploaded, path)) return STATUS_OK;
    if (!there) return hf_folder_take(init_dir, frozen, path, err);
    return file_copy(path, uploaded, err);
}

static enum status keep_frozen(const char *folder, const char *init_dir, const struct frozen *frozen, struct err *err)
{
    char path[FILEIO_PATH_MAX + 32];
    struct err why = {0};
    if (!init_dir) return STATUS_OK;
    snprintf(path, sizeof path, "%s/" FROZEN_FILE, folder);
    enum status status = take_frozen(init_dir, frozen, path, &why);
    if (status == STATUS_OK) return dir_sync(folder, err);
    if (status != STATUS_NOTFOUND) return err_set(err, status, "%s", why.msg);
    log_warn("writing checkpoints without the frozen tensors (%u): %s", frozen->n, why.msg);
    return STATUS_OK;
}

/* A run that continues. */
static enum status note_frozen(const char *folder, const struct frozen *frozen)
{
    char path[FILEIO_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/" FROZEN_FILE, folder);
    if (frozen && !file_exists(path))
        log_warn("writing checkpoints without the frozen tensors (%u): %.300s does not exist", frozen->n, path);
    return STATUS_OK;
}

enum status store_disk_files_keep(struct store *s, const char *init_dir, const char *tokenizer, bool configs,
                                  const struct frozen *frozen, bool anew, struct err *err)
{
    const struct store_disk *d = store_disk_of(s);
    char path[FILEIO_PATH_MAX], made[FILEIO_PATH_MAX - 64];
    void *text = NULL;
    size_t size = 0;
    store_disk_files_path(d, path);
    if (!anew && file_exists(path)) return note_frozen(path, frozen);
    if (!init_dir && !tokenizer) return store_disk_make_way(path, err);
    if (init_dir && !file_exists(init_dir)) return err_set(err, STATUS_NOTFOUND, "folder not found: %s", init_dir);
    TRY(temporary_name(path, made, sizeof made, err));
    TRY(dir_remove_flat(made, err));
    if (tokenizer) TRY(hf_tokenizer_read(tokenizer, &text, &size, err));
    enum status status = fill(made, init_dir, text, size, configs, err);
    mem_free(text);
    if (status == STATUS_OK && frozen) status = keep_frozen(made, init_dir, frozen, err);
    if (status == STATUS_OK) status = store_disk_make_way(path, err); /* a new run: an existing file is foreign */
    if (status == STATUS_OK && rename(made, path)) status = store_disk_fail(err, "rename", made);
    return status == STATUS_OK ? dir_sync(d->dir, err) : status;
}

static void file_path(struct store *s, const char *name, char out[2 * FILEIO_PATH_MAX])
{
    char folder[FILEIO_PATH_MAX];
    store_disk_files_path(store_disk_of(s), folder);
    snprintf(out, 2 * FILEIO_PATH_MAX, "%s/%s", folder, name);
}

enum status store_disk_file_size(struct store *s, const char *name, uint64_t *size_p)
{
    char path[2 * FILEIO_PATH_MAX];
    struct stat st;
    file_path(s, name, path);
    if (stat(path, &st) || !S_ISREG(st.st_mode)) return STATUS_NOTFOUND;
    *size_p = (uint64_t)st.st_size;
    return STATUS_OK;
}

enum status store_disk_file_read(struct store *s, const char *name, uint64_t offset, void *dst, size_t size,
                                 struct err *err)
{
    char path[2 * FILEIO_PATH_MAX];
    int fd;
    file_path(s, name, path);
    TRY(file_open_plain(path, O_RDONLY, 0, &fd, err));
    enum status status = store_disk_read_exact(fd, offset, dst, size, path, err);
    close(fd);
    return status;
}
