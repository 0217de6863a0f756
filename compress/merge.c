#include "compress/merge.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/median.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/config/codec_choice.h"
#include "common/tensor/layout.h"
#include "compress/codec_simd.h"
#include "compress/tensor_piece.h"

enum { ADDENDS = 16 };

static const double rda_least = 1e-4; /* a shorter mean of unit vectors has no direction */
/* merge.clip auto, in medians. Gradients of small batches (ddp) scatter more than deltas. */
static const double whole_delta = 1.2, tensor_delta = 4, whole_gradient = 4, tensor_gradient = 16;

struct merge_job { /* adds `count` deltas to every part */
    struct merge *merge;
    const struct merge_delta *deltas;
    uint32_t count;
    size_t items;                                                           /* shared out to threads: parts or deltas */
    void (*on_part)(const struct merge_job *job, size_t p, float *scratch); /* scratch: [2][part_max] of the thread */
};

static float *scratch_of(const struct merger *m, int thread)
{
    return m->scratch + 2 * (size_t)thread * m->part_max;
}

static void parts_job(void *ctx, int thread, int threads)
{
    const struct merge_job *job = ctx;
    size_t first, end;
    pool_share(job->items, 1, thread, threads, &first, &end);
    for (size_t p = first; p < end; p++) job->on_part(job, p, scratch_of(job->merge->m, thread));
}

float merge_weight(uint64_t tokens, uint64_t total)
{
    assert(tokens <= total);
    return tokens == total ? 1.0f : (float)((double)tokens / (double)total);
}

size_t merge_part_max(const struct codec *codec)
{
    size_t most = 0;
    for (size_t p = 0, parts = codec_parts(codec); p < parts; p++) {
        struct codec_part part = codec_part(codec, p);
        if (part.to - part.from > most) most = part.to - part.from;
    }
    return most;
}

/* merge.clip auto: merges of three and more deltas, with tolerances that honest deltas stay below (docs/results.md). */
static struct merge_bounds merge_bounds_of(const struct config *c)
{
    bool gradient = c->train.method == METHOD_DDP;
    /* The coordinator cannot count the tokens of external samples. */
    struct merge_bounds bounds = {.by_tokens = config_steps_differ(c) && !config_is_external(c)};
    switch (c->merge.clip) {
    case MERGE_CLIP_OFF: bounds.least = UINT32_MAX; break;
    case MERGE_CLIP_MEDIAN:
        bounds.least = 2;
        bounds.whole = INFINITY;
        bounds.tensor = 1;
        break;
    case MERGE_CLIP_AUTO:
        bounds.least = 3; /* two workers have no majority */
        bounds.whole = gradient ? whole_gradient : whole_delta;
        bounds.tensor = gradient ? tensor_gradient : tensor_delta;
        break;
    }
    return bounds;
}

enum status merger_init(struct merger *m, const struct config *config, bool parameters, struct pool *pool,
                        size_t part_max)
{
    *m = (struct merger){.rule = config->merge.rule,
                         .equal = config->train.method == METHOD_ASYNC,
                         .bounds = merge_bounds_of(config),
                         .parameters = parameters,
                         .parameters_of_means = config_delta_replaces(config, true),
                         .pool = pool,
                         .threads = pool ? pool_threads(pool) : 1,
                         .part_max = part_max};
    assert(part_max && m->threads >= 1 && m->threads <= POOL_THREADS_MAX);
    m->scratch = mem_alloc(2 * (size_t)m->threads * part_max, sizeof *m->scratch);
    return m->scratch ? STATUS_OK : STATUS_NOMEM;
}

bool merger_takes_parameters(const struct merger *m, const struct layout *layout, uint32_t fragment)
{
    return layout_is_mean(layout, fragment) ? m->parameters_of_means : m->parameters;
}

void merger_finish(struct merger *m)
{
    mem_free(m->scratch);
    mem_free(m->norms);
    memset(m, 0, sizeof *m);
}

static bool counts_senders(const struct merger *m, const struct codec *codec)
{
    return m->rule == MERGE_CONTRIBUTORS && codec_sparse(codec);
}

bool merge_needs_all(const struct merger *m, const struct codec *codec)
{
    return counts_senders(m, codec) || m->rule == MERGE_RDA;
}

enum status merge_open(struct codec *codec, struct merge_delta *delta)
{
    return (delta->checked ? codec_open_again : codec_open)(codec, delta->payload, delta->size, delta->room,
                                                            &delta->view);
}

static uint32_t n_tensors(const struct merge *merge)
{
    return merge->layout->fragments[merge->fragment].n_tensors;
}

static bool clips(const struct merge *merge)
{
    return merge->n >= merge->m->bounds.least && merge->n > 1;
}

/* Behind the norms: the factors of the values of a delta, by tensor. Behind those of all deltas: room for 2 n numbers.
 */
static double *factors_of(const struct merge *merge, uint32_t delta)
{
    return merge->m->norms + (size_t)(merge->n + delta) * n_tensors(merge);
}

static enum status reserve(const struct merge *merge)
{
    struct merger *m = merge->m;
    size_t need = 0;
    if (merge_needs_norms(merge)) need = 2 * (size_t)merge->n * n_tensors(merge) + 2 * (size_t)merge->n;
    if (merge->rda) need += n_tensors(merge) + codec_parts(merge->codec) + n_tensors(merge);
    if (need <= m->norms_cap) return STATUS_OK;
    mem_free(m->norms);
    m->norms = mem_alloc(need, sizeof *m->norms);
    m->norms_cap = m->norms ? need : 0;
    return m->norms ? STATUS_OK : STATUS_NOMEM;
}

/* The tokens that a delta counts. */
static uint64_t weighed(const struct merge *merge, uint64_t tokens)
{
    if (merge->m->equal) return 1;
    return tokens < merge->most ? tokens : merge->most;
}

static void bound_tokens(struct merge *merge, const uint64_t *tokens)
{
    const struct merger *m = merge->m;
    bool largest = counts_senders(m, merge->codec);
    merge->most = UINT64_MAX;
    if (clips(merge)) {
        for (uint32_t i = 0; i < merge->n; i++) m->norms[i] = (double)tokens[i];
        merge->median = median_of(m->norms, merge->n);
        if (merge->n > 2) merge->most = (uint64_t)(MERGE_WEIGHT_MOST * merge->median);
    }
    for (uint32_t i = 0; i < merge->n; i++) {
        uint64_t t = weighed(merge, tokens[i]);
        merge->total = !largest ? merge->total + t : t > merge->total ? t : merge->total;
    }
    assert(merge->total > 0);
}

enum status merge_start(struct merge *merge, struct merger *m, const struct layout *layout, uint32_t fragment,
                        struct codec *codec, const float *theta, float *acc, const uint64_t *tokens, uint32_t n)
{
    *merge = (struct merge){.m = m,
                            .layout = layout,
                            .fragment = fragment,
                            .codec = codec,
                            .theta = theta,
                            .acc = acc,
                            .n = n,
                            .tokens = tokens};
    assert(n && fragment < layout->n_fragments);
    assert(codec_count(codec) == layout->fragments[fragment].count && merge_part_max(codec) <= m->part_max);
    merge->parameters = merger_takes_parameters(m, layout, fragment);
    merge->rda = m->rule == MERGE_RDA && n > 1 && !layout_is_mean(layout, fragment);
    assert(!merge->rda || !codec_sparse(codec));
    TRY(reserve(merge));
    bound_tokens(merge, tokens);
    return STATUS_OK;
}

bool merge_needs_norms(const struct merge *merge)
{
    return clips(merge) || merge->rda;
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */

enum { LANES = 16 };

/* sum[i mod LANES] += x[i]^2. */
CODEC_SIMD(squares, (const float *x, size_t n, double *restrict sum), (x, n, sum))
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t k = 0; k < LANES; k++) sum[k] += (double)x[i + k] * (double)x[i + k];
    for (size_t k = 0; i < n; i++, k++) sum[k] += (double)x[i] * (double)x[i];
}

/* One thread computes all norms of a delta, so its sums have one order. Values that were not sent add nothing, so those
 * that were are added as `squares` does. scratch: [2][part_max] */
static void compute_norms(const struct merge *merge, const struct merge_delta *delta, double *norms, float *scratch)
{
    bool sparse = codec_sparse(merge->codec) && !merge->parameters;
    uint32_t *index = (uint32_t *)(void *)(scratch + merge->m->part_max), tensor = 0;
    double sum[LANES] = {0};
    float *x = scratch;
    for (size_t p = 0, parts = codec_parts(merge->codec); p < parts; p++) {
        struct codec_part part = codec_part(merge->codec, p);
        size_t next = 0, n = sparse ? codec_view_list(&delta->view, p, index, x) : 0;
        if (!sparse) codec_view_decode(&delta->view, p, x);
        for (struct tensor_piece at = {0}; tensor_piece_next(merge->layout, merge->fragment, part, &at);) {
            size_t from = at.from - part.from, to = at.to - part.from;
            if (at.tensor != tensor) memset(sum, 0, sizeof sum);
            tensor = at.tensor;
            for (size_t k = from; merge->parameters && k < to; k++) x[k] = merge->theta[part.from + k] - x[k];
            if (!sparse) squares(x + from, to - from, sum);
            for (; next < n && index[next] < to; next++)
                sum[(index[next] - from) % LANES] += (double)x[next] * (double)x[next];
            double all = 0;
            for (int k = 0; k < LANES; k++) all += sum[k];
            norms[tensor] = sqrt(all);
        }
    }
}

static void measure_job(void *ctx, int thread, int threads)
{
    const struct merge_job *job = ctx;
    struct merge *merge = job->merge;
    for (uint32_t i = (uint32_t)thread; i < job->count; i += (uint32_t)threads)
        compute_norms(merge, &job->deltas[i], merge->m->norms + (size_t)(merge->measured + i) * n_tensors(merge),
                      scratch_of(merge->m, thread));
}

/* The factor that scales a norm down to the median. */
static double clip_factor(const struct merge *merge, uint32_t i, double norm, double median, double tolerance)
{
    double more = (double)merge->tokens[i] / merge->median;
    if (merge->m->bounds.by_tokens && more > 1) median *= more;
    return median > 0 && norm > tolerance * median ? median / norm : 1;
}

/* Sets wholes[n] to the norms of the deltas, each tensor scaled by its factor, and returns their median. */
static double measure_whole(const struct merge *merge, double *wholes, double *sorted)
{
    uint32_t tensors = n_tensors(merge);
    for (uint32_t i = 0; i < merge->n; i++) {
        double sum = 0;
        for (size_t at = (size_t)i * tensors; at < (size_t)(i + 1) * tensors; at++) {
            double norm = merge->m->norms[at] * factors_of(merge, 0)[at];
            sum += norm * norm;
        }
        sorted[i] = wholes[i] = sqrt(sum);
    }
    return median_of(sorted, merge->n);
}

/* Computes the factors of all tensors of all deltas. */
static void clip_norms(struct merge *merge)
{
    const struct merge_bounds *bounds = &merge->m->bounds;
    uint32_t tensors = n_tensors(merge);
    double *norms = merge->m->norms, *factors = factors_of(merge, 0), *wholes = factors_of(merge, merge->n),
           *sorted = wholes + merge->n;
    for (double *at = factors; at < wholes; at++) *at = 1;
    if (!clips(merge)) return;
    double whole = measure_whole(merge, wholes, sorted);
    for (uint32_t t = 0; t < tensors; t++) {
        for (uint32_t i = 0; i < merge->n; i++) sorted[i] = norms[(size_t)i * tensors + t];
        double median = median_of(sorted, merge->n);
        if (!(median > 0)) median = whole;
        for (uint32_t i = 0; i < merge->n; i++) {
            size_t at = (size_t)i * tensors + t;
            factors[at] = clip_factor(merge, i, norms[at], median, bounds->tensor);
        }
    }
    if (isinf(bounds->whole)) return;
    whole = measure_whole(merge, wholes, sorted);
    for (uint32_t i = 0; i < merge->n; i++) {
        double factor = clip_factor(merge, i, wholes[i], whole, bounds->whole);
        for (uint32_t t = 0; t < tensors && factor < 1; t++) factors[(size_t)i * tensors + t] *= factor;
    }
}

/* rda: by tensor the norm of the result, then its factor. 0: the plain mean. */
static double *lengths(const struct merge *merge)
{
    return factors_of(merge, merge->n) + 2 * (size_t)merge->n;
}

static double share_of(const struct merge *merge, const struct merge_delta *delta)
{
    return (double)weighed(merge, delta->tokens) / (double)merge->total;
}

/* rda: replaces the factors of the deltas: share of the worker times mean norm over own norm. */
static void norms_to_directions(struct merge *merge, const struct merge_delta *deltas)
{
    uint32_t tensors = n_tensors(merge), first = merge->layout->fragments[merge->fragment].first_tensor;
    for (uint32_t t = 0; t < tensors; t++) {
        double *norm = merge->m->norms + t, *factor = factors_of(merge, 0) + t, length = 0;
        for (uint32_t i = 0; i < merge->n; i++)
            length += share_of(merge, &deltas[i]) * (norm[(size_t)i * tensors] * factor[(size_t)i * tensors]);
        if (tensor_is_embedding(merge->layout->tensors[first + t].name)) length = 0;
        lengths(merge)[t] = length;
        for (uint32_t i = 0; i < merge->n; i++) {
            double *at = &norm[(size_t)i * tensors];
            factor[(size_t)i * tensors] = length > 0 && *at > 0 ? share_of(merge, &deltas[i]) * (length / *at) : 0;
        }
    }
}

void merge_compute_norms(struct merge *merge, const struct merge_delta *deltas, uint32_t count)
{
    struct merge_job job = {.merge = merge, .deltas = deltas, .count = count, .items = count};
    assert(merge_needs_norms(merge) && !merge->added && merge->measured + count <= merge->n);
    pool_run_if(merge->m->pool, job.items > 1, measure_job, &job);
    merge->measured += count;
    assert(!merge->rda || count == merge->n);
    if (merge->measured < merge->n) return;
    clip_norms(merge);
    if (merge->rda) norms_to_directions(merge, deltas);
}

/* ---- adding ------------------------------------------------------------------------------------------------------ */

static float weight_of(const struct merge *merge, const struct merge_delta *delta)
{
    return merge_weight(weighed(merge, delta->tokens), merge->total);
}

static double scale_of(const struct merge_delta *delta)
{
    return delta->divisor > 0 ? 1 / delta->divisor : 1;
}

static bool clipped(const struct merge *merge, const double *factors, struct codec_part part)
{
    for (struct tensor_piece at = {0}; factors && tensor_piece_next(merge->layout, merge->fragment, part, &at);)
        if (factors[at.tensor] < 1) return true;
    return false;
}

/* acc += a * (scaled x); x is the decoded part. A coordinate that the worker did not send decodes to -0 and changes
 * nothing. */
static void add_clipped(const struct merge *merge, const double *factors, struct codec_part part, double scale, float w,
                        const float *x, float *acc, float *weight)
{
    for (struct tensor_piece at = {0}; tensor_piece_next(merge->layout, merge->fragment, part, &at);) {
        double factor = factors ? factors[at.tensor] * scale : scale;
        float a = (float)((double)w * factor);
        for (size_t k = at.from; k < at.to; k++) {
            size_t i = k - part.from;
            float y = x[i];
            acc[i] = acc[i] + a * y;
            if (weight && !merge_unsent(y)) weight[i] = weight[i] + w;
        }
    }
}

/* acc / weight, except where weight is 0. A weight is never negative, so its bits show whether it is 0, and the vector
 * loop needs no branch. Dividing by 1 changes nothing, not even -0. */
CODEC_SIMD(divide, (float *restrict acc, const float *restrict weight, size_t n), (acc, weight, n))
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = float_bits(weight[i]);
        bits |= (uint32_t) - (bits == 0) & 0x3f800000u; /* 0 becomes 1.0 */
        acc[i] = acc[i] / float_of_bits(bits);
    }
}

/* The mean of parameters: acc += w * (x - acc). Equal parameters stay as they are, also a -0. */
CODEC_SIMD(move_towards, (float *restrict acc, const float *restrict x, float w, size_t n), (acc, x, w, n))
{
    for (size_t i = 0; i < n; i++) {
        float d = x[i] - acc[i], moved = acc[i] + w * d;
        acc[i] = d == 0 ? acc[i] : moved;
    }
}

static void clip_parameters(const struct merge *merge, const double *factors, struct codec_part part, float *x)
{
    for (struct tensor_piece at = {0}; factors && tensor_piece_next(merge->layout, merge->fragment, part, &at);) {
        double factor = factors[at.tensor];
        for (size_t k = at.from; factor < 1 && k < at.to; k++) {
            double theta = (double)merge->theta[k];
            x[k - part.from] = (float)(theta - factor * (theta - (double)x[k - part.from]));
        }
    }
}

/* w of a delta: its tokens over those of all deltas up to it. */
static void add_parameters(const struct merge_job *job, size_t p, float *x)
{
    const struct merge *merge = job->merge;
    struct codec_part part = codec_part(merge->codec, p);
    float *acc = merge->acc + part.from;
    uint64_t sum = 0, tokens;
    for (uint32_t i = 0; i < merge->added; i++) sum += weighed(merge, merge->tokens[i]);
    for (uint32_t d = 0; d < job->count; d++, sum += tokens) {
        float *to = sum ? x : acc;
        tokens = weighed(merge, job->deltas[d].tokens);
        codec_view_decode(&job->deltas[d].view, p, to);
        clip_parameters(merge, clips(merge) ? factors_of(merge, merge->added + d) : NULL, part, to);
        if (to == x) move_towards(acc, x, merge_weight(tokens, sum + tokens), part.to - part.from);
    }
}

/* Consecutive deltas that are not clipped; the codec adds them together. */
struct gathered {
    size_t n;
    struct codec_addend from[ADDENDS];
};

static void add_gathered(struct gathered *g, size_t p, float *acc, float *weight)
{
    assert(g->n <= ADDENDS);
    codec_views_add(g->from, g->n, p, acc, weight);
    g->n = 0;
}

static void add_part(const struct merge_job *job, size_t p, float *scratch)
{
    const struct merge *merge = job->merge;
    struct codec_part part = codec_part(merge->codec, p);
    size_t n = part.to - part.from;
    float *acc = merge->acc + part.from, *weight = NULL, *x = scratch + merge->m->part_max;
    assert(n <= merge->m->part_max && part.to <= codec_count(merge->codec));
    struct gathered g = {0};
    if (merge->n == 1) {
        codec_view_decode(&job->deltas[0].view, p, acc);
        for (size_t i = 0; i < n && scale_of(job->deltas) < 1; i++)
            acc[i] = (float)(scale_of(job->deltas) * (double)acc[i]);
        return;
    }
    if (merge->parameters) {
        add_parameters(job, p, x);
        return;
    }
    if (counts_senders(merge->m, merge->codec)) {
        weight = scratch;
        memset(weight, 0, n * sizeof *weight);
    }
    /* -0 + x is x for every x; +0 + x loses the sign of -0. */
    if (!merge->added)
        for (size_t i = 0; i < n; i++) acc[i] = -0.0f;
    for (uint32_t d = 0; d < job->count; d++) {
        const struct codec_view *view = &job->deltas[d].view;
        float w = weight_of(merge, &job->deltas[d]);
        const double *factors = clips(merge) ? factors_of(merge, merge->added + d) : NULL;
        double scale = scale_of(&job->deltas[d]);
        bool clip = scale < 1 || clipped(merge, factors, part);
        if (clip || g.n == ADDENDS) add_gathered(&g, p, acc, weight);
        if (!clip) {
            g.from[g.n++] = (struct codec_addend){.view = view, .a = w};
            continue;
        }
        codec_view_decode(view, p, x);
        add_clipped(merge, factors, part, scale, w, x, acc, weight);
    }
    add_gathered(&g, p, acc, weight);
    if (weight) divide(acc, weight, n);
}

/* ---- rda --------------------------------------------------------------------------------------------------------- */

/* Sums of squares of the pieces of acc; consecutive pieces have different indices part + tensor. */
static double *piece_squares(const struct merge *merge)
{
    return lengths(merge) + n_tensors(merge);
}

/* acc += a * (the delta's values); of parameters, theta - values. */
static void add_direction(const float *x, const float *theta, double a, size_t n, float *acc)
{
    for (size_t i = 0; i < n; i++)
        acc[i] = acc[i] + (float)(a * (theta ? (double)theta[i] - (double)x[i] : (double)x[i]));
}

static void add_mean(const float *x, float w, size_t n, float *acc)
{
    for (size_t i = 0; i < n; i++) acc[i] = acc[i] + w * x[i];
}

/* Adds all deltas to the pieces of a part: directions with the mean norm, or the plain mean. again: only to the pieces
 * whose directions cancel. */
static void add_pieces(const struct merge_job *job, size_t p, bool again, float *x)
{
    const struct merge *merge = job->merge;
    const struct codec_part part = codec_part(merge->codec, p);
    const float *theta = merge->parameters ? merge->theta : NULL;
    for (struct tensor_piece at = {0}; tensor_piece_next(merge->layout, merge->fragment, part, &at);)
        for (size_t k = at.from; (!again || lengths(merge)[at.tensor] < 0) && k < at.to; k++) merge->acc[k] = -0.0f;
    for (uint32_t d = 0; d < job->count; d++) {
        const double *factors = factors_of(merge, d);
        codec_view_decode(&job->deltas[d].view, p, x);
        for (struct tensor_piece at = {0}; tensor_piece_next(merge->layout, merge->fragment, part, &at);) {
            double length = lengths(merge)[at.tensor];
            size_t n = at.to - at.from;
            if (again && !(length < 0)) continue;
            if (length > 0)
                add_direction(x + (at.from - part.from), theta ? theta + at.from : NULL, factors[at.tensor], n,
                              merge->acc + at.from);
            else
                add_mean(x + (at.from - part.from), weight_of(merge, &job->deltas[d]), n, merge->acc + at.from);
        }
    }
}

static void direct_part(const struct merge_job *job, size_t p, float *scratch)
{
    const struct merge *merge = job->merge;
    add_pieces(job, p, false, scratch);
    const struct codec_part part = codec_part(merge->codec, p);
    for (struct tensor_piece at = {0}; tensor_piece_next(merge->layout, merge->fragment, part, &at);) {
        double sum[LANES] = {0}, all = 0;
        squares(merge->acc + at.from, at.to - at.from, sum);
        for (int k = 0; k < LANES; k++) all += sum[k];
        piece_squares(merge)[p + at.tensor] = all;
    }
}

/* Replaces the norm of each result by the factor of acc; -1: the directions cancel. */
static void lengths_to_factors(const struct merge *merge)
{
    double *length = lengths(merge), sum = 0;
    uint32_t tensor = 0;
    for (size_t p = 0, parts = codec_parts(merge->codec); p < parts; p++)
        for (struct tensor_piece at = {0};
             tensor_piece_next(merge->layout, merge->fragment, codec_part(merge->codec, p), &at);) {
            const struct fragment *frag = &merge->layout->fragments[merge->fragment];
            const struct tensor *t = &merge->layout->tensors[frag->first_tensor + at.tensor];
            if (at.tensor != tensor) sum = 0;
            tensor = at.tensor;
            sum += piece_squares(merge)[p + tensor];
            if (at.to != t->offset - frag->offset + t->count || !(length[tensor] > 0)) continue;
            double norm = sqrt(sum);
            length[tensor] = norm >= rda_least * length[tensor] ? length[tensor] / norm : -1;
        }
}

static void scale_part(const struct merge_job *job, size_t p, float *scratch)
{
    const struct merge *merge = job->merge;
    const struct codec_part part = codec_part(merge->codec, p);
    bool again = false;
    for (struct tensor_piece at = {0}; tensor_piece_next(merge->layout, merge->fragment, part, &at);) {
        double factor = lengths(merge)[at.tensor];
        again = again || factor < 0;
        for (size_t k = at.from; factor > 0 && k < at.to; k++) {
            double v = factor * (double)merge->acc[k];
            merge->acc[k] = (float)(merge->parameters ? (double)merge->theta[k] - v : v);
        }
    }
    if (again) add_pieces(job, p, true, scratch);
}

/* A factor of a tensor is known only after all its parts have their directions. */
static void add_rda(struct merge_job *job)
{
    struct merger *m = job->merge->m;
    assert(job->count == job->merge->n);
    job->on_part = direct_part;
    pool_run_if(m->pool, job->items > 1, parts_job, job);
    lengths_to_factors(job->merge);
    job->on_part = scale_part;
    pool_run_if(m->pool, job->items > 1, parts_job, job);
}

void merge_add(struct merge *merge, const struct merge_delta *deltas, uint32_t count)
{
    struct merge_job job = {
        .merge = merge, .deltas = deltas, .count = count, .items = codec_parts(merge->codec), .on_part = add_part};
    assert(count && merge->added + count <= merge->n);
    assert(!merge_needs_norms(merge) || merge->measured == merge->n); /* factors are known before a delta is added */
    assert(!counts_senders(merge->m, merge->codec) || count == merge->n);
    if (merge->rda)
        add_rda(&job);
    else
        pool_run_if(merge->m->pool, job.items > 1, parts_job, &job);
    merge->added += count;
}
