/* Updates and snapshots: the objects sent in chunks and stored in the journal, a header followed by the payload.
 *
 * An update is one outer step of one fragment f: theta_f,version = theta_f,version-1 + decode(payload), or =
 * decode(payload), by form. It names the deltas that were merged into it, which acknowledges them. */
#ifndef WIRE_OBJECT_H
#define WIRE_OBJECT_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/format/field.h"
#include "wire/msg.h"

struct update_named {
    uint32_t worker_id;
    uint64_t round;
    uint64_t tokens;
};

struct update {
    uint32_t fragment;
    uint64_t version;    /* of the fragment after this update, >= 1 */
    uint64_t round;      /* barrier: the round it closes; async: the round of the delta it merges */
    uint8_t form;        /* enum update_form */
    uint64_t theta_hash; /* hash_floats of the fragment after this update */
    double rate;         /* of the outer step, which workers repeat if the payload is the deltas (relay); finite */
    char codec[64];      /* spec of the payload */
    uint32_t n_named;
    const struct update_named *named; /* encode: borrowed; decode: the `named` buffer of the call */
    const uint8_t *payload;           /* decode: borrowed from src */
    size_t payload_size;
};

/* The bytes: update_fields, n_named times update_named_fields, update_payload_fields, the payload, and the CRC-32C of
 * all these. A snapshot's head ends with a CRC-32C, too. */
extern const struct field update_fields[], update_named_fields[], update_payload_fields[], snapshot_head_fields[];

/* Bytes that update_encode writes. */
size_t update_encoded_size(const struct update *u);
/* LIMIT when cap is too small; INVALID for a field over its limit. */
enum status update_encode(const struct update *u, uint8_t *dst, size_t cap, size_t *size_p) MUST_CHECK;
/* The CRC-32C of an encoded update, whose last bytes are that of the bytes before. */
uint32_t update_crc(const uint8_t *object, size_t size);
/* named[named_cap]: buffer of the caller. CORRUPT for anything malformed, LIMIT when named_cap is too small. */
enum status update_decode(struct update *u, struct update_named *named, size_t named_cap, const uint8_t *src,
                          size_t size) MUST_CHECK;
/* Decode the header of an update whose first bytes are src[size]. The payload begins at *payload_at; u->payload is
 * NULL. AGAIN: src is too short. The checksum is not verified: the caller may plan requests with the header but must
 * not apply it. */
enum status update_peek(struct update *u, struct update_named *named, size_t named_cap, const uint8_t *src, size_t size,
                        size_t *payload_at) MUST_CHECK;

/* A snapshot is theta_f at one version, little-endian fp32. */
struct snapshot_head {
    uint32_t fragment;
    uint64_t version, hash, count; /* count: floats that follow */
};

enum { SNAPSHOT_HEAD_BYTES = 40 };

void snapshot_head_encode(const struct snapshot_head *h, uint8_t dst[SNAPSHOT_HEAD_BYTES]);
/* CORRUPT when the head is short, its magic or CRC is wrong, or a field is over its limit. */
enum status snapshot_head_decode(struct snapshot_head *h, const uint8_t *src, size_t size) MUST_CHECK;

#endif
