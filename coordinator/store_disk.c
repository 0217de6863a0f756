#include "coordinator/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/fileio.h"
#include "common/hf_folder.h"
#include "common/mem.h"
#include "common/safetensors.h"
#include "coordinator/spool.h"

enum { PATH_ROOM = FILEIO_PATH_MAX, APPEND_PARTS_MAX = 16, WRITE_MAX = 1 << 30 };

struct store_disk {
    struct store base;
    char *dir; /* RUN */
    int fd;    /* segment that takes appends, -1 */
    uint64_t segment, size;
    int read_fd; /* segment read last, -1 */
    uint64_t read_segment;
    bool mapped; /* model.safetensors of a snapshot, read last */
    uint64_t map_round;
    struct safetensors map;
    struct spool spool;
};

static struct store_disk *of(struct store *s)
{
    return (struct store_disk *)s;
}

static enum status fail(struct err *err, const char *what, const char *path)
{
    return err_set(err, STATUS_IO, "cannot %s %.300s: %s", what, path, strerror(errno));
}

static void segment_path(const struct store_disk *d, uint64_t segment, char out[PATH_ROOM])
{
    snprintf(out, PATH_ROOM, "%s/journal/%08llu.log", d->dir, (unsigned long long)segment);
}

static void snapshot_path(const struct store_disk *d, uint64_t round, const char *file, char out[PATH_ROOM])
{
    snprintf(out, PATH_ROOM, "%s/checkpoints/round_%06llu%s%s", d->dir, (unsigned long long)round, file[0] ? "/" : "",
             file);
}

/* --- segments ----------------------------------------------------------------------------------------------------- */

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static enum status open_segment(struct store_disk *d, uint64_t segment, int flags, struct err *err)
{
    char path[PATH_ROOM];
    segment_path(d, segment, path);
    close_fd(&d->fd);
    close_fd(&d->read_fd);
    d->fd = open(path, flags | O_WRONLY | O_CLOEXEC, 0666);
    if (d->fd < 0) return fail(err, "open", path);
    d->segment = segment;
    return STATUS_OK;
}

static enum status segment_begin(struct store *s, uint64_t segment, struct err *err)
{
    struct store_disk *d = of(s);
    char path[PATH_ROOM];
    TRY(open_segment(d, segment, O_CREAT | O_EXCL, err));
    d->size = 0;
    snprintf(path, sizeof path, "%s/journal", d->dir);
    return dir_sync(path, err);
}

static enum status segment_continue(struct store *s, uint64_t segment, uint64_t size, struct err *err)
{
    struct store_disk *d = of(s);
    TRY(open_segment(d, segment, 0, err));
    if (ftruncate(d->fd, (off_t)size) || fsync(d->fd) || lseek(d->fd, (off_t)size, SEEK_SET) < 0)
        return fail(err, "continue", "the journal");
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
        if (n > 0) {
            iov->iov_base = (char *)iov->iov_base + done;
            iov->iov_len -= (size_t)done;
        }
    }
    return STATUS_OK;
}

static enum status append(struct store *s, const struct store_part *parts, size_t n, struct err *err)
{
    struct store_disk *d = of(s);
    struct iovec iov[APPEND_PARTS_MAX];
    uint64_t size = 0;
    if (n > APPEND_PARTS_MAX || d->fd < 0) return err_set(err, STATUS_STATE, "journal append out of order");
    for (size_t i = 0; i < n; i++) {
        iov[i] = (struct iovec){(void *)(uintptr_t)parts[i].data, parts[i].size};
        size += parts[i].size;
    }
    if (write_all(d->fd, iov, (int)n) != STATUS_OK) {
        char path[PATH_ROOM];
        int cause = errno;
        segment_path(d, d->segment, path);
        /* Nothing half-written stays; if this fails too, recovery drops the torn record. */
        if (ftruncate(d->fd, (off_t)d->size)) {
        }
        errno = cause;
        return fail(err, "append to", path);
    }
    d->size += size;
    return STATUS_OK;
}

static enum status sync_segment(struct store *s, struct err *err)
{
    return fdatasync(of(s)->fd) ? fail(err, "sync", "the journal") : STATUS_OK;
}

static enum status read_exact(int fd, uint64_t offset, void *dst, size_t size, const char *path, struct err *err)
{
    for (size_t got = 0; got < size;) {
        size_t want = size - got < WRITE_MAX ? size - got : WRITE_MAX;
        ssize_t n = pread(fd, (char *)dst + got, want, (off_t)(offset + got));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail(err, "read", path);
        if (n == 0) return err_set(err, STATUS_CORRUPT, "%.300s is shorter than it should be", path);
        got += (size_t)n;
    }
    return STATUS_OK;
}

static enum status segment_read(struct store *s, uint64_t segment, uint64_t offset, void *dst, size_t size,
                                struct err *err)
{
    struct store_disk *d = of(s);
    char path[PATH_ROOM];
    segment_path(d, segment, path);
    if (d->read_fd < 0 || d->read_segment != segment) {
        close_fd(&d->read_fd);
        d->read_fd = open(path, O_RDONLY | O_CLOEXEC);
        if (d->read_fd < 0) return fail(err, "open", path);
        d->read_segment = segment;
    }
    return read_exact(d->read_fd, offset, dst, size, path, err);
}

static enum status segment_size(struct store *s, uint64_t segment, uint64_t *size_p, struct err *err)
{
    char path[PATH_ROOM];
    struct stat st;
    segment_path(of(s), segment, path);
    if (stat(path, &st)) return fail(err, "examine", path);
    *size_p = (uint64_t)st.st_size;
    return STATUS_OK;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Numbers of names PREFIX<digits>SUFFIX in a folder, ascending. */
static enum status list_numbers(const char *path, const char *prefix, const char *suffix, uint64_t *out, size_t cap,
                                size_t *n_p, struct err *err)
{
    DIR *dir = opendir(path);
    if (!dir) return fail(err, "list", path);
    enum status status = STATUS_OK;
    size_t n = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        size_t skip = strlen(prefix), digits;
        if (strncmp(e->d_name, prefix, skip) != 0) continue;
        digits = strspn(e->d_name + skip, "0123456789");
        if (!digits || digits > 18 || strcmp(e->d_name + skip + digits, suffix) != 0) continue;
        if (n == cap) {
            status = err_set(err, STATUS_LIMIT, "too many files in %.300s", path);
            break;
        }
        out[n++] = strtoull(e->d_name + skip, NULL, 10);
    }
    closedir(dir);
    qsort(out, n, sizeof *out, by_value);
    *n_p = n;
    return status;
}

static enum status segment_list(struct store *s, uint64_t *out, size_t cap, size_t *n_p, struct err *err)
{
    char path[PATH_ROOM];
    snprintf(path, sizeof path, "%s/journal", of(s)->dir);
    return list_numbers(path, "", ".log", out, cap, n_p, err);
}

static enum status segment_remove(struct store *s, uint64_t segment, struct err *err)
{
    struct store_disk *d = of(s);
    char path[PATH_ROOM];
    if (d->read_segment == segment) close_fd(&d->read_fd);
    segment_path(d, segment, path);
    return unlink(path) && errno != ENOENT ? fail(err, "remove", path) : STATUS_OK;
}

/* --- snapshots ---------------------------------------------------------------------------------------------------- */

static void unmap(struct store_disk *d)
{
    if (d->mapped) safetensors_close(&d->map);
    d->mapped = false;
}

static enum status write_state(const char *path, const struct store_snapshot *in, struct err *err)
{
    struct file_out out = {.fd = -1};
    enum status status = file_out_open(&out, path, err);
    for (size_t i = 0; status == STATUS_OK && i < in->n_state; i++)
        status = file_out_put(&out, in->state[i].data, in->state[i].size, err);
    if (status == STATUS_OK) status = file_out_commit(&out, err);
    if (status != STATUS_OK) file_out_abort(&out);
    return status;
}

static enum status snapshot_remove(struct store *s, uint64_t round, struct err *err)
{
    struct store_disk *d = of(s);
    char path[PATH_ROOM];
    if (d->map_round == round) unmap(d);
    /* The state goes first: what remains of a half-removed folder is no snapshot. */
    snapshot_path(d, round, "coordinator_state.bin", path);
    if (unlink(path) && errno != ENOENT && errno != ENOTDIR) return fail(err, "remove", path);
    snapshot_path(d, round, "", path);
    return dir_remove_flat(path, err);
}

static enum status snapshot_write(struct store *s, const struct store_snapshot *in, struct err *err)
{
    struct store_disk *d = of(s);
    char path[PATH_ROOM], name[64];
    TRY(snapshot_remove(s, in->round, err));
    snapshot_path(d, in->round, "", path);
    enum status status = hf_folder_write(path, in->layout, in->theta, in->config_json, in->tokenizer_json, err);
    if (status == STATUS_OK) {
        snapshot_path(d, in->round, "coordinator_state.bin", path);
        status = write_state(path, in, err);
    }
    if (status != STATUS_OK) {
        if (snapshot_remove(s, in->round, NULL) != STATUS_OK) { /* the first error is the one to report */
        }
        return status;
    }
    snprintf(path, sizeof path, "%s/checkpoints/latest", d->dir);
    snprintf(name, sizeof name, "round_%06llu\n", (unsigned long long)in->round);
    return file_write(path, name, strlen(name), err);
}

static enum status snapshot_list(struct store *s, uint64_t *out, size_t cap, size_t *n_p, struct err *err)
{
    struct store_disk *d = of(s);
    char path[PATH_ROOM];
    size_t n, kept = 0;
    snprintf(path, sizeof path, "%s/checkpoints", d->dir);
    TRY(list_numbers(path, "round_", "", out, cap, &n, err));
    for (size_t i = 0; i < n; i++) {
        snapshot_path(d, out[i], "coordinator_state.bin", path);
        if (file_exists(path)) out[kept++] = out[i];
    }
    *n_p = kept;
    return STATUS_OK;
}

static enum status snapshot_state_size(struct store *s, uint64_t round, uint64_t *size_p, struct err *err)
{
    char path[PATH_ROOM];
    struct stat st;
    snapshot_path(of(s), round, "coordinator_state.bin", path);
    if (stat(path, &st)) return fail(err, "examine", path);
    *size_p = (uint64_t)st.st_size;
    return STATUS_OK;
}

static enum status snapshot_state_read(struct store *s, uint64_t round, uint64_t offset, void *dst, size_t size,
                                       struct err *err)
{
    char path[PATH_ROOM];
    snapshot_path(of(s), round, "coordinator_state.bin", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(err, "open", path);
    enum status status = read_exact(fd, offset, dst, size, path, err);
    close(fd);
    return status;
}

/* The part of [first, first + count) that lies in one tensor. */
static enum status copy_tensor(const struct safetensors *st, const struct tensor *t, uint64_t first, float *dst,
                               uint64_t count, struct err *err)
{
    uint64_t from = t->offset > first ? t->offset : first;
    uint64_t to = t->offset + t->count < first + count ? t->offset + t->count : first + count;
    if (from >= to) return STATUS_OK;
    const struct safetensors_entry *e = safetensors_find(st, t->name);
    if (!e || strcmp(e->dtype, "F32") != 0 || e->count != t->count)
        return err_set(err, STATUS_CORRUPT, "a checkpoint's tensor '%s' is missing or has another shape", t->name);
    memcpy(dst + (from - first), e->data + (from - t->offset) * sizeof *dst, (to - from) * sizeof *dst);
    return STATUS_OK;
}

static enum status snapshot_theta_read(struct store *s, uint64_t round, const struct layout *layout, uint64_t first,
                                       float *dst, uint64_t count, struct err *err)
{
    struct store_disk *d = of(s);
    char path[PATH_ROOM];
    if (!d->mapped || d->map_round != round) {
        unmap(d);
        snapshot_path(d, round, "model.safetensors", path);
        TRY(safetensors_open(&d->map, path, err));
        d->mapped = true;
        d->map_round = round;
    }
    if (first > layout->n_params || count > layout->n_params - first)
        return err_set(err, STATUS_CORRUPT, "read past the end of a checkpoint");
    for (uint32_t i = 0; i < layout->n_tensors; i++)
        TRY(copy_tensor(&d->map, &layout->tensors[i], first, dst, count, err));
    return STATUS_OK;
}

/* --- what is arriving --------------------------------------------------------------------------------------------- */

static enum status store_spool_write(struct store *s, uint64_t offset, const void *data, size_t size, struct err *err)
{
    char path[PATH_ROOM];
    snprintf(path, sizeof path, "%s/journal", of(s)->dir);
    return spool_write(&of(s)->spool, path, offset, data, size, err);
}

static enum status store_spool_read(struct store *s, uint64_t offset, void *dst, size_t size, struct err *err)
{
    return spool_read(&of(s)->spool, offset, dst, size, err);
}

static void store_spool_forget(struct store *s, uint64_t offset, uint64_t size)
{
    spool_forget(&of(s)->spool, offset, size);
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

static void store_disk_close(struct store *s)
{
    struct store_disk *d = of(s);
    close_fd(&d->fd);
    close_fd(&d->read_fd);
    unmap(d);
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
    .segment_list = segment_list,
    .segment_remove = segment_remove,
    .snapshot_write = snapshot_write,
    .snapshot_list = snapshot_list,
    .snapshot_state_size = snapshot_state_size,
    .snapshot_state_read = snapshot_state_read,
    .snapshot_theta_read = snapshot_theta_read,
    .snapshot_remove = snapshot_remove,
    .spool_write = store_spool_write,
    .spool_read = store_spool_read,
    .spool_forget = store_spool_forget,
    .close = store_disk_close,
};

/* Folders a crash left under temporary names, or without the state that makes them snapshots. */
static enum status sweep(struct store_disk *d, struct err *err)
{
    char path[PATH_ROOM], sub[PATH_ROOM];
    snprintf(path, sizeof path, "%s/checkpoints", d->dir);
    DIR *dir = opendir(path);
    if (!dir) return fail(err, "list", path);
    enum status status = STATUS_OK;
    for (struct dirent *e; status == STATUS_OK && (e = readdir(dir));) {
        if (strncmp(e->d_name, "round_", 6) != 0) continue;
        if (snprintf(sub, sizeof sub, "%s/%s/coordinator_state.bin", path, e->d_name) >= (int)sizeof sub) continue;
        bool whole = file_exists(sub) && !strstr(e->d_name, ".tmp");
        sub[strlen(sub) - strlen("/coordinator_state.bin")] = 0;
        if (!whole) status = dir_remove_flat(sub, err);
    }
    closedir(dir);
    return status;
}

enum status store_disk_open(struct store **store_p, const char *run_dir, struct err *err)
{
    char path[PATH_ROOM];
    if (strlen(run_dir) > PATH_ROOM - 128)
        return err_set(err, STATUS_INVALID, "the name of the run folder is too long");
    struct store_disk *d = mem_alloc(1, sizeof *d);
    if (!d) return err_set(err, STATUS_NOMEM, "no memory for the store");
    *d = (struct store_disk){.base.ops = &disk_ops, .fd = -1, .read_fd = -1, .spool.fd = -1,
                             .dir = mem_strdup(run_dir)};
    enum status status = d->dir ? STATUS_OK : err_set(err, STATUS_NOMEM, "no memory for the store");
    if (status == STATUS_OK) {
        snprintf(path, sizeof path, "%s/journal", run_dir);
        status = dir_make(path, err);
    }
    if (status == STATUS_OK) {
        snprintf(path, sizeof path, "%s/checkpoints", run_dir);
        status = dir_make(path, err);
    }
    if (status == STATUS_OK) status = sweep(d, err);
    if (status != STATUS_OK) {
        store_disk_close(&d->base);
        return status;
    }
    *store_p = &d->base;
    return STATUS_OK;
}
