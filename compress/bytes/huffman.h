/* Prefix codes for bytes: the best code lengths up to HUFFMAN_BITS_MAX for given counts, canonical codes from lengths,
 * and coding of one stream of bits. Codes of one length ascend with their byte, shorter codes come first; bits are
 * written lowest first, the first bit of a code before the others. */
#ifndef COMPRESS_HUFFMAN_H
#define COMPRESS_HUFFMAN_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum { HUFFMAN_BITS_MAX = 12, HUFFMAN_SLACK = 8 };

struct huffman_encoder {
    uint32_t entry[256]; /* code | length << 16, bits of the code in the order they are written */
};

struct huffman_decoder {
    uint16_t entry[1 << HUFFMAN_BITS_MAX]; /* byte << 8 | length, by the next bits */
};

/* count[b]: how often byte b occurs. */
void huffman_count(const uint8_t *bytes, size_t n, uint32_t count[256]);
/* Lengths of a code that needs the fewest bits (package-merge, Larmore and Hirschberg 1990); 0 for bytes that do not
 * occur. At least two different bytes occur; counts add up to less than 2^24. Equal counts: the smaller byte is never
 * shorter. Returns the bits that the whole takes. */
uint64_t huffman_lengths(const uint32_t count[256], uint8_t lengths[256]);
/* lengths come from huffman_lengths. */
void huffman_encoder_init(struct huffman_encoder *encoder, const uint8_t lengths[256]);
/* CORRUPT unless lengths are at most HUFFMAN_BITS_MAX and those above 0 make a complete code of two bytes or more. */
enum status huffman_decoder_init(struct huffman_decoder *decoder, const uint8_t lengths[256]) MUST_CHECK;

/* Streams are coded in step, so that none waits for another's last bits. */
enum { HUFFMAN_STREAMS = 8 };
/* size[k]: bytes written for n[k] bytes of src[k]; the last one is filled with zero bits. dst[k] has room for
 * HUFFMAN_BITS_MAX * n[k] / 8 + HUFFMAN_SLACK. */
void huffman_encode(const struct huffman_encoder *encoder, const uint8_t *const src[HUFFMAN_STREAMS],
                    const size_t n[HUFFMAN_STREAMS], uint8_t *const dst[HUFFMAN_STREAMS], size_t size[HUFFMAN_STREAMS]);
/* Decode n[k] bytes to out[k] from src[k][size[k]]. CORRUPT unless each stream takes exactly its bytes and ends with
 * zero bits; out may be written to all the same. Nothing is read outside src[k][size[k]]. */
enum status huffman_decode(const struct huffman_decoder *decoder, const uint8_t *const src[HUFFMAN_STREAMS],
                           const size_t size[HUFFMAN_STREAMS], uint8_t *const out[HUFFMAN_STREAMS],
                           const size_t n[HUFFMAN_STREAMS]) MUST_CHECK;

#endif
