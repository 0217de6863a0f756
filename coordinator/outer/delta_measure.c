#include "coordinator/outer/delta_measure.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/float_bits.h"
#include "common/tensor/sum_squares.h"
#include "compress/codec.h"
#include "compress/codec_simd.h"
#include "coordinator/outer/outer_opt.h"

struct measure_job {
    const struct outer_state *s;
    const struct codec_view *view;
    const float *theta;                 /* the fragment's, if deltas are parameters; otherwise NULL */
    uint32_t largest[POOL_THREADS_MAX]; /* by thread: bits of the largest magnitude */
};

/* Bits of the largest magnitude of x[n]; integer maxima have no order. */
CODEC_SIMD(largest, (const float *restrict x, size_t n, uint32_t *restrict out), (x, n, out))
{
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = float_bits(x[i]) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    if (largest > *out) *out = largest;
}

CODEC_SIMD(subtract, (const float *restrict theta, float *restrict x, size_t n), (theta, x, n))
{
    for (size_t i = 0; i < n; i++) x[i] = theta[i] - x[i];
}

/* The sum of outer_dot, to which values that were not sent add nothing. x, index: room for the part. */
static double sparse_squares(struct measure_job *job, size_t part, float *x, uint32_t *index, uint32_t *largest_p)
{
    double lane[SUM_LANES] = {0};
    size_t n = codec_view_list(job->view, part, index, x);
    largest(x, n, largest_p);
    for (size_t i = 0; i < n; i++) lane[index[i] % SUM_LANES] += (double)x[i] * (double)x[i];
    return sum_lanes(lane);
}

/* Threads share the parts. */
static void measure_parts(void *ctx, int thread, int threads)
{
    struct measure_job *job = ctx;
    const struct codec *codec = job->view->codec;
    size_t part_max = job->s->merger.part_max;
    float *x = job->s->merger.scratch + (size_t)thread * 2 * part_max;
    size_t first, end;
    pool_share(codec_parts(codec), 1, thread, threads, &first, &end);
    for (size_t i = first; i < end; i++) {
        struct codec_part part = codec_part(codec, i);
        size_t n = part.to - part.from;
        assert(n <= part_max);
        if (codec_sparse(codec) && !job->theta) {
            job->s->squares[i] = sparse_squares(job, i, x, (uint32_t *)(void *)(x + part_max), &job->largest[thread]);
            continue;
        }
        codec_view_decode(job->view, i, x);
        largest(x, n, &job->largest[thread]);
        if (job->theta) subtract(job->theta + part.from, x, n);
        job->s->squares[i] = outer_dot(x, x, n);
    }
}

struct delta_measure delta_measure(const struct outer_state *s, uint32_t fragment, const struct codec_view *view)
{
    const struct fragment *frag = &s->layout->fragments[fragment];
    struct delta_measure m = {.in_range = true};
    struct measure_job job = {
        .s = s,
        .view = view,
        .theta = merger_takes_parameters(&s->merger, s->layout, fragment) ? s->theta + frag->offset : NULL};
    size_t parts = codec_parts(view->codec);
    pool_run_if(s->pool, parts > 1, measure_parts, &job);
    for (size_t i = 0; i < parts; i++) m.norm += s->squares[i];
    m.norm = sqrt(m.norm);
    for (int i = 0; i < POOL_THREADS_MAX; i++) m.in_range = m.in_range && job.largest[i] < float_bits(0x1p64f);
    return m;
}
