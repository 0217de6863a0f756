/* The codecs that fuzz_codec.c drives and make_corpus.c makes inputs for, by index. */
#ifndef FUZZ_CODEC_SPECS_H
#define FUZZ_CODEC_SPECS_H

#include <stddef.h>

#include "compress/codec.h"

static const char *const codec_specs[] = {"fp32",
                                          "bf16",
                                          "int8:16",
                                          "int8:256",
                                          "fp32+lz4",
                                          "bf16+lz4",
                                          "int8:64+lz4",
                                          "fp32+lz4+lz4",
                                          "topk:9/256",
                                          "topk:100/256+2bit",
                                          "topk:4/256+int8",
                                          "topk:30/512+fp16",
                                          "topk:64/1024+lz4",
                                          "fp16",
                                          "int4:64",
                                          "2bit:64",
                                          "1bit:64",
                                          "int4:128+huff",
                                          "bf16+huff",
                                          "int8:64+huff",
                                          "fp32+huff",
                                          "2bit:256+lz4+huff",
                                          "topk:100/256+2bit+huff",
                                          "topk:2/65536"};

/* The last codec has this many floats: two groups, so that the decoder reads the group offsets. */
enum { CODEC_SPECS_LARGE = 140000, CODEC_SPECS_LARGE_AT = sizeof codec_specs / sizeof *codec_specs - 1 };

/* Sets a matrix of n values, or a matrix and a vector if n is even and not small; returns the number of spans.
 * The vector of a large fragment is short, so that payloads stay small. */
static inline size_t codec_specs_spans(size_t n, struct codec_span spans[2])
{
    size_t vector = n == CODEC_SPECS_LARGE ? 16 : n >= 100 && n % 2 == 0 ? n / 8 : 0, matrix = n - vector;
    spans[0] = (struct codec_span){.count = matrix, .rows = 1, .cols = matrix, .ndim = 2};
    spans[1] = (struct codec_span){.offset = matrix, .count = vector, .rows = 1, .cols = vector, .ndim = 1};
    return vector ? 2 : 1;
}

#endif
