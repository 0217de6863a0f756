/* The upload of one delta: chunks of one fragment, in order, under credit. Pure: the caller writes the bytes to slot
 * `slot` of the store's spool. */
#ifndef COORDINATOR_UPLOAD_H
#define COORDINATOR_UPLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "wire/msg.h"

enum { UPLOAD_WINDOW = 4 << 20 }; /* bytes of credit beyond the received bytes */

struct upload {
    bool active;
    struct msg_offer offer;
    uint32_t slot;       /* slot of the spool that holds the bytes */
    uint64_t have, upto; /* bytes received; credit granted, as an offset */
};

/* Starts or continues the upload that `offer` describes. If round, size, checksum or base version differ from the
 * current upload, it starts again at byte 0, in `slot`. */
void upload_start(struct upload *u, const struct msg_offer *offer, uint32_t slot);
/* Takes a chunk.
 * - OK: `have` grew; the caller keeps the chunk's bytes.
 * - AGAIN: not the next bytes (lost, repeated or of another upload); nothing changed.
 * - CORRUPT: the bytes differ from their checksum or reach past the end. */
enum status upload_chunk(struct upload *u, const struct msg_chunk *chunk) MUST_CHECK;
/* Raises `upto` if enough new credit has accumulated; true: the caller sends it to the worker. */
bool upload_extend(struct upload *u);
bool upload_complete(const struct upload *u);
/* The complete payload, data[offer.bytes], matches the checksum of its offer. */
bool upload_intact(const struct upload *u, const uint8_t *data);
void upload_drop(struct upload *u);

#endif
