/* Encodes top-k payloads group by group: the whole group is selected and quantized before its Golomb parameter is
 * known. Threads encode different groups. */
#include "common/base/pool.h"
#include "compress/half.h"
#include "compress/topk/codec_topk.h"
#include "compress/topk/golomb.h"

#include <assert.h>
#include <string.h>

struct encoded_chunk {
    struct topk_scales scales;
    uint32_t length, k, n; /* n: values sent, at most k */
};

/* The selected values of one group until they are written; lies in ctx->scratch. */
struct batch {
    struct topk_select select;
    uint16_t *index, *code; /* [topk_group_chunks * K] */
    struct encoded_chunk *chunks;
    struct golomb_table *table;
    size_t n_chunks;
};

static size_t padded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Sets the pointers of *b into `base` and returns the bytes they take. base NULL: size only. */
static size_t lay_out(const struct value_ctx *ctx, uint8_t *base, struct batch *b)
{
    size_t chunk = ctx->param[TOPK_CHUNK], chunks = topk_group_chunks(ctx), values = chunks * ctx->param[TOPK_K];
    size_t sizes[] = {chunk * sizeof *b->select.bits,
                      chunk * sizeof *b->select.index,
                      TOPK_BINS * sizeof(uint32_t),
                      values * sizeof *b->index,
                      values * sizeof *b->code,
                      chunks * sizeof *b->chunks,
                      sizeof *b->table};
    uint8_t *at[7];
    size_t used = 0;
    for (int i = 0; i < 7; used += padded(sizes[i++])) at[i] = base ? base + used : NULL;
    b->select = (struct topk_select){.bits = (void *)at[0], .index = (void *)at[1], .bins = (void *)at[2]};
    b->index = (void *)at[3];
    b->code = (void *)at[4];
    b->chunks = (void *)at[5];
    b->table = (void *)at[6];
    b->n_chunks = 0;
    return used;
}

size_t topk_scratch_size(const struct value_ctx *ctx)
{
    struct batch b;
    return lay_out(ctx, NULL, &b);
}

/* Selects and quantizes the next chunk into the batch. */
static void select_chunk(const struct value_ctx *ctx, struct batch *b, const float *x, const struct topk_item *item)
{
    const float *values = x + item->from;
    struct topk_select *s = &b->select;
    size_t at = b->n_chunks * ctx->param[TOPK_K], n = topk_select(s, values, item->length, item->k);
    assert(b->n_chunks < topk_group_chunks(ctx) && n <= item->k);
    struct encoded_chunk *c = &b->chunks[b->n_chunks++];
    *c = (struct encoded_chunk){.length = (uint32_t)item->length, .k = item->k};
    c->scales = topk_quantize(ctx->param[TOPK_VALUES], values, s->index, s->bits, n, b->code + at);
    if (!c->scales.low) return;
    c->n = (uint32_t)n;
    memcpy(b->index + at, s->index, n * sizeof *b->index);
}

/* Read position in the quantized values of a device. */
struct cursor {
    const struct quantized_delta *quantized;
    const struct piece_head *head; /* of the next piece */
    size_t chosen;                 /* values of the previous chunks */
};

static bool good_scales(const struct topk_form *form, const struct piece_head *head)
{
    uint32_t least = topk_scale_least(form), end = topk_scale_end(form), high = head->scale[1];
    if (head->scale[0] < least || head->scale[0] >= end) return false;
    return form->two ? high >= head->scale[0] && high < end : !high;
}

/* Copies the next chunk, quantized by the device, into the batch. Unused values after the first head->n are not
 * checked. */
static enum status copy_chunk(const struct value_ctx *ctx, struct batch *b, struct cursor *cursor,
                              const struct topk_item *item)
{
    const struct topk_form *form = &topk_forms[ctx->param[TOPK_VALUES]];
    const struct piece_head *head = cursor->head++;
    const uint16_t *index = cursor->quantized->index + cursor->chosen, *code = cursor->quantized->code + cursor->chosen;
    size_t at = b->n_chunks * ctx->param[TOPK_K];
    struct encoded_chunk *c = &b->chunks[b->n_chunks++];
    *c = (struct encoded_chunk){.length = (uint32_t)item->length, .k = item->k};
    cursor->chosen += item->k;
    if (!head->n) return STATUS_OK;
    if (head->n > item->k || !good_scales(form, head)) return STATUS_CORRUPT;
    uint32_t next = 0;
    bool bad = false;
    for (uint32_t i = 0; i < head->n; i++) {
        bad |= index[i] < next || code[i] >> form->value_bits;
        next = index[i] + 1u;
    }
    if (bad || next > item->length) return STATUS_CORRUPT;
    c->scales = (struct topk_scales){.low = head->scale[0], .high = head->scale[1]};
    c->n = head->n;
    memcpy(b->index + at, index, head->n * sizeof *index);
    memcpy(b->code + at, code, head->n * sizeof *code);
    return STATUS_OK;
}

/* Runs `gap_do` on every gap of chunk c: the gaps before its values, then the gap to the end if the chunk sends fewer
 * than k values. */
#define EACH_GAP(c, index, gap_do)                                                                                     \
    do {                                                                                                               \
        uint32_t next_ = 0;                                                                                            \
        for (uint32_t i_ = 0; i_ < (c)->n; i_++) {                                                                     \
            gap_do((index)[i_] - next_, i_);                                                                           \
            next_ = (index)[i_] + 1u;                                                                                  \
        }                                                                                                              \
        if ((c)->n && (c)->n < (c)->k) gap_do((c)->length - next_, UINT32_MAX);                                        \
    } while (0)

static struct golomb choose_parameter(const struct value_ctx *ctx, const struct batch *b)
{
    uint64_t sum = 0, count = 0;
    for (size_t i = 0; i < b->n_chunks; i++) {
        const struct encoded_chunk *c = &b->chunks[i];
        bool whole = c->n == c->k;
        if (!c->n) continue; /* the gaps of a chunk add up to its last position minus the number of values before it */
        uint32_t last = whole ? b->index[i * ctx->param[TOPK_K] + c->n - 1] : c->length;
        count += c->n + !whole;
        sum += last - (c->n - whole);
    }
    return golomb_of(golomb_parameter(sum, count));
}

static uint64_t count_bits(const struct value_ctx *ctx, const struct batch *b, const struct golomb *g)
{
    const struct topk_form *form = &topk_forms[ctx->param[TOPK_VALUES]];
    uint64_t bits = 0;
    uint32_t previous = 0;
    for (size_t i = 0; i < b->n_chunks; i++) {
        const struct encoded_chunk *c = &b->chunks[i];
        const uint16_t *index = b->index + i * ctx->param[TOPK_K];
        bits += topk_scales_size(form, previous, c->scales);
        if (c->scales.low) previous = c->scales.low;
#define COUNT(gap, i) bits += golomb_size(g, gap)
        EACH_GAP(c, index, COUNT);
#undef COUNT
        bits += (uint64_t)c->n * form->value_bits;
    }
    return bits;
}

/* Writes the values of a chunk; may touch 8 bytes past their end. */
static void write_chunk(struct bit_writer *w, const struct topk_form *form, const struct golomb *g,
                        const struct golomb_table *table, const struct encoded_chunk *c, const uint16_t *index,
                        const uint16_t *code)
{
    const unsigned value_bits = form->value_bits;
    uint32_t next = 0;
    bits_store(w);
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t gap = index[i] - next;
        next = index[i] + 1u;
        if (__builtin_expect(gap >= table->n, 0)) {
            golomb_put(w, g, gap, code[i], value_bits);
            bits_store(w);
            continue;
        }
        struct golomb_code known = table->code[gap];
        bits_put_wide(w, known.bits | (uint64_t)code[i] << known.n, known.n + value_bits);
    }
    if (c->n && c->n < c->k) golomb_put(w, g, c->length - next, 0, 0);
}

/* Writes the batch as a group and returns its end. table NULL: touches nothing past the end. */
static uint8_t *write_group(const struct value_ctx *ctx, const struct batch *b, const struct golomb *g,
                            const struct golomb_table *table, uint8_t *dst)
{
    const struct topk_form *form = &topk_forms[ctx->param[TOPK_VALUES]];
    uint16_t m = (uint16_t)g->m;
    uint32_t previous = 0;
    memcpy(dst, &m, TOPK_GROUP_HEAD);
    struct bit_writer w = bit_writer_of(dst + TOPK_GROUP_HEAD);
    for (size_t i = 0; i < b->n_chunks; i++) {
        const struct encoded_chunk *c = &b->chunks[i];
        const uint16_t *index = b->index + i * ctx->param[TOPK_K], *code = b->code + i * ctx->param[TOPK_K];
        topk_put_scales(&w, form, previous, c->scales);
        if (c->scales.low) previous = c->scales.low;
        if (table) {
            write_chunk(&w, form, g, table, c, index, code);
            continue;
        }
#define PUT(gap, i) golomb_put(&w, g, gap, i == UINT32_MAX ? 0 : code[i], i == UINT32_MAX ? 0 : form->value_bits)
        EACH_GAP(c, index, PUT);
#undef PUT
    }
    return bits_flush(&w);
}

/* Upper bound on the bytes of the batch, as topk_bound counts them. */
static uint64_t group_bound(const struct value_ctx *ctx, const struct batch *b)
{
    uint64_t bits = 0;
    for (size_t i = 0; i < b->n_chunks; i++) bits += topk_bits_max(ctx, b->chunks[i].k, 1);
    return TOPK_GROUP_HEAD + bits / 8 + 1;
}

/* Writes the batch as group `index` at dst + *pos. LIMIT: it does not end within cap. The exact size is counted only if
 * cap is smaller than the upper bound plus the 8 bytes that bits_put_wide touches. */
static enum status put_group(const struct value_ctx *ctx, struct batch *b, size_t index, uint8_t *dst, size_t cap,
                             size_t *pos)
{
    const struct topk_plan *plan = ctx->plan;
    assert(b->n_chunks && index < plan->n_groups && *pos <= cap);
    struct golomb g = choose_parameter(ctx, b);
    bool has_slack = group_bound(ctx, b) + 8 <= cap - *pos;
    size_t offsets = 2 * plan->n_dense, first = offsets + TOPK_OFFSET * (plan->n_groups - 1);
    if (!has_slack && TOPK_GROUP_HEAD + (count_bits(ctx, b, &g) + 7) / 8 > cap - *pos) return STATUS_LIMIT;
    if (has_slack) golomb_table_fill(b->table, &g);
    if (index) {
        uint32_t offset = (uint32_t)(*pos - first);
        memcpy(dst + offsets + TOPK_OFFSET * (index - 1), &offset, TOPK_OFFSET);
    }
    *pos = (size_t)(write_group(ctx, b, &g, has_slack ? b->table : NULL, dst + *pos) - dst);
    assert(*pos <= cap);
    b->n_chunks = 0;
    return STATUS_OK;
}

static enum status copy_dense(const struct topk_item *item, struct cursor *cursor, uint8_t *dst)
{
    const uint8_t *values = (const uint8_t *)(cursor->quantized->plain + item->dense);
    if (!bf16_finite(values, item->length)) return STATUS_CORRUPT;
    memcpy(dst + 2 * item->dense, values, 2 * item->length);
    cursor->head += (item->length + PIECE_PLAIN_MAX - 1) / PIECE_PLAIN_MAX;
    return STATUS_OK;
}

/* Encodes floats, or the quantized values at `cursor` if x is NULL. */
static enum status encode(const struct value_ctx *ctx, const float *x, struct cursor *cursor, uint8_t *dst, size_t cap,
                          size_t *size_p)
{
    const struct topk_plan *plan = ctx->plan;
    size_t groups = plan->n_groups, done = 0;
    size_t pos = 2 * plan->n_dense + (groups ? TOPK_OFFSET * (groups - 1) : 0);
    if (cap < pos) return STATUS_LIMIT;
    struct batch b;
    lay_out(ctx, ctx->scratch, &b);
    struct topk_walk walk = {.ctx = ctx};
    struct topk_item item;
    while (topk_walk_next(&walk, &item)) {
        if (!item.k) {
            if (x)
                bf16_narrow(x + item.from, item.length, dst + 2 * item.dense);
            else
                TRY(copy_dense(&item, cursor, dst));
            continue;
        }
        if (x)
            select_chunk(ctx, &b, x, &item);
        else
            TRY(copy_chunk(ctx, &b, cursor, &item));
        if (b.n_chunks == topk_group_chunks(ctx)) TRY(put_group(ctx, &b, done++, dst, cap, &pos));
    }
    if (b.n_chunks) TRY(put_group(ctx, &b, done, dst, cap, &pos));
    assert(pos <= cap && pos <= topk_bound(ctx));
    *size_p = pos;
    return STATUS_OK;
}

/* ---- on a pool --------------------------------------------------------------------------------------------------- */

/* Threads share the groups and write them to regions of dst that hold the longest groups. */
struct encode_job {
    const struct value_ctx *ctx;
    const float *x;
    uint8_t *dst;
    size_t first, end;                /* of all regions */
    size_t from[POOL_THREADS_MAX];    /* by thread: start of its region */
    size_t written[POOL_THREADS_MAX]; /* bytes there */
    enum status status[POOL_THREADS_MAX];
};

/* Encodes the items of the groups from .. to at *pos. */
static enum status encode_range(struct encode_job *job, size_t from, size_t to, uint8_t *scratch, size_t *pos,
                                size_t region_end)
{
    const struct value_ctx *ctx = job->ctx;
    const size_t end = topk_part(ctx, to - 1).to;
    struct batch b;
    struct topk_walk walk = topk_walk_part(ctx, from);
    struct topk_item item;
    lay_out(ctx, scratch, &b);
    while (topk_walk_next(&walk, &item) && item.from < end) {
        if (!item.k) {
            bf16_narrow(job->x + item.from, item.length, job->dst + 2 * item.dense);
            continue;
        }
        select_chunk(ctx, &b, job->x, &item);
        if (b.n_chunks == topk_group_chunks(ctx)) TRY(put_group(ctx, &b, from++, job->dst, region_end, pos));
    }
    return b.n_chunks ? put_group(ctx, &b, from, job->dst, region_end, pos) : STATUS_OK;
}

static void encode_share(void *arg, int thread, int threads)
{
    struct encode_job *job = arg;
    const struct topk_plan *plan = job->ctx->plan;
    size_t from, to, pos = job->from[thread];
    pool_share(plan->n_groups, 1, thread, threads, &from, &to);
    if (from == to) return;
    size_t end = thread + 1 < threads ? job->from[thread + 1] : job->end;
    job->status[thread] =
        encode_range(job, from, to, job->ctx->pool.scratch + (size_t)thread * job->ctx->pool.each, &pos, end);
    job->written[thread] = pos - job->from[thread];
}

/* Sets the regions. */
static void lay_out_regions(struct encode_job *job, int threads)
{
    const struct topk_plan *plan = job->ctx->plan;
    struct topk_walk walk = {.ctx = job->ctx};
    struct topk_item item;
    size_t group = 0, chunks = 0;
    uint64_t bits = 0;
    int thread = 0;
    job->end = job->first;
    for (bool more = true; more;) {
        more = topk_walk_next(&walk, &item);
        if (more && !item.k) continue;
        if (more) bits += topk_bits_max(job->ctx, item.k, 1);
        if (more && ++chunks < topk_group_chunks(job->ctx)) continue;
        if (!chunks) break;
        for (size_t from, to; thread < threads; thread++) {
            pool_share(plan->n_groups, 1, thread, threads, &from, &to);
            if (from > group) break;
            job->from[thread] = job->end;
        }
        job->end += TOPK_GROUP_HEAD + bits / 8 + 1;
        group++;
        chunks = bits = 0;
    }
    for (; thread < threads; thread++) job->from[thread] = job->end;
    assert(group == plan->n_groups);
}

/* Moves the regions together and returns the end of the payload. */
static size_t join_regions(struct encode_job *job, int threads)
{
    const struct topk_plan *plan = job->ctx->plan;
    size_t pos = job->first, offsets = 2 * plan->n_dense;
    for (int t = 0; t < threads; t++) {
        size_t from, to, back = job->from[t] - pos;
        pool_share(plan->n_groups, 1, t, threads, &from, &to);
        memmove(job->dst + pos, job->dst + job->from[t], job->written[t]);
        for (size_t g = from ? from : 1; g < to; g++) {
            uint8_t *at = job->dst + offsets + TOPK_OFFSET * (g - 1);
            uint32_t offset;
            memcpy(&offset, at, TOPK_OFFSET);
            offset -= (uint32_t)back;
            memcpy(at, &offset, TOPK_OFFSET);
        }
        pos += job->written[t];
    }
    return pos;
}

static enum status encode_on_pool(const struct value_ctx *ctx, struct pool *pool, const float *x, uint8_t *dst,
                                  size_t *size_p)
{
    const struct topk_plan *plan = ctx->plan;
    const int threads = pool_threads(pool);
    struct encode_job job = {
        .ctx = ctx, .x = x, .dst = dst, .first = 2 * plan->n_dense + TOPK_OFFSET * (plan->n_groups - 1)};
    lay_out_regions(&job, threads);
    assert(job.end <= topk_bound(ctx));
    pool_run(pool, encode_share, &job);
    for (int t = 0; t < threads; t++) TRY(job.status[t]);
    *size_p = join_regions(&job, threads);
    return STATUS_OK;
}

enum status topk_encode(const struct value_ctx *ctx, const float *x, uint8_t *dst, size_t cap, size_t *size_p)
{
    const struct topk_plan *plan = ctx->plan;
    struct pool *pool = codec_pool_with(&ctx->pool, topk_scratch_size(ctx));
    if (pool && plan->n_groups > 1 && cap >= topk_bound(ctx)) return encode_on_pool(ctx, pool, x, dst, size_p);
    return encode(ctx, x, NULL, dst, cap, size_p);
}

enum status topk_encode_quantized(const struct value_ctx *ctx, const struct quantized_delta *quantized, uint8_t *dst,
                                  size_t cap, size_t *size_p)
{
    struct cursor cursor = {.quantized = quantized, .head = quantized->heads};
    return encode(ctx, NULL, &cursor, dst, cap, size_p);
}
