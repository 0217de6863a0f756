/* Bits of a payload, lowest bit of the lowest byte first.
 *
 * - Writer: the caller computes the size beforehand. The writer touches no bytes beyond it, except where a function's
 *   comment says so.
 * - Reader: takes untrusted bytes. It reads zeros past the end and touches no memory there; the caller compares `pos`
 *   with the end. */
#ifndef COMPRESS_BIT_STREAM_H
#define COMPRESS_BIT_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { BITS_PEEK = 57, BITS_PUT_MAX = 32 };

struct bit_writer {
    uint8_t *dst;
    uint64_t word; /* bits not yet written */
    unsigned held; /* bits in `word`, < 32 between calls */
};

static inline struct bit_writer bit_writer_of(uint8_t *dst)
{
    return (struct bit_writer){.dst = dst};
}

/* value < 2^n, n <= BITS_PUT_MAX */
static inline void bits_put(struct bit_writer *w, uint32_t value, unsigned n)
{
    w->word |= (uint64_t)value << w->held;
    w->held += n;
    if (w->held < 32) return;
    uint32_t out = (uint32_t)w->word;
    memcpy(w->dst, &out, 4);
    w->dst += 4;
    w->word >>= 32;
    w->held -= 32;
}

/* Writes the whole bytes of the held bits and keeps the rest, fewer than 8. Touches 8 bytes from w->dst on. */
static inline void bits_store(struct bit_writer *w)
{
    memcpy(w->dst, &w->word, 8);
    w->dst += w->held >> 3;
    w->word >>= w->held & 56;
    w->held &= 7;
}

/* Appends `value` without a branch, for many codes in a row. value < 2^n, n <= 56. Call it only after bits_store or
 * another bits_put_wide. Touches 8 bytes from w->dst on. */
static inline void bits_put_wide(struct bit_writer *w, uint64_t value, unsigned n)
{
    w->word |= value << w->held;
    w->held += n;
    bits_store(w);
}

/* Appends n zero bits. */
static inline void bits_put_zeros(struct bit_writer *w, uint32_t n)
{
    for (; n > BITS_PUT_MAX; n -= BITS_PUT_MAX) bits_put(w, 0, BITS_PUT_MAX);
    bits_put(w, 0, n);
}

/* Pads with zero bits to a whole byte. Returns one past the last byte. */
static inline uint8_t *bits_flush(struct bit_writer *w)
{
    for (; w->held; w->held = w->held > 8 ? w->held - 8 : 0) {
        *w->dst++ = (uint8_t)w->word;
        w->word >>= 8;
    }
    return w->dst;
}

struct bit_reader {
    const uint8_t *data;
    size_t size;
    uint64_t pos; /* bits */
};

static inline struct bit_reader bit_reader_of(const uint8_t *data, size_t size)
{
    return (struct bit_reader){.data = data, .size = size};
}

/* Returns at least the next BITS_PEEK bits; the bits above them are undefined. */
static inline uint64_t bits_peek(const struct bit_reader *r)
{
    size_t at = (size_t)(r->pos >> 3);
    uint64_t word = 0;
    if (r->size >= 8 && at <= r->size - 8)
        memcpy(&word, r->data + at, 8);
    else if (at < r->size)
        memcpy(&word, r->data + at, r->size - at);
    return word >> (r->pos & 7);
}

/* n <= BITS_PUT_MAX */
static inline uint32_t bits_get(struct bit_reader *r, unsigned n)
{
    uint64_t word = bits_peek(r);
    r->pos += n;
    return (uint32_t)(word & (((uint64_t)1 << n) - 1));
}

#endif
