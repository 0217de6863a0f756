/* Prefix codes for bytes: optimal code lengths up to HUFFMAN_BITS_MAX, canonical codes from lengths, and coding of bit
 * streams. Shorter codes come first; codes of one length ascend with their byte. Streams are written lowest bit first,
 * and a code starts with its highest bit. */
#ifndef COMPRESS_HUFFMAN_H
#define COMPRESS_HUFFMAN_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum { HUFFMAN_BITS_MAX = 12, HUFFMAN_SLACK = 8 };

struct huffman_encoder {
    uint32_t entry[256]; /* code | length << 16; the first bit written is the lowest */
};

struct huffman_decoder {
    uint16_t entry[1 << HUFFMAN_BITS_MAX]; /* byte << 8 | length, indexed by the next bits */
};

/* count[b] = number of bytes equal to b. */
void huffman_count(const uint8_t *bytes, size_t n, uint32_t count[256]);
/* Code lengths that need the fewest bits (package-merge, Larmore and Hirschberg 1990); 0 for bytes that do not occur.
 * At least two different bytes occur, and counts add up to less than 2^24. Among equal counts the smaller byte never
 * has the shorter code. Returns the bits of all codes. */
uint64_t huffman_lengths(const uint32_t count[256], uint8_t lengths[256]);
/* lengths: from huffman_lengths. */
void huffman_encoder_init(struct huffman_encoder *encoder, const uint8_t lengths[256]);
/* CORRUPT unless lengths are at most HUFFMAN_BITS_MAX and those above 0 form a complete code of two bytes or more. */
enum status huffman_decoder_init(struct huffman_decoder *decoder, const uint8_t lengths[256]) MUST_CHECK;

/* Streams are coded in step, so that none waits for another's last bits. */
enum { HUFFMAN_STREAMS = 8 };
/* size[k] = bytes written for n[k] bytes of src[k]; zero bits pad the last one. dst[k] holds HUFFMAN_BITS_MAX * n[k] /
 * 8 + HUFFMAN_SLACK bytes. */
void huffman_encode(const struct huffman_encoder *encoder, const uint8_t *const src[HUFFMAN_STREAMS],
                    const size_t n[HUFFMAN_STREAMS], uint8_t *const dst[HUFFMAN_STREAMS], size_t size[HUFFMAN_STREAMS]);
/* Decodes n[k] bytes to out[k] from src[k][size[k]]. CORRUPT unless each stream takes exactly its bytes and ends with
 * zero bits; out may be written even then. Reads nothing outside src[k][size[k]]. */
enum status huffman_decode(const struct huffman_decoder *decoder, const uint8_t *const src[HUFFMAN_STREAMS],
                           const size_t size[HUFFMAN_STREAMS], uint8_t *const out[HUFFMAN_STREAMS],
                           const size_t n[HUFFMAN_STREAMS]) MUST_CHECK;

#endif
