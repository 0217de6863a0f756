/* Inputs for codecs, and what every codec promises of them. What goes wrong fails the running cmocka test. */
#ifndef TESTS_LIB_CODEC_CASE_H
#define TESTS_LIB_CODEC_CASE_H

#include <stddef.h>
#include <stdint.h>

#include "compress/codec.h"

enum kind { NORMAL, ZEROS, SPARSE, DENORMAL, HUGE_VALUES, MIXED, CONSTANT, THRESHOLD, ANY_BITS, N_KINDS };

/* x[n] of that kind; THRESHOLD: normal numbers times 2^threshold, about the smallest block that a codec sends. */
void codec_case_fill(enum kind kind, uint64_t seed, int threshold, float *x, size_t n);

/* Encodes x[n] and decodes it to decoded[n]; returns the payload's size. Checks that nothing is written behind the
 * bound, that every instruction set makes the same bytes, numbers and sums, wherever the bytes lie, that too little
 * room is refused, and that nothing is allocated. */
size_t codec_case_round_trip(struct codec *codec, size_t n, const float *x, float *decoded);

#endif
