/* Cuts a fragment into chunks: runs of CHUNK consecutive elements of a tensor; the last one of a tensor may be
 * short. */
#include <assert.h>
#include <math.h>

#include "compress/topk/codec_topk.h"

uint32_t topk_group_chunks(const struct value_ctx *ctx)
{
    assert(ctx->param[TOPK_K] && ctx->param[TOPK_K] < ctx->param[TOPK_CHUNK] && ctx->param[TOPK_CHUNK] <= CODEC_PART);
    return CODEC_PART / ctx->param[TOPK_CHUNK];
}

bool topk_walk_next(struct topk_walk *walk, struct topk_item *item)
{
    const struct value_ctx *ctx = walk->ctx;
    if (walk->span == ctx->n_spans) return false;
    const struct codec_span *span = &ctx->spans[walk->span];
    uint64_t k = ctx->param[TOPK_K], chunk = ctx->param[TOPK_CHUNK], left = span->count - walk->at;
    *item = (struct topk_item){.from = (size_t)(span->offset + walk->at), .dense = walk->dense};
    if (span->ndim == 1) {
        item->length = (size_t)left;
        walk->dense += item->length;
    } else if (left >= chunk) {
        item->length = (size_t)chunk;
        item->k = (uint32_t)k;
    } else {
        item->length = (size_t)left;
        item->k = (uint32_t)((k * left + chunk - 1) / chunk);
    }
    assert(item->length && item->k <= item->length && item->length <= left);
    walk->at += item->length;
    if (walk->at == span->count) {
        walk->span++;
        walk->at = 0;
    }
    return true;
}

struct topk_walk topk_walk_part(const struct value_ctx *ctx, size_t part)
{
    const struct topk_plan *plan = ctx->plan;
    assert(part < topk_parts(ctx));
    const struct topk_group *g = &plan->groups[part];
    if (!part) return (struct topk_walk){.ctx = ctx};
    return (struct topk_walk){.ctx = ctx, .span = g->span, .at = g->at, .dense = (size_t)g->dense};
}

size_t topk_parts(const struct value_ctx *ctx)
{
    const struct topk_plan *plan = ctx->plan;
    return plan->n_groups ? plan->n_groups : 1;
}

struct codec_part topk_part(const struct value_ctx *ctx, size_t index)
{
    const struct topk_plan *plan = ctx->plan;
    assert(index < topk_parts(ctx));
    bool last = index + 1 >= plan->n_groups;
    return (struct codec_part){.index = index,
                               .from = index ? (size_t)plan->groups[index].from : 0,
                               .to = last ? ctx->n : (size_t)plan->groups[index + 1].from};
}

_Static_assert((int)PIECE_SIGN == TOPK_SIGN && (int)PIECE_TWO_LEVELS == TOPK_2BIT && (int)PIECE_BYTES == TOPK_INT8 &&
                   (int)PIECE_HALF == TOPK_FP16,
               "piece_kind and topk_values have the same order");

void topk_delta_format(const struct value_ctx *ctx, struct delta_format *shape, struct piece_range *pieces)
{
    struct topk_walk walk = {.ctx = ctx};
    struct topk_item item;
    *shape = (struct delta_format){.kind = (enum piece_kind)ctx->param[TOPK_VALUES], .n_values = ctx->n};
    while (topk_walk_next(&walk, &item)) {
        size_t step = item.k ? item.length : PIECE_PLAIN_MAX;
        for (size_t at = 0; at < item.length; at += step, shape->n_pieces++) {
            if (!pieces) continue;
            pieces[shape->n_pieces] = (struct piece_range){
                .from = item.from + at,
                .out = item.k ? shape->n_chosen : item.dense + at,
                .length = (uint32_t)(item.length - at < step ? item.length - at : step),
                .k = item.k,
            };
        }
        if (!item.k) {
            shape->n_plain += item.length;
            continue;
        }
        shape->n_chosen += item.k;
        if (item.length > shape->longest) shape->longest = (uint32_t)item.length;
        if (item.k > shape->k_max) shape->k_max = item.k;
    }
}

struct totals {
    uint64_t dense, chunks, chosen; /* chosen: upper bound on the values that chunks send */
};

static struct totals count_all(const struct value_ctx *ctx)
{
    uint64_t k = ctx->param[TOPK_K], chunk = ctx->param[TOPK_CHUNK];
    struct totals t = {0};
    for (size_t i = 0; i < ctx->n_spans; i++) {
        uint64_t count = ctx->spans[i].count, rest = count % chunk;
        if (ctx->spans[i].ndim == 1) {
            t.dense += count;
            continue;
        }
        t.chunks += count / chunk + (rest != 0);
        t.chosen += count / chunk * k + (k * rest + chunk - 1) / chunk;
    }
    return t;
}

static uint64_t count_groups(const struct value_ctx *ctx, const struct totals *t)
{
    return (t->chunks + topk_group_chunks(ctx) - 1) / topk_group_chunks(ctx);
}

size_t topk_plan_size(const struct value_ctx *ctx)
{
    struct totals t = count_all(ctx);
    return sizeof(struct topk_plan) + (size_t)count_groups(ctx, &t) * sizeof(struct topk_group);
}

enum status topk_prepare(const struct value_ctx *ctx)
{
    struct topk_plan *plan = ctx->plan;
    struct totals t = count_all(ctx);
    if (topk_bound(ctx) > UINT32_MAX) return STATUS_UNSUPPORTED; /* offsets of groups have 32 bits */
    plan->n_dense = (size_t)t.dense;
    plan->n_groups = (size_t)count_groups(ctx, &t);
    struct topk_walk walk = {.ctx = ctx}, before = walk;
    struct topk_item item;
    for (uint64_t chunks = 0; topk_walk_next(&walk, &item); before = walk) {
        if (!item.k || chunks++ % topk_group_chunks(ctx)) continue;
        assert((chunks - 1) / topk_group_chunks(ctx) < plan->n_groups);
        plan->groups[(chunks - 1) / topk_group_chunks(ctx)] = (struct topk_group){
            .from = item.from, .at = before.at, .dense = before.dense, .span = (uint32_t)before.span};
    }
    return STATUS_OK;
}

/* A gap takes at most 2.67 bits and its remainder (golomb_parameter). A scale takes 12 zeros and its code. */
uint64_t topk_bits_max(const struct value_ctx *ctx, uint64_t chosen, uint64_t chunks)
{
    const struct topk_form *form = &topk_forms[ctx->param[TOPK_VALUES]];
    uint64_t log2_chunk = (uint64_t)__builtin_ctz(ctx->param[TOPK_CHUNK]);
    return chosen * (3 + log2_chunk + form->value_bits) + chunks * (20 + form->mantissa) * (form->two + 1);
}

size_t topk_bound(const struct value_ctx *ctx)
{
    struct totals t = count_all(ctx);
    uint64_t bits = topk_bits_max(ctx, t.chosen, t.chunks), groups = count_groups(ctx, &t);
    return (size_t)(2 * t.dense + (bits + 7) / 8 + groups * (TOPK_OFFSET + TOPK_GROUP_HEAD + 1));
}

/* log2 C(length, k) */
static double log2_choices(double length, double k)
{
    return (lgamma(length + 1) - lgamma(k + 1) - lgamma(length - k + 1)) / log(2);
}

double topk_bound_bits(const struct value_ctx *ctx)
{
    double k = ctx->param[TOPK_K], chunk = ctx->param[TOPK_CHUNK], bits = 0;
    double value = topk_forms[ctx->param[TOPK_VALUES]].value_bits;
    for (size_t i = 0; i < ctx->n_spans; i++) {
        double count = (double)ctx->spans[i].count, whole = floor(count / chunk), rest = count - whole * chunk;
        if (ctx->spans[i].ndim == 1) {
            bits += 16 * count;
            continue;
        }
        bits += whole * (log2_choices(chunk, k) + k * value);
        k = ceil(k * rest / chunk);
        bits += log2_choices(rest, k) + k * value;
        k = ctx->param[TOPK_K];
    }
    return bits / (double)ctx->n;
}
