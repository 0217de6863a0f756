/* Deltas in memory, from their first chunk to their merge: their bytes are neither spooled nor read back. This is a
 * cache of bounded size. A delta without a place lies in the spool until it is journaled, and is read from the journal
 * when it is merged.
 *
 * A place is a number from 1 on; 0: none. It is taken for the delta that arrives, then kept for the delta in the
 * journal. Kept places end when the delta is merged; when others need the room, the oldest ones end first. */
#ifndef COORDINATOR_HELD_H
#define COORDINATOR_HELD_H

#include <stddef.h>
#include <stdint.h>

#include "coordinator/round/member.h"

/* Most bytes of a coordinator: deltas in memory, and encoded chunks that are kept for other workers. */
enum { HELD_MOST = 256 << 20, CHUNKS_MOST = 64 << 20 };

struct held_place;

/* Zeroed but for `most`: empty. */
struct held {
    uint64_t most, bytes;      /* the most bytes, and those now, of free places too */
    struct held_place *places; /* [n], number 1 first */
    uint32_t n, cap;
    uint32_t oldest, newest; /* kept places, by age */
    uint32_t free_places;    /* a list of places without a delta; most have memory */
};

void held_finish(struct held *h);
/* A place of `size` bytes (> 0); 0: there is no room. */
uint32_t held_take(struct held *h, size_t size);
/* Gives a taken place back; 0 is allowed. */
void held_give(struct held *h, uint32_t place);
/* The memory of a taken place. */
uint8_t *held_bytes(const struct held *h, uint32_t place);
/* The delta of a taken place is in the journal now. */
void held_keep(struct held *h, uint32_t place, struct journal_ref at);
/* The bytes of the delta with this place and position; NULL: they are not in memory any more. */
const uint8_t *held_find(const struct held *h, uint32_t place, struct journal_ref at);
/* That delta was written again, elsewhere. */
void held_move(struct held *h, uint32_t place, struct journal_ref from, struct journal_ref to);
/* That delta was merged. */
void held_drop(struct held *h, uint32_t place, struct journal_ref at);

#endif
