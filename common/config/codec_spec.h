/* What the names in a codec spec say, for those who have to know before there is a codec (configurations). A spec is a
 * chain joined by '+': a value stage with its parameters, its modifiers, byte stages. compress/codec.h makes codecs of
 * specs, checks them, and has a table for each stage that is listed here. */
#ifndef COMMON_CODEC_SPEC_H
#define COMMON_CODEC_SPEC_H

#include <stdbool.h>

enum { CODEC_SPEC_MAX = 64 }; /* bytes of a spec with its NUL */

/* name, lossless, sparse */
#define CODEC_VALUE_STAGES(X)                                                                                          \
    X(fp32, true, false)                                                                                               \
    X(bf16, false, false)                                                                                              \
    X(fp16, false, false)                                                                                              \
    X(int8, false, false)                                                                                              \
    X(int4, false, false)                                                                                              \
    X(e3m0, false, false)                                                                                              \
    X(2bit, false, false)                                                                                              \
    X(1bit, false, false)                                                                                              \
    X(topk, false, true)

#define CODEC_BYTE_STAGES(X) X(huff) X(lz4)

/* Of a spec that codec_spec_check would take; of another one anything. */
bool codec_spec_lossless(const char *spec); /* decode(encode(x)) == x bit for bit */
bool codec_spec_sparse(const char *spec);   /* a payload may leave out coordinates */
bool codec_spec_staged(const char *spec);   /* byte stages follow the values */

#endif
