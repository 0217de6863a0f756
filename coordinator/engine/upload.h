/* One delta on its way in: chunks of one fragment in order, under credit. Pure: the bytes themselves go to the store's
 * spool, at a place of `slot`. */
#ifndef COORDINATOR_UPLOAD_H
#define COORDINATOR_UPLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "wire/msg.h"

enum { UPLOAD_WINDOW = 4 << 20 }; /* bytes a worker may be ahead of what we hold */

struct upload {
    bool active;
    struct msg_offer offer;
    uint32_t slot;       /* which part of the spool holds the bytes */
    uint64_t have, upto; /* bytes held from the start; credit given */
};

/* Start, or go on with, the upload that `offer` describes. Another round, size or checksum starts anew, in `slot`. */
void upload_start(struct upload *u, const struct msg_offer *offer, uint32_t slot);
/* AGAIN: not the next bytes (lost, repeated or of something else), nothing changed. CORRUPT: they do not match their
 * checksum or reach past the end. OK: `have` grew, the chunk's bytes are to be kept. */
enum status upload_chunk(struct upload *u, const struct msg_chunk *chunk) MUST_CHECK;
/* True, and `upto` raised, when the worker should hear of new credit. */
bool upload_extend(struct upload *u);
bool upload_complete(const struct upload *u);
/* The whole payload, data[offer.bytes], matches the checksum of its offer. */
bool upload_intact(const struct upload *u, const uint8_t *data);
void upload_drop(struct upload *u);

#endif
