#include "compress/huffman.h"

#include <string.h>

enum { BYTES = 256, MAX = HUFFMAN_BITS_MAX };

void huffman_count(const uint8_t *bytes, size_t n, uint32_t count[BYTES])
{
    uint32_t part[4][BYTES]; /* equal bytes in a row do not wait for each other */
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

/* Ascending, by Shell's method. */
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

/* Level by level: packages of two neighbours of the level before, merged with all leaves. Of the last level the first
 * 2n - 2 items are taken; k packages among the items taken of a level mean the first 2k items of the level before, and
 * each leaf taken makes its code a bit longer. */
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
    size_t taken = 2 * n - 2;
    for (int l = MAX - 1; l >= 0; l--) {
        size_t leaves = 0;
        for (size_t i = 0; i < taken; i++) leaves += is_leaf[l][i];
        for (size_t i = 0; i < leaves; i++) {
            lengths[leaf[i] & 255]++;
            bits += leaf[i] >> 8;
        }
        taken = 2 * (taken - leaves);
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

/* Up to 7 bits wait, four codes add at most 48. */
size_t huffman_encode(const struct huffman_encoder *encoder, const uint8_t *bytes, size_t n, uint8_t *dst)
{
    uint8_t *p = dst;
    uint64_t waiting = 0;
    unsigned bits = 0;
    size_t i = 0;
    for (; n - i >= 4; i += 4) {
        for (size_t k = 0; k < 4; k++) {
            uint32_t entry = encoder->entry[bytes[i + k]];
            waiting |= (uint64_t)(entry & 0xffff) << bits;
            bits += entry >> 16;
        }
        memcpy(p, &waiting, 8);
        p += bits / 8;
        waiting >>= bits & ~7u;
        bits &= 7;
    }
    for (; i < n; i++) {
        uint32_t entry = encoder->entry[bytes[i]];
        waiting |= (uint64_t)(entry & 0xffff) << bits;
        bits += entry >> 16;
    }
    memcpy(p, &waiting, 8);
    return (size_t)(p - dst) + (bits + 7) / 8;
}

struct stream {
    const uint8_t *p, *end; /* bits from bit `used` of *p on are not decoded yet */
    uint64_t used;
    uint8_t *out, *out_end;
};

/* Four bytes of a stream that has eight bytes left: at most 7 + 48 bits of them. */
static inline __attribute__((always_inline)) void decode_four(const struct huffman_decoder *decoder, struct stream *s)
{
    uint64_t bits;
    memcpy(&bits, s->p, 8);
    bits >>= s->used;
    uint32_t lengths = 0;
    for (int k = 0; k < 4; k++) {
        uint32_t entry = decoder->entry[bits & ((1u << MAX) - 1)];
        bits >>= entry & 63;
        lengths += entry;
        s->out[k] = (uint8_t)(entry >> 8);
    }
    s->out += 4;
    s->used += lengths & 255;
    s->p += s->used / 8;
    s->used %= 8;
}

/* The rest of a stream, one byte at a time; what lies behind its end reads as zeros. */
static enum status decode_rest(const struct huffman_decoder *decoder, struct stream s)
{
    while (s.out < s.out_end) {
        uint64_t bits = 0;
        if (s.p >= s.end) return STATUS_CORRUPT;
        memcpy(&bits, s.p, s.end - s.p < 8 ? (size_t)(s.end - s.p) : 8);
        uint32_t entry = decoder->entry[bits >> s.used & ((1u << MAX) - 1)];
        *s.out++ = (uint8_t)(entry >> 8);
        s.used += entry & 63;
        s.p += s.used / 8;
        s.used %= 8;
    }
    if (s.used == 0) return s.p == s.end ? STATUS_OK : STATUS_CORRUPT;
    return s.p == s.end - 1 && *s.p >> s.used == 0 ? STATUS_OK : STATUS_CORRUPT;
}

enum status huffman_decode(const struct huffman_decoder *decoder, const uint8_t *const src[HUFFMAN_STREAMS],
                           const size_t size[HUFFMAN_STREAMS], uint8_t *const out[HUFFMAN_STREAMS],
                           const size_t n[HUFFMAN_STREAMS])
{
    struct stream s[HUFFMAN_STREAMS];
    for (int k = 0; k < HUFFMAN_STREAMS; k++)
        s[k] = (struct stream){src[k], src[k] + size[k], 0, out[k], out[k] + n[k]};
    for (;;) {
        size_t rounds = SIZE_MAX; /* that surely fit: a round takes at most 7 bytes and needs 8 */
        for (int k = 0; k < HUFFMAN_STREAMS; k++) {
            size_t left = (size_t)(s[k].end - s[k].p), wanted = (size_t)(s[k].out_end - s[k].out) / 4;
            size_t fit = left < 8 ? 0 : (left - 8) / 7 + 1;
            rounds = fit < rounds ? fit : rounds;
            rounds = wanted < rounds ? wanted : rounds;
        }
        if (!rounds) break;
        struct stream a = s[0], b = s[1], c = s[2], d = s[3];
        for (; rounds; rounds--) {
            decode_four(decoder, &a);
            decode_four(decoder, &b);
            decode_four(decoder, &c);
            decode_four(decoder, &d);
        }
        s[0] = a, s[1] = b, s[2] = c, s[3] = d;
    }
    for (int k = 0; k < HUFFMAN_STREAMS; k++) TRY(decode_rest(decoder, s[k]));
    return STATUS_OK;
}
