#include "compress/codec.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/tensor/layout.h"
#include "compress/codec_chain.h"
#include "compress/codec_simd.h"
#include "compress/payload_entropy.h"

struct codec {
    struct codec_chain chain;
    size_t bounds[CODEC_STAGES_MAX];    /* largest output of the value stage, then of each byte stage */
    uint8_t *between[CODEC_STAGES_MAX]; /* [n_bytes]: [bounds[i]] output of stage i, input of stage i + 1 */
    void *work[CODEC_STAGES_MAX - 1];   /* working memory of each byte stage */
    struct codec_span *spans;           /* copy of the caller's */
    struct arena arena;                 /* holds everything above */
    size_t memory;                      /* bytes of the arena with `between` and `work` */
};

/* Floats of all spans. 0: the spans do not lie end to end from 0, or rows * cols is not count. */
static uint64_t count_spans(const struct codec_span *spans, size_t n_spans)
{
    uint64_t n = 0;
    for (size_t i = 0; i < n_spans; i++) {
        const struct codec_span *s = &spans[i];
        uint64_t product;
        if (!s->count || s->offset != n || __builtin_mul_overflow(s->rows, s->cols, &product) || product != s->count ||
            __builtin_add_overflow(n, s->count, &n) || n > (uint64_t)1 << 40)
            return 0;
    }
    return n;
}

/* sizes_only: the arena leaves out the buffers of byte stages. */
static enum status allocate_buffers(struct codec *codec, const struct codec_span *spans, size_t n_spans,
                                    bool sizes_only)
{
    struct codec_chain *chain = &codec->chain;
    struct value_ctx *value = &chain->value;
    const struct value_stage *v = value->stage;
    value->spans = spans;
    size_t value_scratch = v->scratch ? v->scratch(value) : 0;
    size_t value_plan = v->plan ? v->plan(value) : 0;
    size_t own = arena_need(n_spans, sizeof *spans) + arena_need(1, value_scratch) + arena_need(1, value_plan);
    codec->bounds[0] = v->bound(value);
    assert(value->n && value->n_spans == n_spans);
    codec->memory = own;
    for (size_t i = 0; i < chain->n_bytes; i++) {
        codec->bounds[i + 1] = chain->bytes[i]->bound(codec->bounds[i]);
        assert(codec->bounds[i + 1] >= codec->bounds[i]);
        codec->memory += arena_need(1, codec->bounds[i]) + arena_need(1, chain->bytes[i]->scratch);
    }
    TRY(arena_init(&codec->arena, sizes_only ? own : codec->memory));
    codec->spans = arena_take(&codec->arena, n_spans, sizeof *spans);
    memcpy(codec->spans, spans, n_spans * sizeof *spans);
    value->spans = codec->spans;
    if (value_scratch) value->scratch = arena_take(&codec->arena, 1, value_scratch);
    if (value_plan) value->plan = arena_take(&codec->arena, 1, value_plan);
    for (size_t i = 0; i < chain->n_bytes && !sizes_only; i++) {
        codec->between[i] = arena_take(&codec->arena, 1, codec->bounds[i]);
        codec->work[i] = arena_take(&codec->arena, 1, chain->bytes[i]->scratch);
    }
    return STATUS_OK;
}

/* codec->chain is set, its n and n_spans included. */
static enum status build(struct codec *codec, const char *spec, const struct codec_span *spans, bool sizes_only,
                         struct err *err)
{
    const struct value_ctx *value = &codec->chain.value;
    enum status status = allocate_buffers(codec, spans, value->n_spans, sizes_only);
    if (status != STATUS_OK)
        return err_set(err, status, "codec \"%.64s\": no memory for buffers of %zu values", spec, value->n);
    status = value->stage->prepare ? value->stage->prepare(value) : STATUS_OK;
    if (status == STATUS_OK) return STATUS_OK;
    arena_finish(&codec->arena);
    return err_set(err, status,
                   "codec \"%.64s\": a fragment of %zu values is too large for it: raise "
                   "train.fragments or choose another codec",
                   spec, value->n);
}

static enum status create(struct codec **codec_p, const char *spec, const struct codec_span *spans, size_t n_spans,
                          bool sizes_only, struct err *err)
{
    struct codec_chain chain;
    TRY(codec_chain_parse(&chain, spec, err));
    uint64_t n = count_spans(spans, n_spans);
    if (!n)
        return err_set(err, STATUS_INVALID, "codec \"%.64s\": the tensors of the fragment do not lie end to end", spec);
    chain.value.n = (size_t)n;
    chain.value.n_spans = n_spans;
    struct codec *codec = mem_alloc(1, sizeof *codec);
    if (!codec) return err_set(err, STATUS_NOMEM, "codec \"%.64s\": out of memory", spec);
    codec->chain = chain;
    enum status status = build(codec, spec, spans, sizes_only, err);
    if (status != STATUS_OK) {
        mem_free(codec);
        return status;
    }
    *codec_p = codec;
    return STATUS_OK;
}

enum status codec_create(struct codec **codec_p, const char *spec, const struct codec_span *spans, size_t n_spans,
                         struct err *err)
{
    return create(codec_p, spec, spans, n_spans, false, err);
}

static enum status create_for(struct codec **codec_p, const char *spec, const struct layout *layout, uint32_t fragment,
                              bool sizes_only, struct err *err)
{
    if (fragment >= layout->n_fragments)
        return err_set(err, STATUS_INVALID, "codec \"%.64s\": fragment %u of %u", spec, fragment, layout->n_fragments);
    const struct fragment *f = &layout->fragments[fragment];
    struct codec_span *spans = mem_alloc(f->n_tensors, sizeof *spans);
    if (!spans) return err_set(err, STATUS_NOMEM, "codec \"%.64s\": out of memory", spec);
    for (uint32_t i = 0; i < f->n_tensors; i++) {
        const struct tensor *t = &layout->tensors[f->first_tensor + i];
        uint8_t ndim = t->ndim ? t->ndim : 1; /* a scalar is a vector of one value */
        uint64_t cols = t->ndim ? t->shape[t->ndim - 1] : 1;
        spans[i] = (struct codec_span){
            .offset = t->offset - f->offset, .count = t->count, .rows = t->count / cols, .cols = cols, .ndim = ndim};
    }
    enum status status = create(codec_p, spec, spans, f->n_tensors, sizes_only, err);
    mem_free(spans);
    return status;
}

enum status codec_create_for_fragment(struct codec **codec_p, const char *spec, const struct layout *layout,
                                      uint32_t fragment, struct err *err)
{
    return create_for(codec_p, spec, layout, fragment, false, err);
}

enum status codec_describe_for_fragment(struct codec **codec_p, const char *spec, const struct layout *layout,
                                        uint32_t fragment, struct err *err)
{
    return create_for(codec_p, spec, layout, fragment, true, err);
}

size_t codec_memory(const struct codec *codec)
{
    return sizeof *codec + codec->memory;
}

void codec_destroy(struct codec *codec)
{
    if (!codec) return;
    arena_finish(&codec->arena);
    mem_free(codec);
}

void codec_use_pool(struct codec *codec, struct pool *pool, void *scratch, size_t each)
{
    codec->chain.value.pool = (struct codec_pool){pool, scratch, each / MEM_ALIGN * MEM_ALIGN};
}

const char *codec_spec(const struct codec *codec)
{
    return codec->chain.spec;
}

size_t codec_count(const struct codec *codec)
{
    return codec->chain.value.n;
}

size_t codec_bound(const struct codec *codec)
{
    return codec->bounds[codec->chain.n_bytes];
}

bool codec_lossless(const struct codec *codec)
{
    return codec_spec_lossless(codec->chain.spec);
}

bool codec_sparse(const struct codec *codec)
{
    return codec_spec_sparse(codec->chain.spec);
}

float codec_feedback_decay(const struct codec *codec)
{
    return codec->chain.value.stage->feedback_decay;
}

struct encoding {
    const struct codec *codec;
    const float *x;
    uint8_t *payload;             /* of the value stage; NULL: only scan for NaN and infinity */
    size_t bad[POOL_THREADS_MAX]; /* [thread]: first bad value of its share; n: none */
};

static void encode_parts(void *ctx, int thread, int threads)
{
    struct encoding *e = ctx;
    const struct value_ctx *v = &e->codec->chain.value;
    size_t first, end;
    pool_share(codec_parts(e->codec), 1, thread, threads, &first, &end);
    assert(thread < POOL_THREADS_MAX && first <= end);
    e->bad[thread] = v->n;
    for (size_t i = first; i < end; i++) {
        struct codec_part part = codec_part(e->codec, i);
        size_t n = part.to - part.from, bad = codec_first_nonfinite(e->x + part.from, n);
        if (bad < n) {
            e->bad[thread] = part.from + bad;
            return;
        }
        if (e->payload) v->stage->encode_part(v, e->x + part.from, part, e->payload);
    }
}

static enum status encode_floats(struct codec *codec, struct pool *pool, const float *x, uint8_t *dst, size_t cap,
                                 size_t *size_p, size_t *bad_index)
{
    const struct value_ctx *v = &codec->chain.value;
    bool in_parts = v->stage->encode_part != NULL, fits = cap >= codec->bounds[0];
    struct encoding e = {.codec = codec, .x = x, .payload = in_parts && fits ? dst : NULL};
    bool parallel = codec_parts(codec) > 1;
    int threads = pool && parallel ? pool_threads(pool) : 1;
    assert(threads >= 1 && threads <= POOL_THREADS_MAX);
    pool_run_if(pool, parallel, encode_parts, &e);
    for (int i = 0; i < threads; i++) {
        if (e.bad[i] == v->n) continue;
        if (bad_index) *bad_index = e.bad[i];
        return STATUS_NONFINITE;
    }
    if (!in_parts) return v->stage->encode(v, x, dst, cap, size_p);
    if (!fits) return STATUS_LIMIT;
    *size_p = codec->bounds[0];
    return STATUS_OK;
}

/* Encodes floats, or quantized values if x is NULL, with the value stage, then passes the payload through the byte
 * stages. */
static enum status encode_chain(struct codec *codec, struct pool *pool, const float *x,
                                const struct quantized_delta *quantized, uint8_t *dst, size_t cap, size_t *size_p,
                                size_t *bad_index)
{
    const struct codec_chain *chain = &codec->chain;
    const struct value_ctx *v = &chain->value;
    size_t size = 0;
    assert((x != NULL) != (quantized != NULL));
    struct payload_shape shape = {.width = v->stage->width};
    if (v->stage->shape) v->stage->shape(v, &shape);
    /* The last stage writes to the caller's buffer, the others to their own. */
    bool last = chain->n_bytes == 0;
    /* codec_describe_for_fragment leaves `between` NULL. */
    assert(shape.n_sections <= PAYLOAD_SECTIONS && (last || codec->between[0]));
    uint8_t *first = last ? dst : codec->between[0];
    size_t first_cap = last ? cap : codec->bounds[0];
    TRY(x ? encode_floats(codec, pool, x, first, first_cap, &size, bad_index)
          : v->stage->encode_quantized(v, quantized, first, first_cap, &size));
    assert(size <= first_cap && size <= codec->bounds[0]);
    for (size_t i = 0; i < chain->n_bytes; i++) {
        last = i + 1 == chain->n_bytes;
        uint8_t *out = last ? dst : codec->between[i + 1];
        TRY(chain->bytes[i]->encode(&v->pool, codec->work[i], &shape, codec->between[i], size, out,
                                    last ? cap : codec->bounds[i + 1], &size));
        assert(size <= codec->bounds[i + 1] && (!last || size <= cap));
        if (last) break;
        shape.n_sections = 0;
    }
    *size_p = size;
    return STATUS_OK;
}

enum status codec_encode_pool(struct codec *codec, struct pool *pool, const float *x, uint8_t *dst, size_t cap,
                              size_t *size_p, size_t *bad_index)
{
    return encode_chain(codec, pool, x, NULL, dst, cap, size_p, bad_index);
}

enum status codec_encode(struct codec *codec, const float *x, uint8_t *dst, size_t cap, size_t *size_p,
                         size_t *bad_index)
{
    return codec_encode_pool(codec, NULL, x, dst, cap, size_p, bad_index);
}

bool codec_delta_format(const struct codec *codec, struct delta_format *shape, struct piece_range *pieces)
{
    const struct value_ctx *v = &codec->chain.value;
    if (v->stage->delta_format) v->stage->delta_format(v, shape, pieces);
    return v->stage->delta_format != NULL;
}

enum status codec_encode_quantized(struct codec *codec, const struct quantized_delta *quantized, uint8_t *dst,
                                   size_t cap, size_t *size_p)
{
    struct delta_format shape;
    if (!codec_delta_format(codec, &shape, NULL)) return STATUS_INVALID;
    for (size_t i = 0; i < shape.n_pieces; i++)
        if (quantized->heads[i].bad) return STATUS_NONFINITE;
    return encode_chain(codec, NULL, NULL, quantized, dst, cap, size_p, NULL);
}

enum status codec_decode_quantized(struct codec *codec, const uint8_t *src, size_t size, void *room)
{
    struct delta_format shape;
    struct quantized_delta quantized;
    struct codec_view view;
    if (!codec_delta_format(codec, &shape, NULL)) return STATUS_INVALID;
    TRY(codec_open(codec, src, size, NULL, &view));
    memset(room, 0, delta_format_lay_out(&shape, room, &quantized));
    codec->chain.value.stage->decode_quantized(&codec->chain.value, view.payload, view.size, &quantized);
    return STATUS_OK;
}

size_t codec_parts(const struct codec *codec)
{
    const struct value_ctx *v = &codec->chain.value;
    if (v->stage->parts) return v->stage->parts(v);
    size_t length = codec_part(codec, 0).to;
    return (v->n + length - 1) / length;
}

struct codec_part codec_part(const struct codec *codec, size_t index)
{
    const struct value_ctx *v = &codec->chain.value;
    if (v->stage->part) return v->stage->part(v, index);
    size_t align = v->stage->align ? v->stage->align(v) : 1, length = (CODEC_PART + align - 1) / align * align;
    size_t from = index * length;
    assert(from < v->n);
    return (struct codec_part){.index = index, .from = from, .to = v->n - from < length ? v->n : from + length};
}

size_t codec_open_room(const struct codec *codec)
{
    return codec->chain.n_bytes ? codec->bounds[0] : 0;
}

enum status codec_open_again(struct codec *codec, const uint8_t *src, size_t size, uint8_t *room,
                             struct codec_view *view)
{
    const struct codec_chain *chain = &codec->chain;
    const struct payload_shape shape = {.width = chain->value.stage->width};
    for (size_t i = chain->n_bytes; i-- > 0;) {
        uint8_t *out = i == 0 && room ? room : codec->between[i];
        assert(out);
        TRY(chain->bytes[i]->decode(&chain->value.pool, codec->work[i], &shape, src, size, out, codec->bounds[i],
                                    &size));
        assert(size <= codec->bounds[i]);
        src = out;
    }
    *view = (struct codec_view){.codec = codec, .payload = src, .size = size};
    return STATUS_OK;
}

enum status codec_open(struct codec *codec, const uint8_t *src, size_t size, uint8_t *room, struct codec_view *view)
{
    const struct value_ctx *v = &codec->chain.value;
    TRY(codec_open_again(codec, src, size, room, view));
    return v->stage->check(v, view->payload, view->size);
}

void codec_view_decode(const struct codec_view *view, size_t part, float *x)
{
    assert(part < codec_parts(view->codec));
    const struct value_ctx *v = &view->codec->chain.value;
    v->stage->decode(v, view->payload, view->size, codec_part(view->codec, part), x);
}

size_t codec_view_list(const struct codec_view *view, size_t part, uint32_t *index, float *value)
{
    assert(part < codec_parts(view->codec));
    const struct value_ctx *v = &view->codec->chain.value;
    return v->stage->list(v, view->payload, view->size, codec_part(view->codec, part), index, value);
}

void codec_views_add(const struct codec_addend *from, size_t n, size_t part, float *acc, float *weight)
{
    if (!n) return;
    const struct value_ctx *v = &from[0].view->codec->chain.value;
    assert(part < codec_parts(from[0].view->codec));
    const struct codec_part range = codec_part(from[0].view->codec, part);
    if (v->stage->add) {
        v->stage->add(v, from, n, range, acc, weight);
        return;
    }
    for (size_t k = 0; k < n; k++) {
        const struct codec_view *view = from[k].view;
        assert(view->codec == from[0].view->codec);
        v->stage->decode_axpy(v, from[k].a, view->payload, view->size, range, acc);
        for (size_t i = 0; weight && i < range.to - range.from; i++) weight[i] = weight[i] + from[k].a;
    }
}

void codec_view_axpy(const struct codec_view *view, size_t part, float a, float *acc)
{
    const struct codec_addend one = {.view = view, .a = a};
    codec_views_add(&one, 1, part, acc, NULL);
}

void codec_view_axpy_weigh(const struct codec_view *view, size_t part, float a, float *acc, float *weight)
{
    const struct codec_addend one = {.view = view, .a = a};
    codec_views_add(&one, 1, part, acc, weight);
}

double codec_bound_bits(const struct codec_view *view)
{
    const struct value_ctx *v = &view->codec->chain.value;
    if (v->stage->bound_bits) return v->stage->bound_bits(v);
    struct payload_shape shape = {.width = v->stage->width};
    if (v->stage->shape) v->stage->shape(v, &shape);
    size_t codes = shape.n_sections ? shape.section[shape.n_sections - 1].to : 0;
    size_t coded = v->n - shape.n_plain;
    double bits = coded ? payload_entropy(view->payload + codes, view->size - codes, coded) : 0;
    return (bits * (double)coded + 16.0 * (double)shape.n_plain) / (double)v->n;
}

enum status codec_decode(struct codec *codec, const uint8_t *src, size_t size, float *x)
{
    struct codec_view view;
    TRY(codec_open(codec, src, size, NULL, &view));
    for (size_t p = 0, parts = codec_parts(codec); p < parts; p++)
        codec_view_decode(&view, p, x + codec_part(codec, p).from);
    return STATUS_OK;
}

enum status codec_decode_axpy(struct codec *codec, float a, const uint8_t *src, size_t size, float *acc)
{
    struct codec_view view;
    TRY(codec_open(codec, src, size, NULL, &view));
    for (size_t p = 0, parts = codec_parts(codec); p < parts; p++)
        codec_view_axpy(&view, p, a, acc + codec_part(codec, p).from);
    return STATUS_OK;
}
