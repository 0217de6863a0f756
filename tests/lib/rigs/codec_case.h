/* Inputs for codecs, and the contract of every codec. A failure fails the running cmocka test. */
#ifndef TESTS_LIB_CODEC_CASE_H
#define TESTS_LIB_CODEC_CASE_H

#include <stddef.h>
#include <stdint.h>

#include "compress/codec.h"

enum kind { NORMAL, ZEROS, SPARSE, DENORMAL, HUGE_VALUES, MIXED, CONSTANT, THRESHOLD, ANY_BITS, N_KINDS };

/* Fill x[n] by that kind; THRESHOLD: normal values times 2^threshold, near the smallest block that a codec sends. */
void codec_case_fill(enum kind kind, uint64_t seed, int threshold, float *x, size_t n);

/* Encode x[n] and decode it to decoded[n]; returns the payload's size. Checks that
 * - no byte past the bound is written,
 * - every instruction set makes the same bytes, values and sums, at any address of the bytes,
 * - a small capacity is refused,
 * - no memory is allocated. */
size_t codec_case_round_trip(struct codec *codec, size_t n, const float *x, float *decoded);

#endif
