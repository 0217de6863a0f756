/* What a codec is made of. A new value stage (top-k, int4, ...) or byte stage (rANS, ...) is one file with one static
 * table, listed in common/config/codec_spec.h.
 *
 * A chain is one value stage and up to CODEC_STAGES_MAX - 1 byte stages. Sizes, scratch memory and parameters are fixed
 * when the codec is created; encode and decode allocate nothing. Untrusted bytes are met in this order: each byte stage
 * undoes itself into scratch memory and checks as it goes, then the value stage's `check` sees the whole payload, and
 * only then `decode` or `decode_axpy` write the caller's floats, part by part: they cannot fail. */
#ifndef COMPRESS_CODEC_STAGE_H
#define COMPRESS_CODEC_STAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/codec_spec.h"
#include "compress/codec.h"

/* Arrays of values go in and out by memcpy; a big-endian machine would need byte swaps here. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "payloads are little-endian");

enum { CODEC_STAGES_MAX = 4, CODEC_PART = 1 << 17 };

struct value_stage;

enum { PAYLOAD_SECTIONS = 3 };

/* What a byte stage may know of the bytes it gets. Sections lie end to end from 0; what follows the last one has
 * elements of `width` bytes. The output of a byte stage has no sections. */
struct payload_shape {
    uint8_t width;
    size_t n_plain; /* values that the first section holds as they are, in 16 bits each */
    size_t n_sections;
    struct {
        size_t to; /* offset of its end */
        uint8_t width;
    } section[PAYLOAD_SECTIONS];
};

/* A value stage configured for one fragment. */
struct value_ctx {
    const struct value_stage *stage;
    const struct codec_span *spans; /* (n_spans) */
    size_t n_spans, n;              /* n: floats in all */
    uint32_t param[3];              /* meaning is the stage's own, set by parse */
    void *scratch;                  /* stage->scratch bytes, MEM_ALIGN-aligned; NULL when that is 0; encode's own */
    void *plan;                     /* stage->plan bytes, filled by prepare, read by all; NULL when that is 0 */
};

struct value_stage {
    const char *name, *usage, *help;
    float feedback_decay;
    uint8_t width; /* bytes of one element of the payload: byte stages group bytes of the same significance by it */
    /* Where a payload changes its nature (scales, then codes); out->width is set already. NULL: nowhere. */
    void (*shape)(const struct value_ctx *ctx, struct payload_shape *out);
    /* Read the text after ':' (NULL when there is none), set ctx->param and write the canonical spec, at most
     * CODEC_SPEC_MAX bytes. INVALID: err says what is allowed. */
    enum status (*parse)(struct value_ctx *ctx, const char *args, char *canonical, struct err *err);
    /* codec_spec_period. NULL: 0. */
    uint32_t (*period)(const struct value_ctx *ctx);
    /* A word after '+' that follows the stage and `nth` of its modifiers: change ctx->param and rewrite the canonical
     * spec; false when it is none of the stage's, or no other may follow. NULL: no modifiers. */
    bool (*modify)(struct value_ctx *ctx, const char *word, unsigned nth, char *canonical);
    /* Bytes of ctx->plan, then fill it, once, when n and spans are known. NULL: no plan. UNSUPPORTED: the fragment
     * is too large for the stage. */
    size_t (*plan)(const struct value_ctx *ctx);
    enum status (*prepare)(const struct value_ctx *ctx);
    size_t (*bound)(const struct value_ctx *ctx);   /* largest payload of any input */
    size_t (*scratch)(const struct value_ctx *ctx); /* bytes; NULL: none */
    /* codec_bound_bits, of a full payload. NULL: the entropy of the codes. */
    double (*bound_bits)(const struct value_ctx *ctx);
    /* Parts: boundaries are multiples of `align` floats, each part CODEC_PART floats rounded up to it (NULL: align 1).
     * Or the stage says itself: `parts` and `part`. */
    size_t (*align)(const struct value_ctx *ctx);
    size_t (*parts)(const struct value_ctx *ctx);
    struct codec_part (*part)(const struct value_ctx *ctx, size_t index);
    /* x[n] is finite. LIMIT when the payload does not fit; *size_p only set on success. NULL: there is encode_part. */
    enum status (*encode)(const struct value_ctx *ctx, const float *x, uint8_t *dst, size_t cap, size_t *size_p);
    /* One part into the payload at dst, whose size is always `bound`; x points at coordinate part.from and is finite.
     * On several threads at once, in any order: ctx is read only, and no two parts touch the same bytes. */
    void (*encode_part)(const struct value_ctx *ctx, const float *x, struct codec_part part, uint8_t *dst);
    /* codec_delta_format and the payload of checked heads, none of them bad; both NULL: not in this form. */
    void (*delta_format)(const struct value_ctx *ctx, struct delta_format *shape, struct piece_range *pieces);
    enum status (*encode_quantized)(const struct value_ctx *ctx, const struct quantized_delta *numbers, uint8_t *dst,
                                    size_t cap, size_t *size_p);
    /* The way back, of a payload that passed `check`; the numbers are zeroed. NULL where `delta_format` is. */
    void (*decode_quantized)(const struct value_ctx *ctx, const uint8_t *src, size_t size,
                             const struct quantized_delta *numbers);
    /* CORRUPT or NONFINITE unless decode will read exactly src[size] and give finite values. */
    enum status (*check)(const struct value_ctx *ctx, const uint8_t *src, size_t size);
    /* The values of one part of the payload src[size]; x, acc and weight point at coordinate part.from. These run on
     * several threads at once: they read ctx and write nothing but their output. */
    void (*decode)(const struct value_ctx *ctx, const uint8_t *src, size_t size, struct codec_part part, float *x);
    /* acc[i] = acc[i] + a * x[i], two roundings. NULL: there is `add`. */
    void (*decode_axpy)(const struct value_ctx *ctx, float a, const uint8_t *src, size_t size, struct codec_part part,
                        float *acc);
    /* The same of n payloads, in order, and where weight is not NULL weight[i] += a for each that carries coordinate i.
     * NULL: all carry all, and are added by decode_axpy. */
    void (*add)(const struct value_ctx *ctx, const struct codec_addend *from, size_t n, struct codec_part part,
                float *acc, float *weight);
};

struct byte_stage {
    const char *name, *help;
    size_t (*bound)(size_t raw); /* largest output for at most `raw` input bytes */
    size_t scratch;              /* bytes of working memory */
    /* src[size], size <= raw_max; LIMIT when it does not fit dst[cap]. */
    enum status (*encode)(void *scratch, const struct payload_shape *shape, const uint8_t *src, size_t size,
                          uint8_t *dst, size_t cap, size_t *size_p);
    /* CORRUPT for anything but bytes that encode could have made from at most cap bytes. */
    enum status (*decode)(void *scratch, const struct payload_shape *shape, const uint8_t *src, size_t size,
                          uint8_t *dst, size_t cap, size_t *size_p);
};

/* codec_fp32 and so on. */
#define VALUE_STAGE(name, lossless, sparse) extern const struct value_stage codec_##name;
#define BYTE_STAGE(name) extern const struct byte_stage codec_##name;
CODEC_VALUE_STAGES(VALUE_STAGE)
CODEC_BYTE_STAGES(BYTE_STAGE)
#undef VALUE_STAGE
#undef BYTE_STAGE

#endif
