/* Properties of a codec spec by the names of its stages, for the configuration, which cannot include compress/.
 *
 * A spec is a chain joined by '+': a value stage with its parameters, its modifiers, byte stages. compress/codec.h
 * creates and checks codecs, and has a table for each stage listed here. */
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
    X(2bit, false, false)                                                                                              \
    X(1bit, false, false)                                                                                              \
    X(topk, false, true)

#define CODEC_BYTE_STAGES(X) X(huff) X(lz4)

/* The spec must pass codec_spec_check; otherwise the result is unspecified. */
bool codec_spec_lossless(const char *spec); /* decode(encode(x)) == x bit for bit */
bool codec_spec_sparse(const char *spec);   /* a payload may omit coordinates */
bool codec_spec_staged(const char *spec);   /* byte stages follow the values */

#endif
