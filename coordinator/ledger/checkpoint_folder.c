#include "coordinator/ledger/checkpoint_folder.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/os/fileio.h"
#include "common/tensor/hf_folder.h"
#include "coordinator/ledger/checkpoint.h"
#include "coordinator/ledger/store_disk.h"

/* A store that can only read this checkpoint. */
struct folder_store {
    struct store base;
    const char *folder;
    char path[FILEIO_PATH_MAX]; /* of coordinator_state.bin */
    int fd;
};

static enum status state_size(struct store *s, uint64_t round, uint64_t *size_p, struct err *err)
{
    struct folder_store *f = (struct folder_store *)s;
    struct stat st;
    (void)round;
    if (fstat(f->fd, &st)) return store_disk_fail(err, "examine", f->path);
    *size_p = (uint64_t)st.st_size;
    return STATUS_OK;
}

static enum status state_read(struct store *s, uint64_t round, uint64_t offset, void *dst, size_t size, struct err *err)
{
    struct folder_store *f = (struct folder_store *)s;
    (void)round;
    return store_disk_read_exact(f->fd, offset, dst, size, f->path, err);
}

static enum status theta_read(struct store *s, uint64_t round, const struct layout *layout, uint64_t first, float *dst,
                              uint64_t count, struct err *err)
{
    (void)round;
    assert(!first && count == layout->n_params);
    return hf_folder_load_part(((struct folder_store *)s)->folder, layout, NULL, dst, err);
}

static const struct store_ops folder_ops = {
    .checkpoint_state_size = state_size, .checkpoint_state_read = state_read, .checkpoint_theta_read = theta_read};

enum status checkpoint_folder_check(const char *folder, bool *recorded_p, struct err *err)
{
    struct folder_store f = {.base.ops = &folder_ops, .folder = folder, .fd = -1};
    struct checkpoint_info info;
    if (snprintf(f.path, sizeof f.path, "%s/coordinator_state.bin", folder) >= (int)sizeof f.path)
        return err_set(err, STATUS_LIMIT, "the path of %.200s is too long", folder);
    *recorded_p = file_exists(f.path);
    if (!*recorded_p) return STATUS_OK;
    TRY(file_open_plain(f.path, O_RDONLY, 0, &f.fd, err));
    struct err why = {0};
    enum status status = checkpoint_check(&f.base, CHECKPOINT_ANY, &info, &why);
    close(f.fd);
    if (status == STATUS_UNSUPPORTED) {
        log_warn("%s: coordinator_state.bin is of another release, so the hashes in it are not compared", folder);
        *recorded_p = false;
        return STATUS_OK;
    }
    if (status != STATUS_OK) err_set(err, status, "%s", why.msg);
    if (status == STATUS_CORRUPT && err && !strstr(err->msg, folder)) err_prefix(err, "%.300s", folder);
    return status;
}

enum status checkpoint_folder_look(const char *folder, uint64_t round, struct checkpoint_info *info, struct err *err)
{
    struct folder_store f = {.base.ops = &folder_ops, .folder = folder, .fd = -1};
    if (snprintf(f.path, sizeof f.path, "%s/coordinator_state.bin", folder) >= (int)sizeof f.path)
        return err_set(err, STATUS_LIMIT, "the path of %.200s is too long", folder);
    TRY(file_open_plain(f.path, O_RDONLY, 0, &f.fd, err));
    enum status status = checkpoint_look(&f.base, round, info, err);
    close(f.fd);
    return status;
}
