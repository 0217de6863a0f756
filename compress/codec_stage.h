/* The interface of the stages of a codec. A new value stage (top-k, int4, ...) or byte stage (rANS, ...) is one file
 * with one static table, listed in common/config/codec_spec.h.
 *
 * - A chain is one value stage and up to CODEC_STAGES_MAX - 1 byte stages.
 * - codec_create fixes sizes, scratch memory and parameters. Encode and decode allocate nothing.
 * - Untrusted bytes pass in this order: each byte stage undoes itself into scratch memory and checks as it goes; the
 *   value stage's `check` reads the whole payload; then `decode` or `decode_axpy` write the caller's floats, part by
 *   part, and cannot fail. */
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

/* Describes the input of a byte stage. Sections lie end to end from 0; after the last one, elements have `width` bytes.
 * The output of a byte stage has no sections. */
struct payload_shape {
    uint8_t width;
    size_t n_plain; /* values that the first section holds unquantized, 16 bits each */
    size_t n_sections;
    struct {
        size_t to; /* offset of the end of the section */
        uint8_t width;
    } section[PAYLOAD_SECTIONS];
};

/* Threads that a stage may use, each with memory of its own; pool NULL: none. */
struct codec_pool {
    struct pool *pool;
    uint8_t *scratch; /* [threads][each], MEM_ALIGN-aligned */
    size_t each;
};

/* The pool, if there is one whose threads have `need` bytes each. */
static inline struct pool *codec_pool_with(const struct codec_pool *p, size_t need)
{
    return p->each >= need ? p->pool : NULL;
}

/* A value stage configured for one fragment. */
struct value_ctx {
    const struct value_stage *stage;
    const struct codec_span *spans; /* [n_spans] */
    size_t n_spans, n;              /* n: floats of the fragment */
    uint32_t param[3];              /* defined by the stage, set by parse */
    void *scratch;                  /* stage->scratch bytes, MEM_ALIGN-aligned, for encode only; NULL if 0 */
    void *plan;                     /* stage->plan bytes, filled by prepare, then read-only; NULL if 0 */
    struct codec_pool pool;         /* for encode and check */
};

struct value_stage {
    const char *name, *usage, *help;
    float feedback_decay;
    uint8_t width; /* bytes of one element of the payload; byte stages group bytes of the same significance by it */
    /* The sections of a payload (scales, then codes). The caller has set out->width. NULL: no sections. */
    void (*shape)(const struct value_ctx *ctx, struct payload_shape *out);
    /* Reads the text after ':' (NULL if there is none), sets ctx->param and writes the canonical spec, at most
     * CODEC_SPEC_MAX bytes. INVALID: err lists the allowed values. */
    enum status (*parse)(struct value_ctx *ctx, const char *args, char *canonical, struct err *err);
    /* codec_spec_period. NULL: 0. */
    uint32_t (*period)(const struct value_ctx *ctx);
    /* Handles a word after '+' that follows the stage and `nth` of its modifiers: changes ctx->param and rewrites the
     * canonical spec. Returns false if the word is no modifier of this stage, or no further one may follow. NULL: no
     * modifiers. */
    bool (*modify)(struct value_ctx *ctx, const char *word, unsigned nth, char *canonical);
    /* `plan` returns the bytes of ctx->plan; `prepare` fills it once n and spans are known. NULL: no plan. UNSUPPORTED:
     * the fragment is too large for the stage. */
    size_t (*plan)(const struct value_ctx *ctx);
    enum status (*prepare)(const struct value_ctx *ctx);
    size_t (*bound)(const struct value_ctx *ctx);   /* largest payload of any input */
    size_t (*scratch)(const struct value_ctx *ctx); /* bytes; NULL: none */
    /* codec_bound_bits of a full payload. NULL: the entropy of the codes. */
    double (*bound_bits)(const struct value_ctx *ctx);
    /* Parts: boundaries are multiples of `align` floats, and each part has CODEC_PART floats rounded up to it (NULL:
     * align 1). A stage with other parts defines `parts` and `part`. */
    size_t (*align)(const struct value_ctx *ctx);
    size_t (*parts)(const struct value_ctx *ctx);
    struct codec_part (*part)(const struct value_ctx *ctx, size_t index);
    /* x[n] is finite. LIMIT: the payload does not fit. *size_p is set only on success. NULL: the stage has
     * encode_part. */
    enum status (*encode)(const struct value_ctx *ctx, const float *x, uint8_t *dst, size_t cap, size_t *size_p);
    /* Writes one part into the payload at dst, whose size is always `bound`. x points at coordinate part.from and is
     * finite. Threads call it at the same time, in any order: it only reads ctx, and no two parts touch the same
     * bytes. */
    void (*encode_part)(const struct value_ctx *ctx, const float *x, struct codec_part part, uint8_t *dst);
    /* codec_delta_format, and codec_encode_quantized for heads without `bad`. Both NULL: the stage has no such form. */
    void (*delta_format)(const struct value_ctx *ctx, struct delta_format *shape, struct piece_range *pieces);
    enum status (*encode_quantized)(const struct value_ctx *ctx, const struct quantized_delta *quantized, uint8_t *dst,
                                    size_t cap, size_t *size_p);
    /* Inverse of encode_quantized, for a payload that passed `check`; the caller has zeroed the output. NULL if
     * `delta_format` is NULL. */
    void (*decode_quantized)(const struct value_ctx *ctx, const uint8_t *src, size_t size,
                             const struct quantized_delta *quantized);
    /* CORRUPT or NONFINITE unless decode reads exactly src[size] and gives finite values. */
    enum status (*check)(const struct value_ctx *ctx, const uint8_t *src, size_t size);
    /* x = values of one part of the payload src[size]; x, acc and weight point at coordinate part.from. Several threads
     * call these functions at the same time: they only read ctx and write only their output. */
    void (*decode)(const struct value_ctx *ctx, const uint8_t *src, size_t size, struct codec_part part, float *x);
    /* codec_view_list. NULL: every payload carries every coordinate. */
    size_t (*list)(const struct value_ctx *ctx, const uint8_t *src, size_t size, struct codec_part part,
                   uint32_t *index, float *value);
    /* acc[i] = acc[i] + a * x[i], two roundings. NULL: the stage has `add`. */
    void (*decode_axpy)(const struct value_ctx *ctx, float a, const uint8_t *src, size_t size, struct codec_part part,
                        float *acc);
    /* Same for n payloads, in order. If weight is not NULL, weight[i] += a for each payload that carries coordinate i.
     * NULL: every payload carries every coordinate, and decode_axpy adds them. */
    void (*add)(const struct value_ctx *ctx, const struct codec_addend *from, size_t n, struct codec_part part,
                float *acc, float *weight);
};

struct byte_stage {
    const char *name, *help;
    size_t (*bound)(size_t raw); /* largest output for at most `raw` input bytes */
    size_t scratch;              /* bytes of working memory */
    /* src[size], size <= raw_max. LIMIT: the output does not fit dst[cap]. The bytes are the same with any pool. */
    enum status (*encode)(const struct codec_pool *pool, void *scratch, const struct payload_shape *shape,
                          const uint8_t *src, size_t size, uint8_t *dst, size_t cap, size_t *size_p);
    /* CORRUPT unless encode could have made these bytes from at most cap bytes. */
    enum status (*decode)(const struct codec_pool *pool, void *scratch, const struct payload_shape *shape,
                          const uint8_t *src, size_t size, uint8_t *dst, size_t cap, size_t *size_p);
};

/* Declares codec_fp32 and the other stages. */
#define VALUE_STAGE(name, lossless, sparse) extern const struct value_stage codec_##name;
#define BYTE_STAGE(name) extern const struct byte_stage codec_##name;
CODEC_VALUE_STAGES(VALUE_STAGE)
CODEC_BYTE_STAGES(BYTE_STAGE)
#undef VALUE_STAGE
#undef BYTE_STAGE

#endif
