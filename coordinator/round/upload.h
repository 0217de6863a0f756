/* The upload of one delta: chunks of one fragment, in order, under credit. Pure: the caller writes the bytes to memory,
 * or to slot `slot` of the store's spool. */
#ifndef COORDINATOR_UPLOAD_H
#define COORDINATOR_UPLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "wire/msg.h"

/* Bytes that may be on their way, or in the receive queues: UPLOAD_CREDIT of all uploads together, and UPLOAD_LEAST of
 * each. A CREDIT goes out for each UPLOAD_STEP, so that the worker knows what arrived. */
enum { UPLOAD_CREDIT = 128 << 20, UPLOAD_LEAST = 256 << 10, UPLOAD_STEP = 2 << 20 };

/* The credit of all uploads. Zeroed: none is granted. */
struct upload_pool {
    uint64_t granted; /* the sum of upto - have */
};

struct upload {
    bool active;
    struct msg_offer offer;
    uint32_t slot;       /* slot of the spool that holds the bytes */
    uint32_t place;      /* place in memory that holds the bytes (coordinator/outer/held.h); 0: the spool does */
    uint64_t have, upto; /* bytes received; credit granted, as an offset */
    uint32_t crc;        /* of the bytes received, from the checksums of their chunks */
    uint64_t told;       /* `have` of the last CREDIT */
};

/* Credit of one upload: a quarter of what is free. One upload gets 32 MiB, and n get UPLOAD_CREDIT / (n + 4) each. */
uint64_t upload_credit(const struct upload_pool *pool);
/* `offer` describes the bytes of this upload: it goes on. */
bool upload_continues(const struct upload *u, const struct msg_offer *offer);
/* Starts or continues the upload that `offer` describes. If round, size, checksum or base version differ from the
 * current upload, it starts again at byte 0, in `slot`, without a place. */
void upload_start(struct upload *u, struct upload_pool *pool, const struct msg_offer *offer, uint32_t slot);
/* Takes a chunk, whose data match its checksum (msg_decode).
 * - OK: `have` grew; the caller keeps the chunk's bytes.
 * - AGAIN: not the next bytes (lost, repeated or of another upload); nothing changed.
 * - CORRUPT: the bytes reach past the end. */
enum status upload_chunk(struct upload *u, struct upload_pool *pool, const struct msg_chunk *chunk) MUST_CHECK;
/* Raises `upto` if enough bytes have arrived since the last CREDIT; true: the caller sends the next one. */
bool upload_extend(struct upload *u, struct upload_pool *pool);
bool upload_complete(const struct upload *u);
/* The chunks of a complete payload add up to the checksum of its offer. */
bool upload_intact(const struct upload *u);
void upload_drop(struct upload *u, struct upload_pool *pool);

#endif
