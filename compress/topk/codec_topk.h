/* Declarations shared by the files of the top-k stage. Byte format and exact rules: docs/codecs.md. */
#ifndef COMPRESS_CODEC_TOPK_H
#define COMPRESS_CODEC_TOPK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/float_bits.h"
#include "compress/bit_stream.h"
#include "compress/codec_stage.h"

enum { TOPK_CHUNK_MIN = 256, TOPK_CHUNK_MAX = 65536 };
enum topk_param { TOPK_K, TOPK_CHUNK, TOPK_VALUES }; /* indices of value_ctx.param */
enum topk_values { TOPK_SIGN, TOPK_2BIT, TOPK_INT8, TOPK_FP16 };

/* The start of a group of chunks. A group is CODEC_PART / CHUNK chunks: the unit that one thread decodes, and a point
 * where reading can start. */
struct topk_group {
    uint64_t from;  /* first coordinate of the group's first chunk */
    uint64_t at;    /* same, within the tensor */
    uint64_t dense; /* values of 1-D tensors before the group */
    uint32_t span;
};

struct topk_plan {
    size_t n_groups, n_dense; /* n_dense: values of 1-D tensors, 16 bits each at the start of the payload */
    struct topk_group groups[];
};

/* One step through a fragment: a chunk, or a whole 1-D tensor. */
struct topk_item {
    size_t from, length; /* coordinates of the fragment */
    uint32_t k;          /* values to select; 0: a 1-D tensor */
    size_t dense;        /* values of 1-D tensors before the item */
};

struct topk_walk {
    const struct value_ctx *ctx;
    size_t span;
    uint64_t at; /* offset within the span */
    size_t dense;
};

/* Returns the next item; false at the end of the fragment. */
bool topk_walk_next(struct topk_walk *walk, struct topk_item *item);
/* A walk that starts at the first item of a part: its first chunk, or the start of the fragment for part 0. */
struct topk_walk topk_walk_part(const struct value_ctx *ctx, size_t part);
uint32_t topk_group_chunks(const struct value_ctx *ctx);
size_t topk_parts(const struct value_ctx *ctx);
struct codec_part topk_part(const struct value_ctx *ctx, size_t index);
size_t topk_plan_size(const struct value_ctx *ctx);
enum status topk_prepare(const struct value_ctx *ctx);
size_t topk_bound(const struct value_ctx *ctx);
/* Upper bound on the bits of `chosen` values in `chunks` chunks of one group, scales included. */
uint64_t topk_bits_max(const struct value_ctx *ctx, uint64_t chosen, uint64_t chunks);
double topk_bound_bits(const struct value_ctx *ctx);

/* ---- selection --------------------------------------------------------------------------------------------------- */

/* Memory for the candidates of one chunk. `guess` is kept between chunks; it changes the time, never the result. */
struct topk_select {
    uint32_t *bits; /* [CHUNK] |x| */
    uint16_t *index;
    uint32_t *bins; /* [TOPK_BINS] */
    uint32_t guess; /* estimate of the k-th largest |x| */
};

enum { TOPK_BINS = 2048 };

/* Selects the min(k, nonzeros) largest of x[length] by the bits of |x| as an integer; among equal ones, those of lower
 * index. Writes s->index[n] and s->bits[n] (bits of |x|) in ascending order of index and returns n. x is finite, 0 < k
 * <= length. */
size_t topk_select(struct topk_select *s, const float *x, size_t length, size_t k);

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* A scale is the upper 8 + mantissa bits of a positive float. `rice`: parameter of the Rice code of its step from the
 * previous scale. */
struct topk_form {
    unsigned value_bits, mantissa, rice;
    bool two; /* a second scale, at least as large as the first */
};

struct topk_scales {
    uint32_t low, high; /* codes. low 0: the chunk sends no values. high: only if the form has two */
};

extern const struct topk_form topk_forms[];
/* Codes of the smallest scale that is sent, 2^-100, and of the first that is not finite. With the smallest, decoded
 * values are normal numbers in every form. */
uint32_t topk_scale_least(const struct topk_form *form);
uint32_t topk_scale_end(const struct topk_form *form);

/* topk_forms[kind].value_bits as a compile-time constant. */
static inline unsigned topk_value_bits(enum topk_values kind)
{
    return kind == TOPK_SIGN ? 1 : kind == TOPK_2BIT ? 2 : kind == TOPK_INT8 ? 8 : 15;
}

/* Scales and value codes of the n selected values: bits of |x| in magnitude, signs from x[index]. */
struct topk_scales topk_quantize(enum topk_values values, const float *x, const uint16_t *index,
                                 const uint32_t *magnitude, size_t n, uint16_t *codes);
/* Writes scales to the payload. `previous`: the low code of the previous scale in the group, 0 at its start. */
void topk_put_scales(struct bit_writer *w, const struct topk_form *form, uint32_t previous, struct topk_scales scales);
uint32_t topk_scales_size(const struct topk_form *form, uint32_t previous, struct topk_scales scales);
/* Reads scales. CORRUPT or NONFINITE; `previous` as above. */
enum status topk_get_scales(struct bit_reader *r, const struct topk_form *form, uint32_t previous,
                            struct topk_scales *scales);

static inline float topk_scale(const struct topk_form *form, uint32_t code)
{
    return float_of_bits(code << (23 - form->mantissa));
}

/* ---- the payload ------------------------------------------------------------------------------------------------- */

enum { TOPK_GROUP_HEAD = 2, TOPK_OFFSET = 4 };

size_t topk_scratch_size(const struct value_ctx *ctx);
enum status topk_encode(const struct value_ctx *ctx, const float *x, uint8_t *dst, size_t cap, size_t *size_p);
void topk_delta_format(const struct value_ctx *ctx, struct delta_format *shape, struct piece_range *pieces);
enum status topk_encode_quantized(const struct value_ctx *ctx, const struct quantized_delta *quantized, uint8_t *dst,
                                  size_t cap, size_t *size_p);
void topk_decode_quantized(const struct value_ctx *ctx, const uint8_t *src, size_t size,
                           const struct quantized_delta *quantized);
enum status topk_check(const struct value_ctx *ctx, const uint8_t *src, size_t size);
void topk_decode(const struct value_ctx *ctx, const uint8_t *src, size_t size, struct codec_part part, float *x);
size_t topk_list(const struct value_ctx *ctx, const uint8_t *src, size_t size, struct codec_part part, uint32_t *index,
                 float *value);
void topk_add(const struct value_ctx *ctx, const struct codec_addend *from, size_t n, struct codec_part part,
              float *acc, float *weight);

#endif
