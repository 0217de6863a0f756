#include "compress/topk/codec_topk_stream.h"

#include <assert.h>

void topk_lookups_reserve(struct topk_lookups *lookups, size_t n)
{
    assert(n <= TOPK_LOOKUPS);
    if (lookups->n + n > TOPK_LOOKUPS) lookups->n = 0;
}

static const struct golomb_lookup *lookup_of(struct topk_lookups *lookups, const struct golomb *g)
{
    for (uint32_t i = 0; i < lookups->n; i++)
        if (lookups->m[i] == g->m) return &lookups->look[i];
    assert(lookups->n < TOPK_LOOKUPS);
    uint32_t i = lookups->n++;
    lookups->m[i] = g->m;
    golomb_lookup_fill(&lookups->look[i], g);
    return &lookups->look[i];
}

struct topk_stream topk_stream_of(const uint8_t *group, size_t size, struct topk_lookups *lookups)
{
    assert(size >= TOPK_GROUP_HEAD);
    struct topk_stream s = {.r = bit_reader_of(group + TOPK_GROUP_HEAD, size - TOPK_GROUP_HEAD),
                            .golomb = golomb_of(topk_group_parameter(group))};
    s.look = lookup_of(lookups, &s.golomb);
    return s;
}

enum status topk_stream_chunk(struct topk_stream *s, enum topk_values kind, const struct topk_item *item)
{
    assert(item->k && item->k <= item->length && item->length <= UINT16_MAX + 1u);
    s->length = (uint32_t)item->length;
    s->left = 0;
    s->next = 0;
    s->ended = false;
    TRY(topk_get_scales(&s->r, &topk_forms[kind], s->previous, &s->scales));
    if (!s->scales.low) return STATUS_OK;
    s->previous = s->scales.low;
    s->left = item->k;
    return STATUS_OK;
}

/* ---- reading --------------------------------------------------------------------------------------------------------
 * A block is as many short codes as one 64-bit load is certain to hold. MARK, a one above the bits of the word, tells
 * how many of them were used. */

#define MARK ((uint64_t)1 << 63)

/* A code that is not in the table, and its value. */
struct long_code {
    uint64_t gap, pos, word; /* pos, word: after the code and its value */
    uint32_t code;
};

static __attribute__((noinline)) struct long_code read_long(const struct topk_stream *s, uint64_t pos,
                                                            unsigned value_bits)
{
    struct bit_reader r = s->r;
    struct long_code c;
    r.pos = pos;
    golomb_get(&r, &s->golomb, s->length, value_bits, &c.gap, &c.code);
    c.pos = r.pos;
    c.word = bits_peek(&r) | MARK;
    return c;
}

/* Reads the values from .. to of each chunk in blocks, while all streams hold whole blocks. Returns the index where it
 * stopped. */
static inline __attribute__((always_inline)) uint32_t read_blocks(struct topk_stream *const *s,
                                                                  struct topk_slice *slices, const unsigned lanes,
                                                                  const unsigned value_bits, uint32_t from, uint32_t to)
{
    const unsigned block = BITS_PEEK / (GOLOMB_LOOKUP_BITS + value_bits);
    uint64_t word[TOPK_LANES], pos[TOPK_LANES], next[TOPK_LANES];
    for (; from + block <= to; from += block) {
        for (unsigned l = 0; l < lanes; l++) {
            pos[l] = s[l]->r.pos;
            next[l] = s[l]->next;
            if ((pos[l] >> 3) + 8 > s[l]->r.size) return from;
            memcpy(&word[l], s[l]->r.data + (pos[l] >> 3), 8);
            word[l] = word[l] >> (pos[l] & 7) | MARK;
        }
        for (uint32_t i = from; i < from + block; i++)
            for (unsigned l = 0; l < lanes; l++) {
                uint64_t gap;
                uint32_t code, entry = s[l]->look->entry[word[l] & ((1u << GOLOMB_LOOKUP_BITS) - 1)];
                if (__builtin_expect(entry != 0, 1)) {
                    word[l] >>= entry & ((1u << GOLOMB_ENTRY_BITS) - 1);
                    gap = entry >> GOLOMB_ENTRY_BITS;
                    code = (uint32_t)word[l] & ((1u << value_bits) - 1);
                    word[l] >>= value_bits;
                } else {
                    struct long_code c = read_long(s[l], pos[l] + (unsigned)__builtin_clzll(word[l]), value_bits);
                    gap = c.gap;
                    code = c.code;
                    pos[l] = c.pos;
                    word[l] = c.word;
                }
                next[l] += gap;
                slices[l].index[i] = (uint16_t)next[l]++;
                slices[l].code[i] = (uint16_t)code;
            }
        for (unsigned l = 0; l < lanes; l++)
            if (next[l] > s[l]->length) return from; /* a chunk ends inside the block */
        for (unsigned l = 0; l < lanes; l++) {
            s[l]->r.pos = pos[l] + (unsigned)__builtin_clzll(word[l]);
            s[l]->next = next[l];
        }
    }
    return from;
}

/* Reads one value; false if the chunk has ended. */
static bool read_one(struct topk_stream *s, struct topk_slice *slice, uint32_t at, unsigned value_bits)
{
    uint64_t gap;
    uint32_t code;
    golomb_get(&s->r, &s->golomb, s->length, value_bits, &gap, &code);
    s->next += gap;
    if (s->next >= s->length) { /* the final gap has no value: give its bits back */
        s->r.pos -= value_bits;
        s->ended = true;
        return false;
    }
    slice->index[at] = (uint16_t)s->next++;
    slice->code[at] = (uint16_t)code;
    return true;
}

static uint32_t wanted(const struct topk_stream *s)
{
    return s->left < TOPK_SLICE ? s->left : TOPK_SLICE;
}

static inline __attribute__((always_inline)) void read_slices(struct topk_stream *const *s, struct topk_slice *slices,
                                                              const unsigned lanes, const unsigned value_bits)
{
    uint32_t together = 0, most = TOPK_SLICE;
    for (unsigned l = 0; l < lanes; l++) most = wanted(s[l]) < most ? wanted(s[l]) : most;
    if (lanes > 1) together = read_blocks(s, slices, lanes, value_bits, 0, most);
    for (unsigned l = 0; l < lanes; l++) {
        uint32_t to = wanted(s[l]), at = read_blocks(s + l, slices + l, 1, value_bits, together, to);
        while (at < to && read_one(s[l], &slices[l], at, value_bits)) at++;
        slices[l].n = at;
        s[l]->left = s[l]->ended ? 0 : s[l]->left - at;
    }
}

static inline __attribute__((always_inline)) void read_lanes(struct topk_stream *const *s, struct topk_slice *slices,
                                                             size_t n, const unsigned value_bits)
{
    if (n == TOPK_LANES) {
        read_slices(s, slices, TOPK_LANES, value_bits);
        return;
    }
    if (n >= 2) read_slices(s, slices, 2, value_bits);
    if (n & 1) read_slices(s + n - 1, slices + n - 1, 1, value_bits);
}

void topk_streams_read(struct topk_stream *const *s, struct topk_slice *slices, size_t n, enum topk_values kind)
{
    assert(n && n <= TOPK_LANES);
    switch (kind) {
    case TOPK_SIGN: read_lanes(s, slices, n, topk_value_bits(TOPK_SIGN)); break;
    case TOPK_2BIT: read_lanes(s, slices, n, topk_value_bits(TOPK_2BIT)); break;
    case TOPK_INT8: read_lanes(s, slices, n, topk_value_bits(TOPK_INT8)); break;
    case TOPK_FP16: read_lanes(s, slices, n, topk_value_bits(TOPK_FP16)); break;
    }
}
