/* Inside the top-k stage: values read from several groups side by side.
 *
 * Where a value begins is known when the one before it has been read, so a single stream of bits keeps a core waiting;
 * several that have nothing to do with each other fill the gaps. Groups of one payload are checked together, the same
 * group of several payloads is merged together. */
#ifndef COMPRESS_CODEC_TOPK_STREAM_H
#define COMPRESS_CODEC_TOPK_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compress/topk/codec_topk.h"
#include "compress/topk/golomb.h"

enum { TOPK_LANES = 4, TOPK_SLICE = 1024, TOPK_LOOKUPS = 16 };

/* A group on its way to being read, chunk by chunk. */
struct topk_stream {
    struct bit_reader r;
    struct golomb golomb;
    const struct golomb_lookup *look;
    struct topk_scales scales; /* of the chunk; what follows, too */
    uint32_t previous;         /* scale of the chunk before that sent something; 0: none */
    uint32_t length, left;     /* coordinates; values that may still come */
    uint64_t next;             /* place behind the last value; above `length`: the payload is wrong */
    bool ended;                /* by a last gap */
};

/* Values of one chunk, in order. */
struct topk_slice {
    uint32_t n;
    uint16_t place[TOPK_SLICE], code[TOPK_SLICE];
};

/* Tables for the parameters of the groups that are being read: most have the same. */
struct topk_lookups {
    uint32_t n, m[TOPK_LOOKUPS];
    struct golomb_lookup look[TOPK_LOOKUPS];
};

/* m */
static inline uint32_t topk_group_parameter(const uint8_t *group)
{
    uint16_t m;
    memcpy(&m, group, TOPK_GROUP_HEAD);
    return m;
}

/* Make room for `n` more groups, n <= TOPK_LOOKUPS; those opened before may lose their tables. */
void topk_lookups_reserve(struct topk_lookups *looks, size_t n);
/* group[size]: at least its head, m > 0. */
struct topk_stream topk_stream_of(const uint8_t *group, size_t size, struct topk_lookups *looks);
/* Go on to the next chunk: reads its scales. Errors of topk_get_scales. */
enum status topk_stream_chunk(struct topk_stream *s, enum topk_values kind, const struct topk_item *item);
/* The next values of each stream's chunk, at most TOPK_SLICE of each; n <= TOPK_LANES. Never reads outside of the
 * group, whatever it holds; the caller of a payload that was not checked looks at next, ended and r.pos. */
void topk_streams_read(struct topk_stream *const *s, struct topk_slice *slices, size_t n, enum topk_values kind);

#endif
