#include "compress/bytes/huffman.h"

#include <string.h>

enum { BYTES = 256, MAX = HUFFMAN_BITS_MAX };

void huffman_count(const uint8_t *bytes, size_t n, uint32_t count[BYTES])
{
    uint32_t part[4][BYTES]; /* four tables, so that equal bytes in a row do not wait for each other's increment */
    memset(part, 0, sizeof part);
    size_t i = 0;
    for (; n - i >= 8; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        for (int k = 0; k < 8; k++) part[k % 4][word >> 8 * k & 255]++;
    }
    for (; i < n; i++) part[0][bytes[i]]++;
    for (int b = 0; b < BYTES; b++) count[b] = part[0][b] + part[1][b] + part[2][b] + part[3][b];
}

/* Sorts ascending (Shell sort). */
static void sort(uint32_t *v, size_t n)
{
    static const size_t gaps[] = {57, 23, 10, 4, 1};
    for (size_t g = 0; g < sizeof gaps / sizeof *gaps; g++)
        for (size_t gap = gaps[g], i = gap; i < n; i++) {
            uint32_t x = v[i];
            size_t k = i;
            for (; k >= gap && v[k - gap] > x; k -= gap) v[k] = v[k - gap];
            v[k] = x;
        }
}

/* Package-merge. Each level merges all leaves with packages of two neighbours of the previous level. The first 2n - 2
 * items of the last level are selected. k packages among the selected items of a level select the first 2k items of the
 * previous level; each selected leaf lengthens its code by one bit. */
uint64_t huffman_lengths(const uint32_t count[BYTES], uint8_t lengths[BYTES])
{
    uint32_t leaf[BYTES]; /* count << 8 | byte */
    uint64_t level[2][2 * BYTES];
    uint8_t is_leaf[MAX][2 * BYTES];
    size_t n = 0, items = 0;
    for (uint32_t b = 0; b < BYTES; b++)
        if (count[b]) leaf[n++] = count[b] << 8 | b;
    sort(leaf, n);
    memset(lengths, 0, BYTES);
    for (int l = 0; l < MAX; l++) {
        const uint64_t *before = level[l & 1];
        uint64_t *now = level[(l & 1) ^ 1];
        size_t packages = items / 2, p = 0, f = 0;
        for (items = 0; p < packages || f < n; items++) {
            uint64_t package = p < packages ? before[2 * p] + before[2 * p + 1] : UINT64_MAX;
            uint64_t weight = f < n ? leaf[f] >> 8 : UINT64_MAX;
            is_leaf[l][items] = weight <= package;
            now[items] = weight <= package ? weight : package;
            f += weight <= package;
            p += weight > package;
        }
    }
    uint64_t bits = 0;
    size_t selected = 2 * n - 2;
    for (int l = MAX - 1; l >= 0; l--) {
        size_t n_leaves = 0;
        for (size_t i = 0; i < selected; i++) n_leaves += is_leaf[l][i];
        for (size_t i = 0; i < n_leaves; i++) {
            lengths[leaf[i] & 255]++;
            bits += leaf[i] >> 8;
        }
        selected = 2 * (selected - n_leaves);
    }
    return bits;
}

/* The first code of each length, as a number whose highest bit is written first. */
static void first_codes(const uint8_t lengths[BYTES], uint32_t first[MAX + 1])
{
    uint32_t used[MAX + 1] = {0}, code = 0;
    for (int b = 0; b < BYTES; b++) used[lengths[b]]++;
    used[0] = 0;
    for (int l = 1; l <= MAX; l++) {
        code = (code + used[l - 1]) << 1;
        first[l] = code;
    }
}

static uint32_t reversed(uint32_t code, uint32_t length)
{
    uint32_t out = 0;
    for (; length; length--, code >>= 1) out = out << 1 | (code & 1);
    return out;
}

void huffman_encoder_init(struct huffman_encoder *encoder, const uint8_t lengths[BYTES])
{
    uint32_t next[MAX + 1];
    first_codes(lengths, next);
    for (int b = 0; b < BYTES; b++) {
        uint32_t length = lengths[b];
        encoder->entry[b] = length ? reversed(next[length]++, length) | length << 16 : 0;
    }
}

enum status huffman_decoder_init(struct huffman_decoder *decoder, const uint8_t lengths[BYTES])
{
    uint32_t next[MAX + 1], filled = 0, bytes = 0;
    for (int b = 0; b < BYTES; b++) {
        if (lengths[b] > MAX) return STATUS_CORRUPT;
        filled += lengths[b] ? 1u << (MAX - lengths[b]) : 0;
        bytes += lengths[b] != 0;
    }
    if (filled != 1u << MAX || bytes < 2) return STATUS_CORRUPT;
    first_codes(lengths, next);
    for (uint32_t b = 0; b < BYTES; b++) {
        uint32_t length = lengths[b];
        if (!length) continue;
        for (uint32_t i = reversed(next[length]++, length); i < 1u << MAX; i += 1u << length)
            decoder->entry[i] = (uint16_t)(b << 8 | length);
    }
    return STATUS_OK;
}

struct sink {
    uint8_t *p;
    uint64_t waiting; /* bits that do not fill a byte yet */
    unsigned bits;
};

static inline __attribute__((always_inline)) void push(const struct huffman_encoder *encoder, struct sink *s,
                                                       uint8_t byte)
{
    uint32_t entry = encoder->entry[byte];
    s->waiting |= (uint64_t)(entry & 0xffff) << s->bits;
    s->bits += entry >> 16;
}

/* Up to 7 bits wait, and four codes add at most 48. */
static inline __attribute__((always_inline)) void push_four(const struct huffman_encoder *encoder, struct sink *s,
                                                            const uint8_t *bytes)
{
    for (int k = 0; k < 4; k++) push(encoder, s, bytes[k]);
    memcpy(s->p, &s->waiting, 8);
    s->p += s->bits / 8;
    s->waiting >>= s->bits & ~7u;
    s->bits &= 7;
}

/* Writes the last codes, at most three. */
static uint8_t *push_rest(const struct huffman_encoder *encoder, struct sink s, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) push(encoder, &s, bytes[i]);
    memcpy(s.p, &s.waiting, 8);
    return s.p + (s.bits + 7) / 8;
}

void huffman_encode(const struct huffman_encoder *encoder, const uint8_t *const src[HUFFMAN_STREAMS],
                    const size_t n[HUFFMAN_STREAMS], uint8_t *const dst[HUFFMAN_STREAMS], size_t size[HUFFMAN_STREAMS])
{
    for (int k = 0; k < HUFFMAN_STREAMS; k += 2) {
        struct sink a = {.p = dst[k]}, b = {.p = dst[k + 1]};
        const uint8_t *from_a = src[k], *from_b = src[k + 1];
        size_t i = 0, j, both = n[k] < n[k + 1] ? n[k] : n[k + 1];
        for (; both - i >= 4; i += 4) {
            push_four(encoder, &a, from_a + i);
            push_four(encoder, &b, from_b + i);
        }
        for (j = i; n[k] - i >= 4; i += 4) push_four(encoder, &a, from_a + i);
        for (; n[k + 1] - j >= 4; j += 4) push_four(encoder, &b, from_b + j);
        size[k] = (size_t)(push_rest(encoder, a, from_a + i, n[k] - i) - dst[k]);
        size[k + 1] = (size_t)(push_rest(encoder, b, from_b + j, n[k + 1] - j) - dst[k + 1]);
    }
}

/* Decodes four bytes from bit `at` of a stream and returns the next bit. The stream has at least eight bytes from
 * there; the codes take at most 7 + 48 bits. */
static inline __attribute__((always_inline)) size_t decode_four(const struct huffman_decoder *decoder,
                                                                const uint8_t *src, size_t at, uint8_t *out)
{
    uint64_t bits;
    memcpy(&bits, src + at / 8, 8);
    bits >>= at % 8;
    uint32_t lengths = 0;
    for (int k = 0; k < 4; k++) {
        uint32_t entry = decoder->entry[bits & ((1u << MAX) - 1)];
        bits >>= entry & 63;
        lengths += entry;
        out[k] = (uint8_t)(entry >> 8);
    }
    return at + (lengths & 255);
}

/* Positions are scalar variables: an array would go through memory in every round. */
static size_t decode_rounds(const struct huffman_decoder *decoder, const uint8_t *const src[HUFFMAN_STREAMS],
                            uint8_t *const out[HUFFMAN_STREAMS], size_t at[HUFFMAN_STREAMS], size_t i, size_t rounds)
{
    size_t a = at[0], b = at[1], c = at[2], d = at[3], e = at[4], f = at[5], g = at[6], h = at[7];
    for (; rounds; rounds--, i += 4) {
        a = decode_four(decoder, src[0], a, out[0] + i);
        b = decode_four(decoder, src[1], b, out[1] + i);
        c = decode_four(decoder, src[2], c, out[2] + i);
        d = decode_four(decoder, src[3], d, out[3] + i);
        e = decode_four(decoder, src[4], e, out[4] + i);
        f = decode_four(decoder, src[5], f, out[5] + i);
        g = decode_four(decoder, src[6], g, out[6] + i);
        h = decode_four(decoder, src[7], h, out[7] + i);
    }
    at[0] = a, at[1] = b, at[2] = c, at[3] = d, at[4] = e, at[5] = f, at[6] = g, at[7] = h;
    return i;
}

/* Decodes the rest of a stream from bit `at`, one byte at a time. Bits past its end read as zeros. */
static enum status decode_rest(const struct huffman_decoder *decoder, const uint8_t *src, size_t size, size_t at,
                               uint8_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        size_t left = size - at / 8;
        if (at / 8 >= size) return STATUS_CORRUPT;
        memcpy(&bits, src + at / 8, left < 8 ? left : 8);
        uint32_t entry = decoder->entry[bits >> at % 8 & ((1u << MAX) - 1)];
        out[i] = (uint8_t)(entry >> 8);
        at += entry & 63;
    }
    if ((at + 7) / 8 != size) return STATUS_CORRUPT;
    return at % 8 && src[size - 1] >> at % 8 ? STATUS_CORRUPT : STATUS_OK;
}

enum status huffman_decode(const struct huffman_decoder *decoder, const uint8_t *const src[HUFFMAN_STREAMS],
                           const size_t size[HUFFMAN_STREAMS], uint8_t *const out[HUFFMAN_STREAMS],
                           const size_t n[HUFFMAN_STREAMS])
{
    size_t at[HUFFMAN_STREAMS] = {0}, i = 0;
    for (;;) {
        size_t rounds = SIZE_MAX; /* that certainly fit: a round takes at most 48 bits and loads 64 */
        for (int k = 0; k < HUFFMAN_STREAMS; k++) {
            size_t left = size[k] - at[k] / 8, wanted = (n[k] - i) / 4, fit = left < 8 ? 0 : (left - 8) / 6;
            rounds = fit < rounds ? fit : rounds;
            rounds = wanted < rounds ? wanted : rounds;
        }
        if (!rounds) break;
        i = decode_rounds(decoder, src, out, at, i, rounds);
    }
    for (int k = 0; k < HUFFMAN_STREAMS; k++) TRY(decode_rest(decoder, src[k], size[k], at[k], out[k] + i, n[k] - i));
    return STATUS_OK;
}
