#include "common/os/fileio.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/os/descriptors.h"
#include "common/os/fork_close.h"
#include "common/os/interrupt.h"

enum {
    FILE_OUT_BUFFER = 1 << 20,
    FILE_OUT_ALIGN = 4096,
    MAP_PIECE = 1 << 18,
    SPARE_SHARE = 16,
    LOCK_AGAIN_US = 100000,
    LOCK_TRIES = 21
};

/* --- temporary names ---------------------------------------------------------------------------------------------- */

static const char mark[] = ".tmp-";
enum { PID_DIGITS_MAX = 9 };

/* True for an entry NAME.tmp-PID whose process has ended. */
static bool left_behind(const char *entry, const char *name)
{
    size_t n = strlen(name);
    if (strncmp(entry, name, n) != 0 || strncmp(entry + n, mark, sizeof mark - 1) != 0) return false;
    const char *pid = entry + n + sizeof mark - 1;
    size_t digits = strspn(pid, "0123456789");
    if (!digits || digits > PID_DIGITS_MAX || pid[digits] || atol(pid) < 1) return false;
    return kill((pid_t)atol(pid), 0) != 0 && errno == ESRCH;
}

void temporary_sweep(const char *path)
{
    char at[FILEIO_PATH_MAX];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    int folder = (int)(name - path); /* length with its slash; 0: the current folder */
    snprintf(at, sizeof at, "%.*s.", folder, path);
    DIR *dir = descriptors_opendir(at);
    if (!dir) return; /* the caller's open then fails with the cause */
    for (const struct dirent *e; (e = readdir(dir));) {
        if (!left_behind(e->d_name, name)) continue;
        snprintf(at, sizeof at, "%.*s%s", folder, path, e->d_name);
        if (unlink(at) != 0 && dir_remove_flat(at, NULL) != STATUS_OK)
            continue; /* it stays, which only costs disk space */
    }
    closedir(dir);
}

enum status temporary_name(const char *path, char *out, size_t cap, struct err *err)
{
    temporary_sweep(path);
    if (snprintf(out, cap, "%s%s%ld", path, mark, (long)getpid()) < (int)cap) return STATUS_OK;
    return err_set(err, STATUS_LIMIT, "the path %.300s is too long", path);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

static enum status fail(struct err *err, const char *what, const char *path)
{
    return err_set(err, status_of_errno(errno), "cannot %s %s: %s", what, path, strerror(errno));
}

static enum status fail_read(struct err *err, const char *what, const char *path)
{
    return err_set(err, status_of_read(errno), "cannot %s %s: %s", what, path, strerror(errno));
}

static int open_retry(const char *path, int flags, unsigned mode)
{
    int fd;
    do fd = descriptors_open(path, flags, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

static enum status not_plain(struct err *err, const char *path)
{
    return err_set(err, STATUS_IO, "%s is not a plain file: remove it or use another path", path);
}

enum status file_open_plain(const char *path, int flags, unsigned mode, int *fd_p, struct err *err)
{
    /* Without O_NONBLOCK, open waits for the other end of a pipe. On plain files the flag has no effect. */
    int fd = open_retry(path, flags | O_NONBLOCK | O_NOCTTY, mode);
    if (fd < 0 && (errno == ENXIO || errno == EISDIR)) return not_plain(err, path);
    if (fd < 0) return (flags & O_ACCMODE) == O_RDONLY ? fail_read(err, "open", path) : fail(err, "open", path);
    struct stat st;
    enum status status = STATUS_OK;
    if (fstat(fd, &st) != 0)
        status = fail(err, "examine", path);
    else if (!S_ISREG(st.st_mode))
        status = not_plain(err, path);
    if (status == STATUS_OK)
        *fd_p = fd;
    else
        close(fd);
    return status;
}

static enum status open_sized(const char *path, int *fd_p, size_t *size, struct err *err)
{
    struct stat st;
    TRY(file_open_plain(path, O_RDONLY, 0, fd_p, err));
    if (fstat(*fd_p, &st) == 0 && (uint64_t)st.st_size <= SIZE_MAX / 2) {
        *size = (size_t)st.st_size;
        return STATUS_OK;
    }
    enum status status = fail(err, "examine", path);
    close(*fd_p);
    return status;
}

static enum status read_all(int fd, uint8_t *out, size_t size, const char *path, struct err *err)
{
    for (size_t got = 0; got < size;) {
        ssize_t n = read(fd, out + got, size - got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail_read(err, "read", path);
        if (n == 0) return err_set(err, STATUS_IO, "%s was truncated while it was read", path);
        got += (size_t)n;
    }
    return STATUS_OK;
}

enum status file_read(const char *path, size_t max, void **data, size_t *size, struct err *err)
{
    int fd;
    size_t n;
    TRY(open_sized(path, &fd, &n, err));
    if (n > max) {
        close(fd);
        return err_set(err, STATUS_LIMIT, "%s is %zu bytes long, more than the limit of %zu", path, n, max);
    }
    uint8_t *bytes = mem_alloc(1, n + 1);
    enum status status = bytes ? read_all(fd, bytes, n, path, err)
                               : err_set(err, STATUS_NOMEM, "no memory to read %s (%zu bytes)", path, n);
    close(fd);
    if (status != STATUS_OK) {
        mem_free(bytes);
        return status;
    }
    *data = bytes;
    *size = n;
    return STATUS_OK;
}

bool file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

bool file_is_locked(const char *path)
{
    int fd;
    if (file_open_plain(path, O_RDONLY, 0, &fd, NULL) != STATUS_OK) return false;
    bool locked = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd);
    return locked;
}

bool file_is_gone(const char *path, int fd)
{
    struct stat there, open;
    if (fstat(fd, &open)) return false;
    if (stat(path, &there)) return errno == ENOENT || errno == ENOTDIR;
    return there.st_ino != open.st_ino || there.st_dev != open.st_dev;
}

bool file_lock(int fd, bool patient)
{
    for (int tries = patient ? LOCK_TRIES : 2; flock(fd, LOCK_EX | LOCK_NB); usleep(LOCK_AGAIN_US))
        if (errno != EWOULDBLOCK || !--tries) return false;
    return true;
}

/* --- a file under construction ------------------------------------------------------------------------------------ */

static void file_out_release(struct file_out *out)
{
    if (out->fd >= 0) {
        fork_close_remove(out->fd);
        close(out->fd);
    }
    mem_free(out->path);
    mem_free(out->tmp);
    mem_free(out->memory);
    *out = (struct file_out){.fd = -1};
}

/* Creates the temporary file. It never follows a link, and its mode does not depend on a file that is there:
 * - a new temporary replaces an old file or link of its name, which a killed process with the same id left;
 * - a spare file is kept for its room, and gets the mode. */
static enum status create(struct file_out *out, unsigned mode, struct err *err)
{
    struct stat st;
    if (!out->spare && unlink(out->tmp) != 0 && errno != ENOENT) return fail(err, "replace", out->tmp);
    out->fd = open_retry(out->tmp, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | (out->spare ? 0 : O_EXCL), mode);
    if (out->fd < 0 && errno == ELOOP) return not_plain(err, out->tmp);
    if (out->fd < 0) return fail(err, "create", out->tmp);
    fork_close_add(out->fd); /* a child would keep the disk space of a replaced file */
    if (!out->spare) return STATUS_OK;
    if (fstat(out->fd, &st) != 0) return fail(err, "examine", out->tmp);
    if (!S_ISREG(st.st_mode)) return not_plain(err, out->tmp);
    if ((st.st_mode & 0777 & ~mode) && fchmod(out->fd, mode) != 0) return fail(err, "set the mode of", out->tmp);
    return STATUS_OK;
}

/* spare NULL: a new temporary name. */
static enum status open_as(struct file_out *out, const char *path, const char *spare, unsigned mode, struct err *err)
{
    char own[FILEIO_PATH_MAX];
    *out = (struct file_out){.fd = -1, .spare = spare};
    if (!spare) TRY(temporary_name(path, own, sizeof own, err));
    out->path = mem_strdup(path);
    out->tmp = mem_strdup(spare ? spare : own);
    out->memory = mem_alloc(1, FILE_OUT_BUFFER + FILE_OUT_ALIGN);
    if (!out->path || !out->tmp || !out->memory) {
        file_out_release(out);
        return err_set(err, STATUS_NOMEM, "no memory to write %s", path);
    }
    out->buffer = out->memory + (FILE_OUT_ALIGN - (uintptr_t)out->memory % FILE_OUT_ALIGN) % FILE_OUT_ALIGN;
    enum status status = create(out, mode, err);
    if (status != STATUS_OK) file_out_release(out);
    return status;
}

enum status file_out_open(struct file_out *out, const char *path, struct err *err)
{
    return open_as(out, path, NULL, FILE_PUBLIC, err);
}

enum status file_out_open_spare(struct file_out *out, const char *path, const char *spare, struct err *err)
{
    return open_as(out, path, spare, FILE_PRIVATE, err);
}

/* Turns O_DIRECT on or off. False: the file system has none. */
static bool set_direct(struct file_out *out, bool on)
{
    int flags = fcntl(out->fd, F_GETFL);
    if (flags < 0 || fcntl(out->fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) != 0) return false;
    out->direct = on;
    return true;
}

bool file_out_direct(struct file_out *out)
{
    assert(out->fd >= 0 && !out->size);
    return set_direct(out, true);
}

static enum status write_all(struct file_out *out, const uint8_t *data, size_t size, off_t at, struct err *err)
{
    assert(out->fd >= 0);
    if (size) out->synced = false;
    for (size_t done = 0; done < size;) {
        ssize_t n = at < 0 ? write(out->fd, data + done, size - done)
                           : pwrite(out->fd, data + done, size - done, at + (off_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EINVAL && out->direct && set_direct(out, false)) continue; /* another alignment */
        if (n < 0) return fail(err, "write", out->path);
        done += (size_t)n;
    }
    return STATUS_OK;
}

/* Writes the buffer. The last one of a direct file has any length, and goes through the page cache as all that follows.
 */
static enum status file_out_flush(struct file_out *out, struct err *err)
{
    size_t n = out->used;
    assert(n <= FILE_OUT_BUFFER);
    out->used = 0;
    if (out->direct && n < FILE_OUT_BUFFER && !set_direct(out, false)) return fail(err, "write", out->path);
    return write_all(out, out->buffer, n, -1, err);
}

enum status file_out_put(struct file_out *out, const void *data, size_t size, struct err *err)
{
    assert(out->fd >= 0);
    TRY(interrupt_check(err));
    out->size += size;
    const uint8_t *bytes = data;
    while (out->direct && size) { /* full, aligned buffers */
        size_t room = FILE_OUT_BUFFER - out->used, n = size < room ? size : room;
        memcpy(out->buffer + out->used, bytes, n);
        out->used += n;
        bytes += n;
        size -= n;
        if (out->used == FILE_OUT_BUFFER) TRY(file_out_flush(out, err));
    }
    if (size > FILE_OUT_BUFFER - out->used) TRY(file_out_flush(out, err));
    if (size >= FILE_OUT_BUFFER) return write_all(out, bytes, size, -1, err);
    assert(size <= FILE_OUT_BUFFER - out->used);
    if (size) memcpy(out->buffer + out->used, bytes, size);
    out->used += size;
    return STATUS_OK;
}

enum status file_out_put_head(struct file_out *out, const void *data, size_t size, struct err *err)
{
    assert(size <= out->size);
    TRY(file_out_flush(out, err));
    return write_all(out, data, size, 0, err);
}

static enum status sync_parent(const char *path, struct err *err)
{
    char dir[FILEIO_PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    if (n >= sizeof dir) return err_set(err, STATUS_LIMIT, "path too long: %s", path);
    if (!slash)
        memcpy(dir, ".", 2);
    else {
        n = n ? n : 1; /* the root folder */
        memcpy(dir, path, n);
        dir[n] = 0;
    }
    return dir_sync(dir, err);
}

/* Cut the rest of a longer old content and reserve some room after the end: lengths differ a little between writes. */
static enum status trim(struct file_out *out, struct err *err)
{
    struct stat st;
    assert(out->spare && !out->used);
    if (fstat(out->fd, &st) != 0 || ((uint64_t)st.st_size > out->size && ftruncate(out->fd, (off_t)out->size) != 0))
        return fail(err, "write", out->tmp);
    int reserved = fallocate(out->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)(out->size + out->size / SPARE_SHARE));
    (void)reserved; /* best effort: some file systems cannot, the disk may be full, and all bytes are already written */
    return STATUS_OK;
}

enum status file_out_sync(struct file_out *out, struct err *err)
{
    TRY(file_out_flush(out, err));
    if (out->synced) return STATUS_OK;
    if (out->spare) TRY(trim(out, err));
    if (fsync(out->fd) != 0) return fail(err, "fsync", out->tmp);
    out->synced = true;
    return STATUS_OK;
}

enum status file_out_commit(struct file_out *out, struct err *err)
{
    TRY(file_out_sync(out, err));
    assert(out->synced && !out->used); /* the bytes must be durable before the name */
    if (rename(out->tmp, out->path) != 0) return fail(err, "rename into place", out->path);
    enum status status = sync_parent(out->path, err);
    file_out_release(out);
    return status;
}

void file_out_abort(struct file_out *out)
{
    if (out->fd < 0) return;
    if (!out->spare) unlink(out->tmp);
    file_out_release(out);
}

static enum status write_as(const char *path, const void *data, size_t size, unsigned mode, struct err *err)
{
    struct file_out out;
    TRY(open_as(&out, path, NULL, mode, err));
    enum status status = file_out_put(&out, data, size, err);
    if (status == STATUS_OK) status = file_out_commit(&out, err);
    if (status != STATUS_OK) file_out_abort(&out);
    return status;
}

enum status file_write(const char *path, const void *data, size_t size, struct err *err)
{
    return write_as(path, data, size, FILE_PUBLIC, err);
}

enum status file_write_private(const char *path, const void *data, size_t size, struct err *err)
{
    return write_as(path, data, size, FILE_PRIVATE, err);
}

enum status file_link(const char *path, const char *target, struct err *err)
{
    char tmp[FILEIO_PATH_MAX];
    TRY(temporary_name(path, tmp, sizeof tmp, err));
    if (unlink(tmp) != 0 && errno != ENOENT) return fail(err, "replace", tmp);
    if (symlink(target, tmp) != 0) {
        if (errno != EPERM && errno != ENOTSUP && errno != ENOSYS) return fail(err, "create link", tmp);
        return err_set(err, STATUS_UNSUPPORTED, "%s: this file system has no symbolic links", path);
    }
    if (rename(tmp, path) == 0) return sync_parent(path, err);
    enum status status = fail(err, "rename into place", path);
    unlink(tmp);
    return status;
}

/* --- maps and folders --------------------------------------------------------------------------------------------- */

/* Reads the file once, so that a bad sector is an error. The map then finds the bytes in memory. */
static enum status read_through(int fd, size_t size, const char *path, struct err *err)
{
    uint8_t *piece = mem_alloc(1, MAP_PIECE);
    enum status status = piece ? STATUS_OK : err_set(err, STATUS_NOMEM, "no memory to read %s", path);
    for (size_t at = 0; status == STATUS_OK && at < size; at += MAP_PIECE)
        status = read_all(fd, piece, size - at < MAP_PIECE ? size - at : MAP_PIECE, path, err);
    mem_free(piece);
    return status;
}

enum status file_map_open(struct file_map *map, const char *path, struct err *err)
{
    int fd;
    size_t size;
    *map = (struct file_map){0};
    TRY(open_sized(path, &fd, &size, err));
    enum status status = read_through(fd, size, path, err);
    void *at = status == STATUS_OK && size ? mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0) : (void *)"";
    if (at == MAP_FAILED) status = fail(err, "map", path);
    close(fd);
    if (status == STATUS_OK) *map = (struct file_map){.data = at, .size = size};
    return status;
}

void file_map_close(struct file_map *map)
{
    assert(map->data || !map->size);
    if (map->size) munmap((void *)(uintptr_t)map->data, map->size);
    *map = (struct file_map){0};
}

enum status file_copy(const char *path, const char *from, struct err *err)
{
    struct file_map map;
    TRY(file_map_open(&map, from, err));
    enum status status = file_write(path, map.data, map.size, err);
    file_map_close(&map);
    return status;
}

/* Sync the folder that got a new name. A folder that is writable but not readable cannot be fsynced. */
static enum status sync_name(const char *path, struct err *err)
{
    enum status status = sync_parent(path, err);
    return status != STATUS_OK && errno == EACCES ? STATUS_OK : status;
}

enum status dir_make(const char *path, struct err *err)
{
    char part[FILEIO_PATH_MAX];
    size_t n = strlen(path);
    if (!n || n >= sizeof part) return err_set(err, STATUS_INVALID, "cannot make folder '%.80s': bad name", path);
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i]) continue;
        part[i] = 0;
        if (mkdir(part, 0777) == 0)
            TRY(sync_name(part, err));
        else if (errno != EEXIST)
            return fail(err, "make folder", part);
        part[i] = path[i];
    }
    struct stat st;
    if (stat(path, &st) != 0) return fail(err, "make folder", path);
    if (!S_ISDIR(st.st_mode)) return err_set(err, STATUS_EXISTS, "%s exists and is not a folder", path);
    return STATUS_OK;
}

size_t dir_existing_length(const char *path)
{
    char part[FILEIO_PATH_MAX];
    size_t n = strlen(path), existing = 0;
    if (n >= sizeof part) return n;
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i]) continue;
        part[i] = 0;
        if (!file_exists(part)) break;
        existing = i;
        part[i] = path[i];
    }
    return existing;
}

void dir_remove_made(const char *path, size_t existing)
{
    char part[FILEIO_PATH_MAX];
    size_t n = strlen(path);
    if (n >= sizeof part) return;
    assert(existing <= n);
    memcpy(part, path, n + 1);
    for (; n > existing; n--) {
        if (part[n] && part[n] != '/') continue;
        part[n] = 0;
        (void)rmdir(part); /* fails for a folder that is not empty, and then for those above it */
    }
}

enum status dir_sync(const char *path, struct err *err)
{
    int fd = open_retry(path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return fail(err, "open folder", path);
    /* Some file systems cannot fsync a folder; the write itself succeeded, so this is not an error. */
    bool failed = fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP;
    enum status status = failed ? fail(err, "fsync folder", path) : STATUS_OK;
    close(fd);
    return status;
}

enum status dir_lock(const char *path, int *fd_p, struct err *err)
{
    int fd = open_retry(path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return fail(err, "open folder", path);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(fd);
        return err_set(err, STATUS_EXISTS, "another program is writing to %s: wait for it or use another folder", path);
    }
    *fd_p = fd; /* also on a file system without locks: then without protection */
    return STATUS_OK;
}

enum status dir_remove_flat(const char *path, struct err *err)
{
    struct stat st;
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
        return unlink(path) == 0 ? STATUS_OK : fail(err, "remove link", path);
    DIR *dir = descriptors_opendir(path);
    if (!dir) return errno == ENOENT ? STATUS_OK : fail(err, "open folder", path);
    enum status status = STATUS_OK;
    const struct dirent *entry;
    while (status == STATUS_OK && (entry = readdir(dir))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (unlinkat(dirfd(dir), entry->d_name, 0) != 0) status = fail(err, "empty folder", path);
    }
    closedir(dir);
    if (status == STATUS_OK && rmdir(path) != 0) status = fail(err, "remove folder", path);
    return status;
}
