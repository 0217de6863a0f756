#include "coordinator/ledger/store_disk.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"

enum { APPEND_PARTS_MAX = 16 };

/* --- segments ----------------------------------------------------------------------------------------------------- */

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static enum status open_segment(struct store_disk *d, uint64_t segment, int flags, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    store_disk_segment_path(d, segment, path);
    close_fd(&d->fd);
    close_fd(&d->read_fd);
    TRY(file_open_plain(path, flags | O_WRONLY, FILE_PUBLIC, &d->fd, err));
    d->segment = segment;
    return STATUS_OK;
}

static enum status segment_begin(struct store *s, uint64_t segment, struct err *err)
{
    struct store_disk *d = store_disk_of(s);
    char path[FILEIO_PATH_MAX];
    TRY(open_segment(d, segment, O_CREAT | O_EXCL, err));
    d->size = 0;
    snprintf(path, sizeof path, "%s/journal%s", d->dir, d->next);
    return dir_sync(path, err);
}

static enum status segment_continue(struct store *s, uint64_t segment, uint64_t size, struct err *err)
{
    struct store_disk *d = store_disk_of(s);
    TRY(open_segment(d, segment, 0, err));
    if (ftruncate(d->fd, (off_t)size) || fsync(d->fd) || lseek(d->fd, (off_t)size, SEEK_SET) < 0)
        return store_disk_fail(err, "continue", "the journal");
    d->size = size;
    return STATUS_OK;
}

static enum status write_all(int fd, struct iovec *iov, int n)
{
    while (n > 0) {
        ssize_t done = writev(fd, iov, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return STATUS_IO;
        for (; n > 0 && (size_t)done >= iov->iov_len; iov++, n--) done -= (ssize_t)iov->iov_len;
        assert(done >= 0 && (n > 0 || done == 0)); /* writev wrote at most the requested bytes */
        if (n > 0) {
            iov->iov_base = (char *)iov->iov_base + done;
            iov->iov_len -= (size_t)done;
        }
    }
    return STATUS_OK;
}

static enum status append(struct store *s, const struct store_part *parts, size_t n, struct err *err)
{
    struct store_disk *d = store_disk_of(s);
    struct iovec iov[APPEND_PARTS_MAX];
    uint64_t size = 0;
    if (n > APPEND_PARTS_MAX || d->fd < 0) return err_set(err, STATUS_STATE, "journal append out of order");
    for (size_t i = 0; i < n; i++) {
        iov[i] = (struct iovec){(void *)(uintptr_t)parts[i].data, parts[i].size};
        size += parts[i].size;
    }
    if (write_all(d->fd, iov, (int)n) != STATUS_OK) {
        char path[FILEIO_PATH_MAX];
        int cause = errno;
        store_disk_segment_path(d, d->segment, path);
        /* Remove the torn record. If this fails, too, recovery removes it. */
        if (ftruncate(d->fd, (off_t)d->size)) {
        }
        errno = cause;
        return store_disk_fail(err, "append to", path);
    }
    d->size += size;
    return STATUS_OK;
}

static enum status sync_segment(struct store *s, struct err *err)
{
    assert(store_disk_of(s)->fd >= 0); /* journal_sync syncs what it appended */
    return fdatasync(store_disk_of(s)->fd) ? store_disk_fail(err, "sync", "the journal") : STATUS_OK;
}

static enum status segment_read(struct store *s, uint64_t segment, uint64_t offset, void *dst, size_t size,
                                struct err *err)
{
    struct store_disk *d = store_disk_of(s);
    char path[FILEIO_PATH_MAX];
    store_disk_segment_path(d, segment, path);
    if (d->read_fd < 0 || d->read_segment != segment) {
        close_fd(&d->read_fd);
        TRY(file_open_plain(path, O_RDONLY, 0, &d->read_fd, err));
        d->read_segment = segment;
    }
    return store_disk_read_exact(d->read_fd, offset, dst, size, path, err);
}

static enum status segment_size(struct store *s, uint64_t segment, uint64_t *size_p, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    struct stat st;
    store_disk_segment_path(store_disk_of(s), segment, path);
    if (stat(path, &st)) return store_disk_fail(err, "examine", path);
    *size_p = (uint64_t)st.st_size;
    return STATUS_OK;
}

static const char *folder_of(struct store *s)
{
    return store_disk_of(s)->dir;
}

static uint64_t free_bytes(struct store *s)
{
    struct statvfs disk;
    return statvfs(store_disk_of(s)->dir, &disk) ? UINT64_MAX : (uint64_t)disk.f_bavail * disk.f_frsize;
}

static uint64_t total_bytes(struct store *s)
{
    struct statvfs disk;
    return statvfs(store_disk_of(s)->dir, &disk) ? UINT64_MAX : (uint64_t)disk.f_blocks * disk.f_frsize;
}

static enum status segment_list(struct store *s, uint64_t *out, size_t cap, size_t *n_p, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    snprintf(path, sizeof path, "%s/journal%s", store_disk_of(s)->dir, store_disk_of(s)->next);
    return store_disk_list_numbers(path, "", ".log", out, cap, n_p, err);
}

static enum status segment_remove(struct store *s, uint64_t segment, struct err *err)
{
    struct store_disk *d = store_disk_of(s);
    char path[FILEIO_PATH_MAX];
    if (d->read_segment == segment) close_fd(&d->read_fd);
    store_disk_segment_path(d, segment, path);
    return unlink(path) && errno != ENOENT ? store_disk_fail(err, "remove", path) : STATUS_OK;
}

/* --- spool -------------------------------------------------------------------------------------------------------- */

static enum status store_spool_write(struct store *s, uint64_t offset, const void *data, size_t size, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    snprintf(path, sizeof path, "%s/journal", store_disk_of(s)->dir);
    return spool_write(&store_disk_of(s)->spool, path, offset, data, size, err);
}

static enum status store_spool_read(struct store *s, uint64_t offset, void *dst, size_t size, struct err *err)
{
    return spool_read(&store_disk_of(s)->spool, offset, dst, size, err);
}

static void store_spool_forget(struct store *s, uint64_t offset, uint64_t size)
{
    spool_forget(&store_disk_of(s)->spool, offset, size);
}

static struct init_folder *store_init_folder(struct store *s)
{
    return &store_disk_of(s)->init;
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

static void store_disk_close(struct store *s)
{
    struct store_disk *d = store_disk_of(s);
    close_fd(&d->fd);
    close_fd(&d->read_fd);
    store_disk_unmap(d);
    init_folder_close(&d->init);
    spool_close(&d->spool);
    mem_free(d->dir);
    mem_free(d);
}

static const struct store_ops disk_ops = {
    .segment_begin = segment_begin,
    .segment_continue = segment_continue,
    .append = append,
    .sync = sync_segment,
    .segment_read = segment_read,
    .segment_size = segment_size,
    .free_bytes = free_bytes,
    .folder = folder_of,
    .total_bytes = total_bytes,
    .segment_list = segment_list,
    .segment_remove = segment_remove,
    .segment_put_aside = store_disk_segment_put_aside,
    .files_keep = store_disk_files_keep,
    .file_size = store_disk_file_size,
    .file_read = store_disk_file_read,
    .init_folder = store_init_folder,
    .checkpoint_write = store_disk_checkpoint_write,
    .checkpoint_list = store_disk_checkpoint_list,
    .checkpoint_state_size = store_disk_checkpoint_state_size,
    .checkpoint_state_read = store_disk_checkpoint_state_read,
    .checkpoint_theta_read = store_disk_checkpoint_theta_read,
    .checkpoint_put_aside = store_disk_checkpoint_put_aside,
    .checkpoint_remove = store_disk_checkpoint_remove,
    .checkpoint_keep = store_disk_checkpoint_keep,
    .checkpoint_keep_end = store_disk_checkpoint_keep_end,
    .spool_write = store_spool_write,
    .spool_read = store_spool_read,
    .spool_forget = store_spool_forget,
    .close = store_disk_close,
};

static enum status make(struct store_disk **d_p, const char *run_dir, const char *next, struct err *err)
{
    if (strlen(run_dir) > FILEIO_PATH_MAX - 128)
        return err_set(err, STATUS_INVALID, "the path of the run folder is too long");
    struct store_disk *d = mem_alloc(1, sizeof *d);
    if (!d) return err_set(err, STATUS_NOMEM, "no memory for the store");
    *d = (struct store_disk){.base.ops = &disk_ops,
                             .fd = -1,
                             .read_fd = -1,
                             .init.fd = -1,
                             .spool.fd = -1,
                             .next = next,
                             .dir = mem_strdup(run_dir)};
    if (!d->dir) {
        mem_free(d);
        return err_set(err, STATUS_NOMEM, "no memory for the store");
    }
    *d_p = d;
    return STATUS_OK;
}

static enum status prepare(struct store_disk *d, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    snprintf(path, sizeof path, "%s/journal%s", d->dir, d->next);
    TRY(dir_make(path, err));
    snprintf(path, sizeof path, "%s/checkpoints%s", d->dir, d->next);
    return dir_make(path, err);
}

static enum status open_now(struct store_disk *d, struct err *err)
{
    TRY(prepare(d, err));
    TRY(init_folder_open(&d->init, d->dir, err));
    return store_disk_sweep(d, err);
}

static enum status open_with(struct store **store_p, const char *run_dir, const char *next,
                             enum status (*ready)(struct store_disk *d, struct err *err), struct err *err)
{
    struct store_disk *d = NULL;
    TRY(make(&d, run_dir, next, err));
    enum status status = ready(d, err);
    if (status != STATUS_OK) {
        store_disk_close(&d->base);
        return status;
    }
    *store_p = &d->base;
    return STATUS_OK;
}

enum status store_disk_open(struct store **store_p, const char *run_dir, struct err *err)
{
    return open_with(store_p, run_dir, "", open_now, err);
}

enum status store_disk_open_next(struct store **store_p, const char *run_dir, struct err *err)
{
    return open_with(store_p, run_dir, STORE_NEXT, prepare, err);
}

static enum status ready_to_read(struct store_disk *d, struct err *err)
{
    (void)d, (void)err;
    return STATUS_OK;
}

enum status store_disk_open_read(struct store **store_p, const char *run_dir, struct err *err)
{
    return open_with(store_p, run_dir, "", ready_to_read, err);
}
