#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "coordinator/ledger/store_disk.h"

enum { TRIES = 100, COPY_BYTES = 1 << 20 };

/* Writes NAME.damaged-20261124-143015 to out, with a number behind it if that name is taken. `path`: NAME's. */
static enum status free_name(const char *path, const char *name, char *out, size_t cap, struct err *err)
{
    char date[32], at[FILEIO_PATH_MAX];
    time_t now = time(NULL);
    struct tm tm;
    struct stat st;
    if (!localtime_r(&now, &tm) || !strftime(date, sizeof date, "%Y%m%d-%H%M%S", &tm))
        return err_set(err, STATUS_IO, "cannot read the time");
    for (int i = 0; i < TRIES; i++) {
        if (snprintf(out, cap, i ? "%s.damaged-%s-%d" : "%s.damaged-%s", name, date, i) >= (int)cap) break;
        if (snprintf(at, sizeof at, "%.*s%s", (int)(strlen(path) - strlen(name)), path, out) >= (int)sizeof at) break;
        if (lstat(at, &st) && errno == ENOENT) return STATUS_OK;
    }
    return err_set(err, STATUS_IO, "cannot find a new name for %.300s", path);
}

enum status store_disk_checkpoint_put_aside(struct store *s, uint64_t round, char *name, size_t cap, struct err *err)
{
    struct store_disk *d = store_disk_of(s);
    char from[FILEIO_PATH_MAX], to[FILEIO_PATH_MAX], folder[64];
    store_disk_unmap(d);
    snprintf(folder, sizeof folder, "round_%06llu", (unsigned long long)round);
    snprintf(from, sizeof from, "%s/checkpoints/%s", d->dir, folder);
    TRY(free_name(from, folder, name, cap, err));
    snprintf(to, sizeof to, "%s/checkpoints/%s", d->dir, name);
    if (rename(from, to)) return store_disk_fail(err, "rename", from);
    snprintf(to, sizeof to, "%s/checkpoints", d->dir);
    TRY(dir_sync(to, err));
    return store_disk_name_latest(d, err);
}

/* Makes RUN/journal.damaged-DATE at the first call. */
static enum status make_aside(struct store_disk *d, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    if (d->aside[0]) return STATUS_OK;
    snprintf(path, sizeof path, "%s/journal", d->dir);
    TRY(free_name(path, "journal", d->aside, sizeof d->aside, err));
    snprintf(path, sizeof path, "%s/%s", d->dir, d->aside);
    return dir_make(path, err);
}

/* Copies the first `size` bytes of `path` to a file that file_out_commit renames to `path`, durably. */
static enum status copy_head(struct file_out *out, const char *path, uint64_t size, struct err *err)
{
    int fd = -1;
    uint8_t *piece = mem_alloc(1, COPY_BYTES);
    enum status status = piece ? STATUS_OK : err_set(err, STATUS_NOMEM, "no memory to copy %.300s", path);
    if (status == STATUS_OK) status = file_open_plain(path, O_RDONLY, 0, &fd, err);
    if (status == STATUS_OK) status = file_out_open(out, path, err);
    for (uint64_t at = 0; status == STATUS_OK && at < size;) {
        size_t n = size - at < COPY_BYTES ? (size_t)(size - at) : COPY_BYTES;
        status = store_disk_read_exact(fd, at, piece, n, path, err);
        if (status == STATUS_OK) status = file_out_put(out, piece, n, err);
        at += n;
    }
    if (status == STATUS_OK) status = file_out_sync(out, err);
    if (fd >= 0) close(fd);
    mem_free(piece);
    return status;
}

/* Gives a file of the journal a second name in the folder `aside`, durably, or only that name on a disk without hard
 * links. No byte is read, because the disk may be unable to. */
static enum status name_aside(const char *from, const char *to, const char *aside, struct err *err)
{
    if (link(from, to) && rename(from, to)) return store_disk_fail(err, "move", from);
    return dir_sync(aside, err);
}

enum status store_disk_segment_put_aside(struct store *s, uint64_t segment, uint64_t keep, char *name, size_t cap,
                                         struct err *err)
{
    struct store_disk *d = store_disk_of(s);
    char from[FILEIO_PATH_MAX], to[FILEIO_PATH_MAX], folder[FILEIO_PATH_MAX];
    struct file_out head = {.fd = -1};
    enum status status = STATUS_OK;
    TRY(make_aside(d, err));
    store_disk_segment_path(d, segment, from);
    if (d->read_fd >= 0) close(d->read_fd);
    d->read_fd = -1;
    snprintf(name, cap, "%s/%08llu.log", d->aside, (unsigned long long)segment);
    snprintf(to, sizeof to, "%s/%s", d->dir, name);
    snprintf(folder, sizeof folder, "%s/%s", d->dir, d->aside);
    if (keep != STORE_KEEP_NONE) status = copy_head(&head, from, keep, err);
    if (status == STATUS_OK) status = name_aside(from, to, folder, err);
    if (status == STATUS_OK && keep != STORE_KEEP_NONE) status = file_out_commit(&head, err);
    file_out_abort(&head);
    if (status == STATUS_OK && keep == STORE_KEEP_NONE && unlink(from) && errno != ENOENT)
        status = store_disk_fail(err, "move", from);
    snprintf(folder, sizeof folder, "%s/journal", d->dir);
    return status == STATUS_OK ? dir_sync(folder, err) : status;
}
