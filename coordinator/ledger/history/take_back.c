#include "coordinator/ledger/history/take_back.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/os/descriptors.h"
#include "coordinator/ledger/checkpoint.h"
#include "coordinator/ledger/store_disk.h"

enum { COPY_BYTES = 1 << 20 };

static enum status path_of(char out[FILEIO_PATH_MAX], const char *dir, const char *name, struct err *err)
{
    if (snprintf(out, FILEIO_PATH_MAX, "%s/%s", dir, name) < FILEIO_PATH_MAX) return STATUS_OK;
    return err_set(err, STATUS_LIMIT, "the path %.300s/%s is too long", dir, name);
}

/* The folders are moved by a rename, so they must lie on the disk of the run folder. */
static enum status check_disks(const char *run, struct err *err)
{
    static const char *const moved[] = {"journal", "checkpoints"};
    char path[FILEIO_PATH_MAX];
    struct stat whole, part;
    if (stat(run, &whole)) return store_disk_fail(err, "examine", run);
    for (size_t i = 0; i < sizeof moved / sizeof *moved; i++) {
        TRY(path_of(path, run, moved[i], err));
        if (lstat(path, &part)) return store_disk_fail(err, "examine", path);
        if (!S_ISDIR(part.st_mode) || part.st_dev != whole.st_dev)
            return err_set(err, STATUS_UNSUPPORTED,
                           "%.300s is a link or on another disk than the run folder: move it into the run folder first",
                           path);
    }
    return STATUS_OK;
}

/* A second name for a file of both histories; a disk without hard links gets a copy. */
static enum status share(const char *from, const char *to, struct err *err)
{
    if (!link(from, to)) return STATUS_OK;
    return file_copy(to, from, err);
}

/* Copies the first `size` bytes of a segment. */
static enum status copy_head(const char *from, const char *to, uint64_t size, struct err *err)
{
    struct file_out out = {.fd = -1};
    int fd = -1;
    uint8_t *piece = mem_alloc(1, COPY_BYTES);
    enum status status = piece ? STATUS_OK : err_set(err, STATUS_NOMEM, "no memory to copy %.300s", from);
    if (status == STATUS_OK) status = file_open_plain(from, O_RDONLY, 0, &fd, err);
    if (status == STATUS_OK) status = file_out_open(&out, to, err);
    for (uint64_t at = 0; status == STATUS_OK && at < size;) {
        size_t n = size - at < COPY_BYTES ? (size_t)(size - at) : COPY_BYTES;
        status = store_disk_read_exact(fd, at, piece, n, from, err);
        if (status == STATUS_OK) status = file_out_put(&out, piece, n, err);
        at += n;
    }
    if (status == STATUS_OK) status = file_out_commit(&out, err);
    if (status != STATUS_OK) file_out_abort(&out);
    if (fd >= 0) close(fd);
    mem_free(piece);
    return status;
}

static enum status share_segments(const char *run, const struct history *h, struct err *err)
{
    char name[64], from[FILEIO_PATH_MAX], to[FILEIO_PATH_MAX], folder[FILEIO_PATH_MAX];
    for (uint64_t i = h->first; i <= h->cut.segment; i++) {
        snprintf(name, sizeof name, "journal/%08llu.log", (unsigned long long)i);
        TRY(path_of(from, run, name, err));
        snprintf(name, sizeof name, "journal" STORE_NEXT "/%08llu.log", (unsigned long long)i);
        TRY(path_of(to, run, name, err));
        if (i == h->cut.segment)
            TRY(copy_head(from, to, h->cut.offset, err));
        else if (file_exists(from)) /* a damaged one that was put aside is in neither history */
            TRY(share(from, to, err));
    }
    TRY(path_of(folder, run, "journal" STORE_NEXT, err));
    return dir_sync(folder, err);
}

/* All files of a checkpoint; a symbolic link (adapter_model.safetensors) is made again. */
static enum status share_folder(const char *from, const char *to, struct err *err)
{
    char a[FILEIO_PATH_MAX], b[FILEIO_PATH_MAX], target[256];
    DIR *dir = descriptors_opendir(from);
    if (!dir) return store_disk_fail(err, "list", from);
    enum status status = dir_make(to, err);
    for (const struct dirent *e; status == STATUS_OK && (e = readdir(dir));) {
        struct stat st;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        status = path_of(a, from, e->d_name, err);
        if (status == STATUS_OK) status = path_of(b, to, e->d_name, err);
        if (status != STATUS_OK || lstat(a, &st)) continue;
        ssize_t n = S_ISLNK(st.st_mode) ? readlink(a, target, sizeof target - 1) : -1;
        if (n >= 0) {
            target[n] = '\0';
            if (symlink(target, b)) status = store_disk_fail(err, "link", b);
        } else if (S_ISREG(st.st_mode)) {
            status = share(a, b, err);
        }
    }
    closedir(dir);
    return status == STATUS_OK ? dir_sync(to, err) : status;
}

static enum status share_checkpoints(const char *run, const struct history *h, struct store *store, struct err *err)
{
    char name[64], from[FILEIO_PATH_MAX], to[FILEIO_PATH_MAX], folder[FILEIO_PATH_MAX];
    uint64_t *rounds;
    size_t n;
    TRY(store_list(store, store->ops->checkpoint_list, &rounds, &n, err));
    enum status status = STATUS_OK;
    for (size_t i = 0; i < n && status == STATUS_OK; i++) {
        struct checkpoint_info info;
        if (checkpoint_look(store, rounds[i], &info, NULL) != STATUS_OK) continue; /* damaged */
        if (info.segment < h->first || !history_keeps(h, rounds[i], info.segment)) continue;
        snprintf(name, sizeof name, "checkpoints/round_%06llu", (unsigned long long)rounds[i]);
        status = path_of(from, run, name, err);
        snprintf(name, sizeof name, "checkpoints" STORE_NEXT "/round_%06llu", (unsigned long long)rounds[i]);
        if (status == STATUS_OK) status = path_of(to, run, name, err);
        if (status == STATUS_OK) status = share_folder(from, to, err);
    }
    mem_free(rounds);
    TRY(status);
    TRY(path_of(folder, run, "checkpoints" STORE_NEXT, err));
    return dir_sync(folder, err);
}

enum status take_back_prepare(const char *run, struct history *h, struct store *store, struct err *err)
{
    struct store *to;
    TRY(check_disks(run, err));
    TRY(store_disk_open_next(&to, run, err));
    enum status status = share_segments(run, h, err);
    if (status == STATUS_OK) status = share_checkpoints(run, h, store, err);
    if (status == STATUS_OK) status = history_write(h, store, to, (uint64_t)time(NULL), err);
    to->ops->close(to);
    return status;
}

enum status take_back_commit(const char *run, char *suffix, size_t cap, struct err *err)
{
    bool switched;
    TRY(store_disk_switch_suffix(run, suffix, cap, err));
    TRY(store_disk_switch_decide(run, suffix, err));
    return store_disk_switch(run, &switched, err);
}

void take_back_abort(const char *run)
{
    bool switched;
    if (store_disk_switch(run, &switched, NULL) != STATUS_OK) { /* the next start tries again */
    }
}
