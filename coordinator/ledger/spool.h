/* A place on disk for bytes that nobody needs after this process: deltas on their way in. In memory they would grow
 * with the number of workers. One file without a name, never synced; room that is given back usually was never written
 * out. */
#ifndef COORDINATOR_SPOOL_H
#define COORDINATOR_SPOOL_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct spool {
    int fd; /* -1: not made yet */
};

/* Write data[size] at `offset`; the first write makes the file in `folder`. IO: the disk is full or fails. */
enum status spool_write(struct spool *spool, const char *folder, uint64_t offset, const void *data, size_t size,
                        struct err *err) MUST_CHECK;
/* Exactly `size` bytes; CORRUPT past the end. */
enum status spool_read(struct spool *spool, uint64_t offset, void *dst, size_t size, struct err *err) MUST_CHECK;
/* These bytes are not needed any more: their disk blocks go back where the file system can do that. */
void spool_forget(struct spool *spool, uint64_t offset, uint64_t size);
void spool_close(struct spool *spool);

#endif
