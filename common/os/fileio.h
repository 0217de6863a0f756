/* Files of the run folder: read whole with a limit, write atomically, map, lock; and folders.
 *
 * A crash at any instant leaves the old file or the new one. A new file is written beside its place under a temporary
 * name and fsynced. Then it is renamed over the old one and the folder is fsynced. Temporary files are created anew
 * (O_EXCL, O_NOFOLLOW). Errors name the file and the cause. A function that reads returns CORRUPT for bytes that the
 * disk cannot read (status_of_read). */
#ifndef COMMON_FILEIO_H
#define COMMON_FILEIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum { FILEIO_PATH_MAX = 4096, FILE_PUBLIC = 0666, FILE_PRIVATE = 0600 };

/* open(2) for the files of a run folder: O_CLOEXEC is set, `mode` is for O_CREAT. A pipe, device, socket or folder of
 * that name is refused at once; open(2) would wait for the other end of a pipe. NOTFOUND, IO with the cause in errno.
 */
enum status file_open_plain(const char *path, int flags, unsigned mode, int *fd_p, struct err *err) MUST_CHECK;

/* Read the whole file into memory of mem_alloc, followed by a NUL (not counted in *size); the caller frees it.
 * NOTFOUND, IO, CORRUPT, LIMIT (longer than max), NOMEM. */
enum status file_read(const char *path, size_t max, void **data, size_t *size, struct err *err) MUST_CHECK;
/* Write a file atomically. IO, NOMEM, INTERRUPTED (common/os/interrupt.h). */
enum status file_write(const char *path, const void *data, size_t size, struct err *err) MUST_CHECK;
/* The same with mode 0600, for secrets and identities. The temporary file has this mode from its creation. */
enum status file_write_private(const char *path, const void *data, size_t size, struct err *err) MUST_CHECK;
/* Make `path` a symbolic link to `target`, atomically and durably; it replaces a file or link. UNSUPPORTED: the file
 * system has no symbolic links. IO. */
enum status file_link(const char *path, const char *target, struct err *err) MUST_CHECK;
bool file_exists(const char *path);
/* True when another process holds the file's flock; a coordinator holds RUN/lock while it runs. The test takes a shared
 * lock for a moment. */
bool file_is_locked(const char *path);
/* True when `path` no longer names the open file: it was removed, replaced or moved away. */
bool file_is_gone(const char *path, int fd);
/* Take the open file's flock until the descriptor is closed.
 *
 * - `patient`: retry for two seconds. The holder may have been killed a moment ago and still be ending, for example
 *   with much memory or a GPU.
 * - Otherwise retry only once, after the moment that file_is_locked takes.
 * - False: errno has the cause; EWOULDBLOCK: another process holds the lock. */
bool file_lock(int fd, bool patient);

/* A file being written: open, put, then commit or abort. After a failed put or commit only abort is allowed. Put also
 * fails after a caught signal (common/os/interrupt.h). */
struct file_out {
    int fd;                   /* -1 when not open */
    char *path, *tmp;         /* final and temporary name */
    uint8_t *memory, *buffer; /* buffer: the aligned bytes of `memory` */
    size_t used;
    uint64_t size; /* bytes put so far */
    bool synced;   /* all written bytes are on the disk */
    bool spare;    /* the temporary file is overwritten in place, and abort keeps it */
    bool direct;   /* full buffers go past the page cache (O_DIRECT) */
};

enum status file_out_open(struct file_out *out, const char *path, struct err *err) MUST_CHECK;
/* Open with `spare` as the temporary file, created if it is missing, with mode 0600: it holds a worker's identity. Its
 * old bytes are overwritten, so that their room suffices however full the disk has become. Commit reserves a little
 * more room than the content needs. */
enum status file_out_open_spare(struct file_out *out, const char *path, const char *spare, struct err *err) MUST_CHECK;
/* Before the first put: write past the page cache, for files that are read at a restart only. False: the file system
 * has no O_DIRECT, and the page cache is used. */
bool file_out_direct(struct file_out *out);
enum status file_out_put(struct file_out *out, const void *data, size_t size, struct err *err) MUST_CHECK;
/* Overwrite the first bytes, which were put before: for a header whose counts are known at the end. */
enum status file_out_put_head(struct file_out *out, const void *data, size_t size, struct err *err) MUST_CHECK;
/* Flush and fsync the temporary file. Commit includes this. */
enum status file_out_sync(struct file_out *out, struct err *err) MUST_CHECK;
enum status file_out_commit(struct file_out *out, struct err *err) MUST_CHECK;
/* Remove the temporary file. Does nothing after commit or when fd is -1. */
void file_out_abort(struct file_out *out);

/* Read-only memory map. Access to a file that was truncated after the call raises SIGBUS, so checkpoints are
 * replaced only by rename. So does access to a sector that the disk cannot read: opening the map reads all of the file
 * once, and returns CORRUPT instead. An empty file has size 0 and a valid pointer. */
struct file_map {
    const uint8_t *data;
    size_t size;
};

enum status file_map_open(struct file_map *map, const char *path, struct err *err) MUST_CHECK;
void file_map_close(struct file_map *map);
/* file_write of the bytes of another file. */
enum status file_copy(const char *path, const char *from, struct err *err) MUST_CHECK;

/* mkdir -p; new folders are fsynced and survive a power cut. */
enum status dir_make(const char *path, struct err *err) MUST_CHECK;
/* Length of the longest prefix of `path` that is an existing folder (or the whole path). */
size_t dir_existing_length(const char *path);
/* Undo dir_make: remove the empty folders of `path` beyond its first `existing` bytes, the last one first. */
void dir_remove_made(const char *path, size_t existing);
/* fsync a folder: renames in it then survive a power cut. */
enum status dir_sync(const char *path, struct err *err) MUST_CHECK;
/* Take the exclusive lock of a folder until the caller closes *fd_p; it creates no file. EXISTS: it is taken. */
enum status dir_lock(const char *path, int *fd_p, struct err *err) MUST_CHECK;
/* Delete a folder and the plain files in it; folders inside are an error. A link is deleted without its target.
 * NOTFOUND is success. */
enum status dir_remove_flat(const char *path, struct err *err) MUST_CHECK;

/* Temporary names: a new PATH, a file or a folder of plain files, is created as PATH.tmp-PID beside its place and
 * renamed. A killed process leaves its temporary behind; the next process that creates PATH removes it. */
/* Write the temporary name of this process to out[cap], after temporary_sweep. LIMIT when it does not fit. */
enum status temporary_name(const char *path, char *out, size_t cap, struct err *err) MUST_CHECK;
/* Remove the temporaries of PATH whose processes have ended. Failures to remove one are ignored. */
void temporary_sweep(const char *path);

#endif
