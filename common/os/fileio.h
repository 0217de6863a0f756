/* Files as the run folder needs them: read whole with a limit, written so that a crash at any instant leaves the old
 * file or the new one. A new file is written beside its place under a temporary name, fsynced, renamed over the old
 * one, and the folder is fsynced. Errors name the file and the cause. */
#ifndef COMMON_FILEIO_H
#define COMMON_FILEIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum { FILEIO_PATH_MAX = 4096 };

/* The whole file in mem_alloc'd memory followed by a NUL (not counted in size); the caller frees. NOTFOUND, IO, LIMIT
 * (longer than max), NOMEM. */
enum status file_read(const char *path, size_t max, void **data, size_t *size, struct err *err) MUST_CHECK;
enum status file_write(const char *path, const void *data, size_t size, struct err *err) MUST_CHECK;
bool file_exists(const char *path);
/* Somebody holds the file's flock, as a coordinator that of RUN/lock while it lives: had for a moment here, to see. */
bool file_is_locked(const char *path);
/* Have the open file's flock for as long as this process lives. `patient`: whoever has it may have been killed a moment
 * ago and still be ending, as with much memory or a GPU, and is waited for, two seconds; else only whoever looks
 * (file_is_locked). False: errno says why, EWOULDBLOCK that another process has it. */
bool file_lock(int fd, bool patient);

/* A file under construction: open, put, then commit or abort. After a failed put or commit only abort is allowed. Put
 * fails, too, once a signal was noted (common/os/interrupt.h). */
struct file_out {
    int fd;           /* -1 when not open */
    char *path, *tmp; /* final and temporary name */
    uint8_t *buffer;
    size_t used;
    uint64_t size; /* bytes put so far */
    bool synced;   /* all that was written is safe */
    bool spare;    /* the temporary file is one to write over, and stays when this is given up */
};

enum status file_out_open(struct file_out *out, const char *path, struct err *err) MUST_CHECK;
/* The temporary file is `spare`, made when it is not there. Its old bytes are written over, so that the room they take
 * is enough however full the disk has become; a new one reserves a little more than it needs. */
enum status file_out_open_spare(struct file_out *out, const char *path, const char *spare, struct err *err) MUST_CHECK;
enum status file_out_put(struct file_out *out, const void *data, size_t size, struct err *err) MUST_CHECK;
/* Put this over the first bytes, which were put before: a header whose counts are known at the end. */
enum status file_out_put_head(struct file_out *out, const void *data, size_t size, struct err *err) MUST_CHECK;
/* All that was put is on the disk, under the temporary name. Commit does this, too. */
enum status file_out_sync(struct file_out *out, struct err *err) MUST_CHECK;
enum status file_out_commit(struct file_out *out, struct err *err) MUST_CHECK;
/* Remove what was written. Does nothing after commit, or on a zeroed struct with fd -1. */
void file_out_abort(struct file_out *out);

/* Read-only memory map. A file cut short while mapped is undefined (SIGBUS): shards and checkpoints are only ever
 * replaced by rename. size 0 maps to a valid empty pointer. */
struct file_map {
    const uint8_t *data;
    size_t size;
};

enum status file_map_open(struct file_map *map, const char *path, struct err *err) MUST_CHECK;
void file_map_close(struct file_map *map);

/* mkdir -p; what is made survives a power cut. */
enum status dir_make(const char *path, struct err *err) MUST_CHECK;
/* How many bytes of `path` are there already: all of it, or up to the end of a folder that is. */
size_t dir_existing_length(const char *path);
/* Removes what dir_make made of `path`, of which so many bytes were there before: folders that are empty, the last one
 * first. */
void dir_remove_made(const char *path, size_t there);
/* fsync a folder, so that renames in it survive a power cut. */
enum status dir_sync(const char *path, struct err *err) MUST_CHECK;
/* Nobody else has this lock of a folder until *fd_p is closed; it leaves no file. EXISTS when somebody has it. */
enum status dir_lock(const char *path, int *fd_p, struct err *err) MUST_CHECK;
/* Delete a folder and the plain files in it; folders inside are an error. NOTFOUND is success. */
enum status dir_remove_flat(const char *path, struct err *err) MUST_CHECK;

#endif
