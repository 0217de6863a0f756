/* Bytes back to values: `topk_check` walks everything once, in every detail; after it the decoders cannot fail. */
#include "compress/codec_topk.h"
#include "compress/golomb.h"

/* ---- where things are -------------------------------------------------------------------------------------------- */

/* First byte of group `index`; of the end for index = n_groups. Needs a payload of at least the offsets. */
static size_t group_start(const struct topk_plan *plan, const uint8_t *src, size_t size, size_t index)
{
    size_t offsets = 2 * plan->n_dense, first = offsets + TOPK_OFFSET * (plan->n_groups - 1);
    uint32_t offset;
    if (index == 0) return first;
    if (index == plan->n_groups) return size;
    memcpy(&offset, src + offsets + TOPK_OFFSET * (index - 1), TOPK_OFFSET);
    return first + offset;
}

static uint32_t group_parameter(const uint8_t *head)
{
    uint16_t m;
    memcpy(&m, head, TOPK_GROUP_HEAD);
    return m;
}

/* ---- checking ---------------------------------------------------------------------------------------------------- */

struct sums {
    uint64_t gaps, count;
};

/* One chunk at r. */
static enum status check_chunk(struct bit_reader *r, const struct topk_form *form, const struct golomb *g,
                               const struct topk_item *item, uint32_t *previous, struct sums *sums)
{
    struct topk_scales scales;
    TRY(topk_get_scales(r, form, *previous, &scales));
    if (!scales.low) return STATUS_OK;
    *previous = scales.low;
    uint32_t seen = 0, code = 0;
    size_t next = 0;
    for (uint32_t i = 0; i < item->k; i++) {
        uint64_t gap;
        golomb_get(r, g, (uint32_t)item->length, form->value_bits, &gap, &code);
        sums->count++;
        sums->gaps += gap;
        if (gap == item->length - next) { /* the end: no value follows */
            if (i == 0) return STATUS_CORRUPT;
            r->pos -= form->value_bits;
            break;
        }
        if (gap > item->length - next) return STATUS_CORRUPT;
        next += (size_t)gap + 1;
        seen |= code;
        if (r->pos > 8 * (uint64_t)r->size) return STATUS_CORRUPT;
        if (form->value_bits == 15 && code >> 1 == 0) return STATUS_CORRUPT; /* fp16: never a zero */
    }
    if (form->two && !(seen & 2) && scales.high != scales.low) return STATUS_CORRUPT; /* a level that nobody has */
    return r->pos > 8 * (uint64_t)r->size ? STATUS_CORRUPT : STATUS_OK;
}

/* The chunks of one part from src[size], which holds its group and nothing else. */
static enum status check_group(const struct value_ctx *ctx, struct codec_part part, const uint8_t *src, size_t size)
{
    const struct topk_form *form = &topk_forms[ctx->param[TOPK_VALUES]];
    if (size < TOPK_GROUP_HEAD) return STATUS_CORRUPT;
    uint32_t m = group_parameter(src), previous = 0;
    if (!m) return STATUS_CORRUPT;
    struct golomb g = golomb_of(m);
    struct bit_reader r = bit_reader_of(src + TOPK_GROUP_HEAD, size - TOPK_GROUP_HEAD);
    struct topk_walk walk = topk_walk_part(ctx, part.index);
    struct topk_item item;
    struct sums sums = {0};
    while (topk_next(&walk, &item) && item.from < part.to)
        if (item.k) TRY(check_chunk(&r, form, &g, &item, &previous, &sums));
    if (golomb_parameter(sums.gaps, sums.count) != m) return STATUS_CORRUPT;
    /* Ends in this byte, and what is left of it is zero. */
    if ((r.pos + 7) / 8 != r.size) return STATUS_CORRUPT;
    return r.pos % 8 && r.data[r.size - 1] >> r.pos % 8 ? STATUS_CORRUPT : STATUS_OK;
}

enum status topk_check(const struct value_ctx *ctx, const uint8_t *src, size_t size)
{
    const struct topk_plan *plan = ctx->plan;
    size_t groups = plan->n_groups, dense = 2 * plan->n_dense;
    const struct value_ctx part = {.n = plan->n_dense};
    if (size < dense) return STATUS_CORRUPT;
    TRY(codec_bf16.check(&part, src, dense));
    if (!groups) return size == dense ? STATUS_OK : STATUS_CORRUPT;
    if (size - dense < TOPK_OFFSET * (groups - 1)) return STATUS_CORRUPT;
    for (size_t i = 0; i < groups; i++) {
        size_t from = group_start(plan, src, size, i), to = group_start(plan, src, size, i + 1);
        if (to < from || to > size) return STATUS_CORRUPT;
        TRY(check_group(ctx, topk_part(ctx, i), src + from, to - from));
    }
    return STATUS_OK;
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

enum what { STORE, AXPY, WEIGH };

struct output {
    float a, *x, *weight; /* at the part's first coordinate */
    size_t from;
};

static inline void emit(enum what what, const struct output *out, size_t at, float value)
{
    if (what == STORE) {
        out->x[at] = value;
        return;
    }
    out->x[at] = out->x[at] + out->a * value;
    if (what == WEIGH) out->weight[at] = out->weight[at] + out->a;
}

static inline float value_of(enum topk_values values, const float *level, float scale, uint32_t code)
{
    if (values == TOPK_SIGN || values == TOPK_2BIT) return level[code];
    uint32_t magnitude = code >> 1;
    float x;
    if (values == TOPK_INT8)
        x = (float)(magnitude + 1) * (scale * 0x1p-7f); /* exact: 8 bits times 8 bits */
    else
        x = topk_float(magnitude << 13) * 0x1p112f * scale; /* fp16 to fp32, then a power of two: exact */
    return code & 1 ? -x : x;
}

/* One chunk; the loop is compiled for each kind of value. */
static inline __attribute__((always_inline)) void put_chunk(enum what what, enum topk_values values,
                                                            struct bit_reader *r, const struct golomb *g,
                                                            struct topk_scales scales, const struct topk_item *item,
                                                            const struct output *out)
{
    const struct topk_form *form = &topk_forms[values];
    float low = topk_scale(form, scales.low), high = topk_scale(form, scales.high);
    const float level[4] = {low, -low, high, -high};
    size_t at = item->from - out->from, end = at + item->length;
    for (uint32_t i = 0; i < item->k; i++) {
        uint64_t gap;
        uint32_t code;
        golomb_get(r, g, UINT32_MAX, form->value_bits, &gap, &code);
        at += (size_t)gap;
        if (at >= end) { /* the end takes no value: give its bits back */
            r->pos -= form->value_bits;
            return;
        }
        emit(what, out, at++, value_of(values, level, low, code));
    }
}

static inline __attribute__((always_inline)) void put_group(enum what what, enum topk_values values,
                                                            const struct value_ctx *ctx, struct codec_part part,
                                                            struct bit_reader *r, struct golomb g,
                                                            const struct output *out)
{
    struct topk_walk walk = topk_walk_part(ctx, part.index);
    struct topk_item item;
    struct topk_scales scales;
    uint32_t previous = 0;
    while (topk_next(&walk, &item) && item.from < part.to) {
        if (!item.k) continue;
        (void)topk_get_scales(r, &topk_forms[values], previous, &scales);
        if (!scales.low) continue;
        previous = scales.low;
        put_chunk(what, values, r, &g, scales, &item, out);
    }
}

/* The values of 1-D tensors in the part. */
static void put_dense(enum what what, const struct value_ctx *ctx, struct codec_part part, const uint8_t *src,
                      const struct output *out)
{
    struct topk_walk walk = topk_walk_part(ctx, part.index);
    struct topk_item item;
    while (topk_next(&walk, &item) && item.from < part.to) {
        if (item.k) continue;
        size_t at = item.from - out->from;
        const struct value_ctx dense = {.n = item.length};
        const struct codec_part all = {.to = item.length};
        const uint8_t *bytes = src + 2 * item.dense;
        if (what == STORE)
            codec_bf16.decode(&dense, bytes, 2 * item.length, all, out->x + at);
        else
            codec_bf16.decode_axpy(&dense, out->a, bytes, 2 * item.length, all, out->x + at);
        for (size_t i = at; what == WEIGH && i < at + item.length; i++) out->weight[i] = out->weight[i] + out->a;
    }
}

static inline __attribute__((always_inline)) void put_part(enum what what, const struct value_ctx *ctx,
                                                           const uint8_t *src, size_t size, struct codec_part part,
                                                           const struct output *out)
{
    const struct topk_plan *plan = ctx->plan;
    if (plan->n_dense) put_dense(what, ctx, part, src, out);
    if (!plan->n_groups) return;
    size_t start = group_start(plan, src, size, part.index);
    struct golomb g = golomb_of(group_parameter(src + start));
    struct bit_reader r = bit_reader_of(src + start + TOPK_GROUP_HEAD, size - start - TOPK_GROUP_HEAD);
    switch ((enum topk_values)ctx->param[TOPK_VALUES]) {
    case TOPK_SIGN: put_group(what, TOPK_SIGN, ctx, part, &r, g, out); break;
    case TOPK_2BIT: put_group(what, TOPK_2BIT, ctx, part, &r, g, out); break;
    case TOPK_INT8: put_group(what, TOPK_INT8, ctx, part, &r, g, out); break;
    case TOPK_FP16: put_group(what, TOPK_FP16, ctx, part, &r, g, out); break;
    }
}

void topk_decode(const struct value_ctx *ctx, const uint8_t *src, size_t size, struct codec_part part, float *x)
{
    const struct output out = {.x = x, .from = part.from};
    for (size_t i = 0; i < part.to - part.from; i++) x[i] = -0.0f; /* not sent: changes no sum */
    put_part(STORE, ctx, src, size, part, &out);
}

void topk_decode_axpy(const struct value_ctx *ctx, float a, const uint8_t *src, size_t size, struct codec_part part,
                      float *acc)
{
    const struct output out = {.a = a, .x = acc, .from = part.from};
    put_part(AXPY, ctx, src, size, part, &out);
}

void topk_decode_weigh(const struct value_ctx *ctx, float a, const uint8_t *src, size_t size, struct codec_part part,
                       float *acc, float *weight)
{
    const struct output out = {.a = a, .x = acc, .weight = weight, .from = part.from};
    put_part(WEIGH, ctx, src, size, part, &out);
}
