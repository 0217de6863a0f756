/* A bounded queue of byte records between two threads: one puts, one takes, both under the owner's lock. Records lie in
 * one piece, so the taker may read a record in place without the lock until it drops it. */
#ifndef WORKER_RING_H
#define WORKER_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct ring {
    uint8_t *data;
    size_t cap;
    size_t head, used; /* first byte of the oldest record; bytes from there on */
    size_t reserved;   /* of the record between ring_reserve and ring_commit */
};

/* Room for records of at most cap / 2 bytes. */
enum status ring_init(struct ring *r, size_t cap) MUST_CHECK;
void ring_finish(struct ring *r);
/* Where a record of up to `size` bytes may be written, NULL when there is no room; then say how long it became. */
uint8_t *ring_reserve(struct ring *r, size_t size);
void ring_commit(struct ring *r, uint32_t tag, size_t size);
/* The oldest record, or NULL. */
const uint8_t *ring_peek(const struct ring *r, uint32_t *tag_p, size_t *size_p);
void ring_drop(struct ring *r);
bool ring_empty(const struct ring *r);

#endif
