/* One delta on its way in: chunks of one fragment put together in order, under credit. Pure but for its buffer. */
#ifndef COORDINATOR_UPLOAD_H
#define COORDINATOR_UPLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "wire/msg.h"

enum { UPLOAD_WINDOW = 4 << 20 }; /* bytes a worker may be ahead of what we hold */

struct upload {
    bool active;
    struct msg_offer offer;
    uint8_t *data;       /* [offer.bytes], owned */
    uint64_t have, upto; /* bytes held from the start; credit given */
};

/* Start, or go on with, the upload that `offer` describes. Another round, size or checksum starts anew. */
enum status upload_start(struct upload *u, const struct msg_offer *offer) MUST_CHECK;
/* AGAIN: not the next bytes (lost, repeated or of something else), nothing changed. CORRUPT: they do not match their
 * checksum or reach past the end. OK: `have` grew. */
enum status upload_chunk(struct upload *u, const struct msg_chunk *chunk) MUST_CHECK;
/* True, and `upto` raised, when the worker should hear of new credit. */
bool upload_extend(struct upload *u);
bool upload_complete(const struct upload *u);
/* The whole payload matches the checksum of its offer. */
bool upload_intact(const struct upload *u);
void upload_drop(struct upload *u);

#endif
