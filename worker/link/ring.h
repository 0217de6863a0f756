/* A bounded queue of byte records between one producer and one consumer thread, both under the caller's lock. Each
 * record is contiguous: the consumer reads it in place, without the lock, until ring_drop. */
#ifndef WORKER_RING_H
#define WORKER_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct ring {
    uint8_t *data;
    size_t cap;
    size_t head, used; /* offset of the oldest record; bytes used from there */
    size_t reserved;   /* offset of the record between ring_reserve and ring_commit */
};

/* Allocates cap bytes, which take memory as records fill them; a record may have at most cap / 2. NOMEM. */
enum status ring_init(struct ring *r, size_t cap) MUST_CHECK;
void ring_finish(struct ring *r);
/* Returns where to write a record of up to `size` bytes, NULL if the ring is full. ring_commit ends the record with its
 * final size. */
uint8_t *ring_reserve(struct ring *r, size_t size);
void ring_commit(struct ring *r, uint32_t tag, size_t size);
/* Returns the oldest record, its tag and size; NULL: empty. */
const uint8_t *ring_peek(const struct ring *r, uint32_t *tag_p, size_t *size_p);
/* Removes the oldest record. */
void ring_drop(struct ring *r);
bool ring_empty(const struct ring *r);

#endif
