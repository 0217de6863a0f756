/* The spool: a temporary file for deltas that are arriving. In memory they would grow with the number of workers. The
 * file is unlinked and never synced, so short-lived bytes rarely reach the disk. */
#ifndef COORDINATOR_SPOOL_H
#define COORDINATOR_SPOOL_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct spool {
    int fd; /* -1: not created yet */
};

/* Writes data[size] at `offset`; the first write creates the file in `folder`. IO: the disk is full or fails. */
enum status spool_write(struct spool *spool, const char *folder, uint64_t offset, const void *data, size_t size,
                        struct err *err) MUST_CHECK;
/* Reads exactly `size` bytes; CORRUPT past the end. */
enum status spool_read(struct spool *spool, uint64_t offset, void *dst, size_t size, struct err *err) MUST_CHECK;
/* Releases the disk blocks of these bytes, if the file system can punch holes. */
void spool_forget(struct spool *spool, uint64_t offset, uint64_t size);
void spool_close(struct spool *spool);

#endif
