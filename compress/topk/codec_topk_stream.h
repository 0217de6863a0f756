/* Reads the values of several top-k groups side by side.
 *
 * The position of a value's bits is known only after the previous value, so a single stream stalls the core. Several
 * independent streams fill the gaps. topk_check reads groups of one payload together; merging reads the same group of
 * several payloads together. */
#ifndef COMPRESS_CODEC_TOPK_STREAM_H
#define COMPRESS_CODEC_TOPK_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compress/topk/codec_topk.h"
#include "compress/topk/golomb.h"

enum { TOPK_LANES = 4, TOPK_SLICE = 1024, TOPK_LOOKUPS = 16 };

/* A group that is read chunk by chunk. */
struct topk_stream {
    struct bit_reader r;
    struct golomb golomb;
    const struct golomb_lookup *look;
    struct topk_scales scales; /* of the current chunk, like the members below */
    uint32_t previous;         /* scale of the last chunk that sent values; 0: none */
    uint32_t length, left;     /* coordinates; values still to read, at most */
    uint64_t next;             /* position after the last value; above `length`: the payload is corrupt */
    bool ended;                /* a final gap ended the chunk */
};

/* Consecutive values of one chunk. */
struct topk_slice {
    uint32_t n;
    uint16_t index[TOPK_SLICE], code[TOPK_SLICE];
};

/* Lookup tables of the groups that are being read, by their parameter m; most groups have the same m. */
struct topk_lookups {
    uint32_t n, m[TOPK_LOOKUPS];
    struct golomb_lookup look[TOPK_LOOKUPS];
};

/* The Golomb parameter m of a group. */
static inline uint32_t topk_group_parameter(const uint8_t *group)
{
    uint16_t m;
    memcpy(&m, group, TOPK_GROUP_HEAD);
    return m;
}

/* Makes room for `n` more groups, n <= TOPK_LOOKUPS. Groups opened before may lose their tables. */
void topk_lookups_reserve(struct topk_lookups *lookups, size_t n);
/* Opens group[size]; size is at least that of its head, and m > 0. */
struct topk_stream topk_stream_of(const uint8_t *group, size_t size, struct topk_lookups *lookups);
/* Goes on to the next chunk and reads its scales. Errors as topk_get_scales. */
enum status topk_stream_chunk(struct topk_stream *s, enum topk_values kind, const struct topk_item *item);
/* Reads the next values of each stream's chunk, at most TOPK_SLICE of each; n <= TOPK_LANES. Never reads outside the
 * group, whatever its bytes are. For an unchecked payload, the caller then checks next, ended and r.pos. */
void topk_streams_read(struct topk_stream *const *s, struct topk_slice *slices, size_t n, enum topk_values kind);

#endif
