/* Decodes top-k payloads. `topk_check` checks every detail of a payload once; after it, the decoders cannot fail. */
#include "compress/topk/codec_topk_stream.h"

#include <assert.h>

#include "common/base/pool.h"

/* ---- groups ------------------------------------------------------------------------------------------------------ */

/* Offset of group `index`; of the end of the payload for index = n_groups. The payload holds at least the offsets. */
static size_t group_start(const struct topk_plan *plan, const uint8_t *src, size_t size, size_t index)
{
    size_t offsets = 2 * plan->n_dense, first = offsets + TOPK_OFFSET * (plan->n_groups - 1);
    uint32_t offset;
    assert(index <= plan->n_groups);
    if (index == 0) return first;
    if (index == plan->n_groups) return size;
    memcpy(&offset, src + offsets + TOPK_OFFSET * (index - 1), TOPK_OFFSET);
    return first + offset;
}

/* ---- checking ---------------------------------------------------------------------------------------------------- */

/* State of checking one group: its current chunk and its totals. */
struct group_check {
    struct topk_walk walk;
    struct topk_item item; /* k 0: no chunk is left */
    struct topk_stream stream;
    size_t to;            /* end coordinate of the group */
    uint32_t n, seen;     /* values of the chunk; OR of their codes */
    uint64_t gaps, count; /* sums over the group */
};

static enum status open_group(const struct value_ctx *ctx, size_t index, const uint8_t *src, size_t size,
                              struct topk_lookups *lookups, struct group_check *c)
{
    size_t from = group_start(ctx->plan, src, size, index), to = group_start(ctx->plan, src, size, index + 1);
    if (to < from || to > size || to - from < TOPK_GROUP_HEAD) return STATUS_CORRUPT;
    if (!topk_group_parameter(src + from)) return STATUS_CORRUPT;
    *c = (struct group_check){.walk = topk_walk_part(ctx, index), .to = topk_part(ctx, index).to};
    c->stream = topk_stream_of(src + from, to - from, lookups);
    return STATUS_OK;
}

static enum status next_chunk(struct group_check *c, enum topk_values kind)
{
    c->n = c->seen = 0;
    while (topk_walk_next(&c->walk, &c->item) && c->item.from < c->to)
        if (c->item.k) return topk_stream_chunk(&c->stream, kind, &c->item);
    c->item.k = 0;
    return STATUS_OK;
}

static enum status check_slice(struct group_check *c, enum topk_values kind, const struct topk_slice *slice)
{
    uint32_t seen = 0, zeros = 0;
    for (uint32_t i = 0; i < slice->n; i++) seen |= slice->code[i];
    if (kind == TOPK_FP16)
        for (uint32_t i = 0; i < slice->n; i++) zeros += slice->code[i] >> 1 == 0; /* a magnitude of 0 is never sent */
    c->n += slice->n;
    c->seen |= seen;
    return zeros ? STATUS_CORRUPT : STATUS_OK;
}

/* Checks the chunk after its last value. */
static enum status check_chunk_end(struct group_check *c, enum topk_values kind)
{
    const struct topk_stream *s = &c->stream;
    bool sent = c->item.k && s->scales.low;
    if (s->r.pos > 8 * (uint64_t)s->r.size) return STATUS_CORRUPT;
    if (!sent) return STATUS_OK;
    if (s->ended && (!c->n || s->next != s->length)) return STATUS_CORRUPT;
    c->count += c->n + s->ended;
    c->gaps += s->next - c->n;
    /* A high scale that no value uses must equal the low one. */
    return topk_forms[kind].two && !(c->seen & 2) && s->scales.high != s->scales.low ? STATUS_CORRUPT : STATUS_OK;
}

/* Checks the group after its last chunk. */
static enum status check_group_end(const struct group_check *c)
{
    const struct bit_reader *r = &c->stream.r;
    if (golomb_parameter(c->gaps, c->count) != c->stream.golomb.m) return STATUS_CORRUPT;
    /* The bits end in the last byte, and the padding is zero. */
    if ((r->pos + 7) / 8 != r->size) return STATUS_CORRUPT;
    return r->pos % 8 && r->data[r->size - 1] >> r->pos % 8 ? STATUS_CORRUPT : STATUS_OK;
}

/* Checks n groups side by side, chunk by chunk. */
static enum status check_groups(struct group_check *groups, size_t n, enum topk_values kind)
{
    struct topk_slice slices[TOPK_LANES];
    for (;;) {
        struct topk_stream *streams[TOPK_LANES];
        struct group_check *open[TOPK_LANES];
        size_t left = 0;
        for (size_t i = 0; i < n; i++) {
            TRY(next_chunk(&groups[i], kind));
            left += groups[i].item.k > 0;
        }
        if (!left) return STATUS_OK;
        for (;;) {
            size_t reading = 0;
            for (size_t i = 0; i < n; i++) {
                open[reading] = &groups[i];
                streams[reading] = &groups[i].stream;
                reading += groups[i].stream.left > 0;
            }
            if (!reading) break;
            topk_streams_read(streams, slices, reading, kind);
            for (size_t i = 0; i < reading; i++) TRY(check_slice(open[i], kind, &slices[i]));
        }
        for (size_t i = 0; i < n; i++) TRY(check_chunk_end(&groups[i], kind));
    }
}

struct check_job {
    const struct value_ctx *ctx;
    const uint8_t *src;
    size_t size;
    enum status status[POOL_THREADS_MAX]; /* by thread */
};

/* Checks groups from .. to, the lanes side by side. */
static enum status check_range(const struct check_job *job, size_t from, size_t to)
{
    struct topk_lookups lookups;
    lookups.n = 0;
    for (size_t i = from; i < to; i += TOPK_LANES) {
        struct group_check lanes[TOPK_LANES];
        size_t n = to - i < TOPK_LANES ? to - i : TOPK_LANES;
        topk_lookups_reserve(&lookups, n);
        for (size_t l = 0; l < n; l++) TRY(open_group(job->ctx, i + l, job->src, job->size, &lookups, &lanes[l]));
        TRY(check_groups(lanes, n, (enum topk_values)job->ctx->param[TOPK_VALUES]));
        for (size_t l = 0; l < n; l++) TRY(check_group_end(&lanes[l]));
    }
    return STATUS_OK;
}

static void check_share(void *ctx, int thread, int threads)
{
    struct check_job *job = ctx;
    size_t from, to;
    pool_share(((const struct topk_plan *)job->ctx->plan)->n_groups, TOPK_LANES, thread, threads, &from, &to);
    job->status[thread] = check_range(job, from, to);
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
    struct check_job job = {.ctx = ctx, .src = src, .size = size};
    pool_run_if(ctx->pool.pool, groups > TOPK_LANES, check_share, &job);
    for (int t = 0; t < POOL_THREADS_MAX; t++) TRY(job.status[t]); /* of the first bad group */
    return STATUS_OK;
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

enum emit_mode { STORE, AXPY, WEIGH };

struct output {
    float a, *x, *weight; /* at the first coordinate of the tensor or chunk; STORE: a is 1 */
};

static inline void emit(enum emit_mode mode, const struct output *out, size_t at, float product)
{
    if (mode == STORE) {
        out->x[at] = product;
        return;
    }
    out->x[at] = out->x[at] + product;
    if (mode == WEIGH) out->weight[at] = out->weight[at] + out->a;
}

static inline float value_of(enum topk_values kind, float scale, uint32_t code)
{
    uint32_t magnitude = code >> 1;
    float x;
    if (kind == TOPK_INT8)
        x = (float)(magnitude + 1) * (scale * 0x1p-7f); /* exact: 8 bits times 8 bits */
    else
        x = float_of_bits(magnitude << 13) * 0x1p112f * scale; /* fp16 to fp32, then a power of two: exact */
    return code & 1 ? -x : x;
}

static inline __attribute__((always_inline)) void put_values(enum emit_mode mode, enum topk_values kind,
                                                             const struct topk_scales *scales,
                                                             const struct topk_slice *slice, const struct output *out)
{
    const struct topk_form *form = &topk_forms[kind];
    float low = topk_scale(form, scales->low), high = topk_scale(form, scales->high);
    const float product[4] = {out->a * low, out->a * -low, out->a * high, out->a * -high};
    for (uint32_t i = 0; i < slice->n; i++) {
        uint32_t code = slice->code[i];
        if (kind == TOPK_SIGN || kind == TOPK_2BIT)
            emit(mode, out, slice->index[i], product[code]);
        else
            emit(mode, out, slice->index[i], out->a * value_of(kind, low, code));
    }
}

/* Compiles the loop once for each kind of value. */
static inline __attribute__((always_inline)) void put_slice(enum emit_mode mode, enum topk_values kind,
                                                            const struct topk_scales *scales,
                                                            const struct topk_slice *slice, const struct output *out)
{
    switch (kind) {
    case TOPK_SIGN: put_values(mode, TOPK_SIGN, scales, slice, out); break;
    case TOPK_2BIT: put_values(mode, TOPK_2BIT, scales, slice, out); break;
    case TOPK_INT8: put_values(mode, TOPK_INT8, scales, slice, out); break;
    case TOPK_FP16: put_values(mode, TOPK_FP16, scales, slice, out); break;
    }
}

/* Decodes a 1-D tensor. */
static void put_dense(enum emit_mode mode, const uint8_t *bytes, size_t n, const struct output *out)
{
    const struct value_ctx dense = {.n = n};
    const struct codec_part all = {.to = n};
    if (mode == STORE)
        codec_bf16.decode(&dense, bytes, 2 * n, all, out->x);
    else
        codec_bf16.decode_axpy(&dense, out->a, bytes, 2 * n, all, out->x);
    for (size_t i = 0; mode == WEIGH && i < n; i++) out->weight[i] = out->weight[i] + out->a;
}

/* The state of adding one part of several payloads, in order. */
struct addition {
    enum topk_values kind;
    size_t n; /* at most TOPK_LOOKUPS */
    const struct codec_addend *from;
    struct topk_lookups lookups;
    struct topk_stream streams[TOPK_LOOKUPS];
    struct topk_slice slices[TOPK_LANES];
};

static struct output output_of(const struct addition *add, size_t i, float *x, float *weight)
{
    return (struct output){.a = add->from[i].a, .x = x, .weight = weight};
}

/* Adds one chunk of all payloads. If all values of a chunk fit one slice, several payloads are read at once: each
 * coordinate still takes the payloads in order. */
static inline __attribute__((always_inline)) void put_chunk(struct addition *add, enum emit_mode mode,
                                                            const struct topk_item *item, float *x, float *weight)
{
    struct topk_stream *open[TOPK_LOOKUPS];
    size_t n = 0, lanes_max = item->k <= TOPK_SLICE ? TOPK_LANES : 1;
    for (size_t i = 0; i < add->n; i++) {
        open[n] = &add->streams[i];
        (void)topk_stream_chunk(open[n], add->kind, item);
        n += open[n]->left > 0;
    }
    for (size_t i = 0; i < n; i += open[i]->left ? 0 : lanes_max) {
        size_t lanes = n - i < lanes_max ? n - i : lanes_max;
        topk_streams_read(open + i, add->slices, lanes, add->kind);
        for (size_t l = 0; l < lanes; l++) {
            const struct output out = output_of(add, (size_t)(open[i + l] - add->streams), x, weight);
            put_slice(mode, add->kind, &open[i + l]->scales, &add->slices[l], &out);
        }
    }
}

static inline __attribute__((always_inline)) void put_part(struct addition *add, enum emit_mode mode,
                                                           const struct value_ctx *ctx, struct codec_part part,
                                                           float *x, float *weight)
{
    assert(add->n && add->n <= TOPK_LOOKUPS && part.from < part.to);
    struct topk_walk walk = topk_walk_part(ctx, part.index);
    struct topk_item item;
    while (topk_walk_next(&walk, &item) && item.from < part.to) {
        float *at = x + (item.from - part.from), *weight_at = weight ? weight + (item.from - part.from) : NULL;
        if (item.k) {
            put_chunk(add, mode, &item, at, weight_at);
            continue;
        }
        for (size_t i = 0; i < add->n; i++) {
            const struct output out = output_of(add, i, at, weight_at);
            put_dense(mode, add->from[i].view->payload + 2 * item.dense, item.length, &out);
        }
    }
}

/* n <= TOPK_LOOKUPS */
static void put_payloads(enum emit_mode mode, const struct value_ctx *ctx, const struct codec_addend *from, size_t n,
                         struct codec_part part, float *x, float *weight)
{
    const struct topk_plan *plan = ctx->plan;
    struct addition add;
    add.kind = (enum topk_values)ctx->param[TOPK_VALUES];
    add.n = n;
    add.from = from;
    add.lookups.n = 0;
    for (size_t i = 0; plan->n_groups && i < n; i++) {
        const struct codec_view *view = from[i].view;
        size_t start = group_start(plan, view->payload, view->size, part.index);
        add.streams[i] = topk_stream_of(view->payload + start, view->size - start, &add.lookups);
    }
    switch (mode) {
    case STORE: put_part(&add, STORE, ctx, part, x, weight); break;
    case AXPY: put_part(&add, AXPY, ctx, part, x, weight); break;
    case WEIGH: put_part(&add, WEIGH, ctx, part, x, weight); break;
    }
}

void topk_decode(const struct value_ctx *ctx, const uint8_t *src, size_t size, struct codec_part part, float *x)
{
    const struct codec_view view = {.payload = src, .size = size};
    const struct codec_addend all = {.view = &view, .a = 1.0f};
    for (size_t i = 0; i < part.to - part.from; i++) x[i] = -0.0f; /* not sent: -0 changes no sum */
    put_payloads(STORE, ctx, &all, 1, part, x, NULL);
}

/* Appends the values of one chunk that begins at coordinate `from` of the part. */
static size_t list_chunk(struct topk_stream *s, enum topk_values kind, size_t from, uint32_t *index, float *value)
{
    size_t n = 0;
    struct topk_slice slice;
    while (s->left) {
        topk_streams_read(&s, &slice, 1, kind);
        const struct output out = {.a = 1.0f, .x = value + n};
        for (uint32_t i = 0; i < slice.n; i++) {
            index[n + i] = (uint32_t)from + slice.index[i];
            slice.index[i] = (uint16_t)i; /* the values lie end to end */
        }
        put_slice(STORE, kind, &s->scales, &slice, &out);
        n += slice.n;
    }
    return n;
}

size_t topk_list(const struct value_ctx *ctx, const uint8_t *src, size_t size, struct codec_part part, uint32_t *index,
                 float *value)
{
    const struct topk_plan *plan = ctx->plan;
    enum topk_values kind = (enum topk_values)ctx->param[TOPK_VALUES];
    struct topk_walk walk = topk_walk_part(ctx, part.index);
    struct topk_lookups lookups;
    struct topk_stream stream;
    struct topk_item item;
    size_t n = 0;
    lookups.n = 0;
    if (plan->n_groups) {
        size_t start = group_start(plan, src, size, part.index);
        stream = topk_stream_of(src + start, size - start, &lookups);
    }
    while (topk_walk_next(&walk, &item) && item.from < part.to) {
        size_t from = item.from - part.from;
        if (item.k) {
            (void)topk_stream_chunk(&stream, kind, &item);
            n += list_chunk(&stream, kind, from, index + n, value + n);
            continue;
        }
        const struct output out = {.a = 1.0f, .x = value + n};
        put_dense(STORE, src + 2 * item.dense, item.length, &out);
        for (size_t i = 0; i < item.length; i++) index[n++] = (uint32_t)(from + i);
    }
    assert(n <= part.to - part.from);
    return n;
}

void topk_add(const struct value_ctx *ctx, const struct codec_addend *from, size_t n, struct codec_part part,
              float *acc, float *weight)
{
    for (size_t i = 0; i < n; i += TOPK_LOOKUPS)
        put_payloads(weight ? WEIGH : AXPY, ctx, from + i, n - i < TOPK_LOOKUPS ? n - i : TOPK_LOOKUPS, part, acc,
                     weight);
}

/* ---- quantized values -------------------------------------------------------------------------------------------- */

/* Write position in the quantized values of one payload. */
struct cursor {
    const struct quantized_delta *quantized;
    struct piece_head *head; /* of the next piece */
    size_t chosen;           /* values of the previous chunks */
};

static void read_chunk(struct cursor *u, enum topk_values kind, struct topk_stream *s, struct topk_slice *slice,
                       const struct topk_item *item)
{
    struct piece_head *head = u->head++;
    (void)topk_stream_chunk(s, kind, item);
    head->scale[0] = s->scales.low;
    head->scale[1] = s->scales.high;
    while (s->left) {
        topk_streams_read(&s, slice, 1, kind);
        memcpy(u->quantized->index + u->chosen + head->n, slice->index, slice->n * sizeof *slice->index);
        memcpy(u->quantized->code + u->chosen + head->n, slice->code, slice->n * sizeof *slice->code);
        head->n += slice->n;
    }
    u->chosen += item->k;
}

void topk_decode_quantized(const struct value_ctx *ctx, const uint8_t *src, size_t size,
                           const struct quantized_delta *quantized)
{
    const struct topk_plan *plan = ctx->plan;
    enum topk_values kind = (enum topk_values)ctx->param[TOPK_VALUES];
    struct cursor u = {.quantized = quantized, .head = quantized->heads};
    struct topk_walk walk = {.ctx = ctx};
    struct topk_item item;
    struct topk_lookups lookups;
    struct topk_stream stream;
    struct topk_slice slice;
    uint32_t in_group = 0;
    lookups.n = 0;
    memcpy(quantized->plain, src, 2 * plan->n_dense);
    for (size_t group = 0; topk_walk_next(&walk, &item);) {
        if (!item.k) {
            u.head += (item.length + PIECE_PLAIN_MAX - 1) / PIECE_PLAIN_MAX;
            continue;
        }
        if (!in_group) {
            size_t start = group_start(plan, src, size, group), end = group_start(plan, src, size, group + 1);
            topk_lookups_reserve(&lookups, 1);
            stream = topk_stream_of(src + start, end - start, &lookups);
            group++;
        }
        read_chunk(&u, kind, &stream, &slice, &item);
        in_group = (in_group + 1) % topk_group_chunks(ctx);
    }
}
