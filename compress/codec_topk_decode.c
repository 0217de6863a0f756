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

/* ---- values one after the other ---------------------------------------------------------------------------------- */

/* Gaps and their values: by a table where the part has enough of them to pay for it, several from one look at the
 * bytes. */
struct values {
    struct bit_reader r;
    struct golomb g;
    const struct golomb_look *look; /* NULL: one by one */
    uint64_t word;
    unsigned left; /* values that `word` still holds whole */
};

enum { LOOK_MIN = 128 };

static struct values values_of(const struct value_ctx *ctx, struct codec_part part, const uint8_t *group, size_t size,
                               struct golomb_look *look)
{
    struct values v = {.r = bit_reader_of(group + TOPK_GROUP_HEAD, size - TOPK_GROUP_HEAD),
                       .g = golomb_of(group_parameter(group))};
    uint64_t most = (uint64_t)(part.to - part.from) * ctx->param[TOPK_K] / ctx->param[TOPK_CHUNK];
    if (most < LOOK_MIN || v.g.m > 1u << GOLOMB_LOOK) return v;
    golomb_look_fill(look, &v.g, topk_forms[ctx->param[TOPK_VALUES]].value_bits);
    v.look = look;
    return v;
}

/* As golomb_get with the value behind it. */
static inline __attribute__((always_inline)) void values_get(struct values *v, uint32_t gap_max, unsigned value_bits,
                                                             uint64_t *gap, uint32_t *code)
{
    if (!v->left && v->look && (v->r.pos >> 3) + 8 <= v->r.size) {
        memcpy(&v->word, v->r.data + (v->r.pos >> 3), 8);
        v->word >>= v->r.pos & 7;
        v->left = BITS_PEEK / (GOLOMB_LOOK + value_bits);
    }
    if (__builtin_expect(v->left != 0, 1)) {
        uint32_t entry = v->look->entry[v->word & ((1u << GOLOMB_LOOK) - 1)];
        unsigned n = entry & ((1u << GOLOMB_ENTRY_BITS) - 1);
        if (__builtin_expect(entry != 0, 1)) {
            *gap = entry >> GOLOMB_ENTRY_BITS;
            *code = (uint32_t)(v->word >> (n - value_bits)) & ((1u << value_bits) - 1);
            v->word >>= n;
            v->r.pos += n;
            v->left--;
            return;
        }
    }
    v->left = 0;
    golomb_get(&v->r, &v->g, gap_max, value_bits, gap, code);
}

/* ---- checking ---------------------------------------------------------------------------------------------------- */

struct sums {
    uint64_t gaps, count;
};

/* One chunk at v->r. */
static inline __attribute__((always_inline)) enum status check_chunk(struct values *values, enum topk_values kind,
                                                                     const struct topk_item *item, uint32_t *previous,
                                                                     struct sums *sums)
{
    const struct topk_form *form = &topk_forms[kind];
    struct topk_scales scales;
    TRY(topk_get_scales(&values->r, form, *previous, &scales));
    if (!scales.low) return STATUS_OK;
    *previous = scales.low;
    const unsigned value_bits = topk_value_bits(kind);
    struct values v = *values;
    uint32_t seen = 0, code = 0, i = 0;
    uint64_t gap = 0, next = 0;
    for (v.left = 0; i < item->k; i++) {
        values_get(&v, (uint32_t)item->length, value_bits, &gap, &code);
        if (gap >= item->length - next) break;
        next += gap + 1;
        seen |= code;
        if (v.r.pos > 8 * (uint64_t)v.r.size) return STATUS_CORRUPT;
        if (kind == TOPK_FP16 && code >> 1 == 0) return STATUS_CORRUPT; /* never a zero */
    }
    sums->count += i;
    sums->gaps += next - i;
    if (i < item->k) { /* the end: no value follows */
        if (i == 0 || gap > item->length - next) return STATUS_CORRUPT;
        v.r.pos -= value_bits;
        sums->count++;
        sums->gaps += gap;
    }
    values->r.pos = v.r.pos;
    if (form->two && !(seen & 2) && scales.high != scales.low) return STATUS_CORRUPT; /* a level that nobody has */
    return v.r.pos > 8 * (uint64_t)v.r.size ? STATUS_CORRUPT : STATUS_OK;
}

static inline __attribute__((always_inline)) enum status check_chunks(struct values *v, enum topk_values kind,
                                                                      const struct value_ctx *ctx,
                                                                      struct codec_part part, struct sums *sums)
{
    struct topk_walk walk = topk_walk_part(ctx, part.index);
    struct topk_item item;
    uint32_t previous = 0;
    while (topk_next(&walk, &item) && item.from < part.to)
        if (item.k) TRY(check_chunk(v, kind, &item, &previous, sums));
    return STATUS_OK;
}

/* The chunks of one part from src[size], which holds its group and nothing else. */
static enum status check_group(const struct value_ctx *ctx, struct codec_part part, const uint8_t *src, size_t size)
{
    if (size < TOPK_GROUP_HEAD) return STATUS_CORRUPT;
    uint32_t m = group_parameter(src);
    if (!m) return STATUS_CORRUPT;
    struct golomb_look look;
    struct values v = values_of(ctx, part, src, size, &look);
    struct sums sums = {0};
    switch ((enum topk_values)ctx->param[TOPK_VALUES]) {
    case TOPK_SIGN: TRY(check_chunks(&v, TOPK_SIGN, ctx, part, &sums)); break;
    case TOPK_2BIT: TRY(check_chunks(&v, TOPK_2BIT, ctx, part, &sums)); break;
    case TOPK_INT8: TRY(check_chunks(&v, TOPK_INT8, ctx, part, &sums)); break;
    case TOPK_FP16: TRY(check_chunks(&v, TOPK_FP16, ctx, part, &sums)); break;
    }
    if (golomb_parameter(sums.gaps, sums.count) != m) return STATUS_CORRUPT;
    /* Ends in this byte, and what is left of it is zero. */
    if ((v.r.pos + 7) / 8 != v.r.size) return STATUS_CORRUPT;
    return v.r.pos % 8 && v.r.data[v.r.size - 1] >> v.r.pos % 8 ? STATUS_CORRUPT : STATUS_OK;
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
static inline __attribute__((always_inline)) void put_chunk(enum what what, enum topk_values kind,
                                                            struct values *values, struct topk_scales scales,
                                                            const struct topk_item *item, const struct output *out)
{
    const struct topk_form *form = &topk_forms[kind];
    const unsigned value_bits = topk_value_bits(kind);
    struct values v = *values;
    float low = topk_scale(form, scales.low), high = topk_scale(form, scales.high);
    const float level[4] = {low, -low, high, -high};
    size_t at = item->from - out->from, end = at + item->length;
    v.left = 0;
    for (uint32_t i = 0; i < item->k; i++) {
        uint64_t gap;
        uint32_t code;
        values_get(&v, UINT32_MAX, value_bits, &gap, &code);
        at += (size_t)gap;
        if (at >= end) { /* the end takes no value: give its bits back */
            v.r.pos -= value_bits;
            break;
        }
        emit(what, out, at++, value_of(kind, level, low, code));
    }
    values->r.pos = v.r.pos;
}

static inline __attribute__((always_inline)) void put_chunks(enum what what, enum topk_values kind,
                                                             const struct value_ctx *ctx, struct codec_part part,
                                                             struct values *v, const struct output *out)
{
    struct topk_walk walk = topk_walk_part(ctx, part.index);
    struct topk_item item;
    struct topk_scales scales;
    uint32_t previous = 0;
    while (topk_next(&walk, &item) && item.from < part.to) {
        if (!item.k) continue;
        (void)topk_get_scales(&v->r, &topk_forms[kind], previous, &scales);
        if (!scales.low) continue;
        previous = scales.low;
        put_chunk(what, kind, v, scales, &item, out);
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
    struct golomb_look look;
    struct values v = values_of(ctx, part, src + start, size - start, &look);
    switch ((enum topk_values)ctx->param[TOPK_VALUES]) {
    case TOPK_SIGN: put_chunks(what, TOPK_SIGN, ctx, part, &v, out); break;
    case TOPK_2BIT: put_chunks(what, TOPK_2BIT, ctx, part, &v, out); break;
    case TOPK_INT8: put_chunks(what, TOPK_INT8, ctx, part, &v, out); break;
    case TOPK_FP16: put_chunks(what, TOPK_FP16, ctx, part, &v, out); break;
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
