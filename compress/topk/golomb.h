/* Golomb codes: the shortest prefix codes of geometrically distributed numbers, such as the gaps between randomly
 * chosen positions (Golomb 1966; Gallager, van Voorhis 1975). If the parameter m is a power of two, they are Rice
 * codes. Other m come closer to the entropy: at one position in 64, m = 44 takes 7.46 bits, Rice 7.53, the bound is
 * 7.43.
 *
 *     gap = q * m + r,  0 <= r < m;   c = ceil(log2 m), u = 2^c - m
 *     q zeros, a one; then r in c - 1 bits if r < u; else the upper c - 1 bits of r + u, then its lowest bit
 *
 * All arithmetic is integer: every machine picks the same parameter and writes the same bits. */
#ifndef COMPRESS_GOLOMB_H
#define COMPRESS_GOLOMB_H

#include <assert.h>
#include <stdbool.h>

#include "compress/bit_stream.h"

enum { GOLOMB_M_MAX = 65535, GOLOMB_BITS_MAX = 16 };

struct golomb {
    uint32_t m, c, u;
};

/* m in 1 .. GOLOMB_M_MAX */
static inline struct golomb golomb_of(uint32_t m)
{
    assert(m >= 1 && m <= GOLOMB_M_MAX);
    uint32_t c = m > 1 ? 32u - (uint32_t)__builtin_clz(m - 1) : 0;
    return (struct golomb){.m = m, .c = c, .u = (1u << c) - m};
}

/* The parameter for `count` gaps with this sum: ln 2 times (mean + 1/2), rounded. With it, the unary parts take at most
 * 2.67 bits a gap. sum < 2^44, count < 2^44; no gap exceeds GOLOMB_M_MAX + 1. */
static inline uint32_t golomb_parameter(uint64_t sum, uint64_t count)
{
    if (!count) return 1;
    assert(sum >> 44 == 0 && count >> 44 == 0);
    uint64_t m = ((2 * sum + count) * 45426 + count * 65536) / (count * 131072); /* ln 2 = 45426 / 65536 */
    return m < 1 ? 1 : m > GOLOMB_M_MAX ? GOLOMB_M_MAX : (uint32_t)m;
}

/* Bits of the code of one gap. */
static inline uint32_t golomb_size(const struct golomb *g, uint32_t gap)
{
    uint32_t q = gap / g->m, r = gap - q * g->m;
    return q + 1 + g->c - (uint32_t)(r < g->u);
}

/* The code of q * m + r, at most 32 bits; q < 16. */
struct golomb_code {
    uint32_t bits, n;
};

static inline struct golomb_code golomb_code_at(const struct golomb *g, uint32_t q, uint32_t r)
{
    uint32_t tail = 0, n = 0;
    if (r < g->u) {
        tail = r;
        n = g->c - 1;
    } else if (g->c) {
        uint32_t up = r + g->u;
        tail = up >> 1 | (up & 1) << (g->c - 1);
        n = g->c;
    }
    return (struct golomb_code){.bits = (1u << q) | (uint32_t)((uint64_t)tail << (q + 1)), .n = q + 1 + n};
}

static inline struct golomb_code golomb_code_of(const struct golomb *g, uint32_t gap)
{
    uint32_t q = gap / g->m;
    return golomb_code_at(g, q, gap - q * g->m);
}

/* Appends the code of gap < 2^17, then `extra` (n_extra <= 15 bits). */
static inline void golomb_put(struct bit_writer *w, const struct golomb *g, uint32_t gap, uint32_t extra,
                              unsigned n_extra)
{
    uint32_t q = gap / g->m;
    if (q >= 16) {
        bits_put_zeros(w, q);
        gap -= q * g->m;
    }
    struct golomb_code code = golomb_code_of(g, gap);
    bits_put(w, code.bits, code.n); /* at most 32, then at most 15 bits */
    bits_put(w, extra, n_extra);
}

/* Codes of the small gaps, which occur most often. */
enum { GOLOMB_TABLE = 1024 };

struct golomb_table {
    uint32_t n; /* entries: gaps 0 to n - 1 */
    struct golomb_code code[GOLOMB_TABLE];
};

static inline void golomb_table_fill(struct golomb_table *t, const struct golomb *g)
{
    t->n = g->m < GOLOMB_TABLE / 8 ? 8 * g->m : GOLOMB_TABLE;
    for (uint32_t gap = 0; gap < t->n; gap++) t->code[gap] = golomb_code_of(g, gap);
}

/* Inverse of golomb_put. The caller checks *gap and r->pos: if there are more zeros than any gap up to gap_max has,
 * *gap exceeds gap_max. */
static inline void golomb_get(struct bit_reader *r, const struct golomb *g, uint32_t gap_max, unsigned n_extra,
                              uint64_t *gap, uint32_t *extra)
{
    enum { STEP = 24 }; /* STEP + GOLOMB_BITS_MAX + 15 bits fit one peek */
    uint64_t word = bits_peek(r), q = 0;
    while (__builtin_expect(!(word & ((1u << STEP) - 1)), 0)) {
        q += STEP;
        r->pos += STEP;
        if (q > gap_max) {
            *gap = q;
            *extra = 0;
            return;
        }
        word = bits_peek(r);
    }
    unsigned zeros = (unsigned)__builtin_ctzll(word), used = zeros + 1;
    word >>= used;
    q += zeros;
    uint32_t rest = 0;
    if (g->c) {
        rest = (uint32_t)word & ((1u << (g->c - 1)) - 1);
        bool longer = rest >= g->u;
        uint32_t whole = 2 * rest + (uint32_t)(word >> (g->c - 1) & 1) - g->u;
        rest = longer ? whole : rest;
        unsigned n = g->c - !longer;
        word >>= n;
        used += n;
    }
    *gap = q * g->m + rest;
    *extra = (uint32_t)word & ((1u << n_extra) - 1);
    r->pos += used + n_extra;
}

/* Entry for the next GOLOMB_LOOKUP_BITS bits: the number that they start with, times 64, plus the bits of its code. 0:
 * the code is longer. Numbers with shorter codes are below 1024. */
enum { GOLOMB_LOOKUP_BITS = 11, GOLOMB_ENTRY_BITS = 6 };

struct golomb_lookup {
    uint16_t entry[1 << GOLOMB_LOOKUP_BITS];
};

/* The value of a code of n bits does not depend on the bits above it. So the table for n bits is that for n - 1 bits,
 * twice, plus the codes of n bits, which are those of the next numbers. */
static inline void golomb_lookup_fill(struct golomb_lookup *look, const struct golomb *g)
{
    uint32_t q = 0, r = 0;
    struct golomb_code code = golomb_code_at(g, 0, 0);
    look->entry[0] = 0;
    for (uint32_t n = 1; n <= GOLOMB_LOOKUP_BITS; n++) {
        memcpy(look->entry + (1u << (n - 1)), look->entry, sizeof *look->entry << (n - 1));
        for (; code.n == n; code = golomb_code_at(g, q, r)) {
            look->entry[code.bits] = (uint16_t)((q * g->m + r) << GOLOMB_ENTRY_BITS | n);
            if (++r == g->m) {
                r = 0;
                q++;
            }
        }
    }
}

#endif
