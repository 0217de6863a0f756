#include "compress/apply_update.h"

#include "common/base/pool.h"
#include "common/tensor/apply.h"

enum { STEP_FLOATS = 1 << 16 }; /* smallest share of a thread */

struct apply_job {
    const struct codec_view *view;
    const struct apply_update_sgd *step;
    bool replace;
    float *x, *theta;
    size_t items; /* parts, or floats */
};

static void apply_parts(void *ctx, int thread, int threads)
{
    const struct apply_job *job = ctx;
    size_t first, end;
    pool_share(job->items, 1, thread, threads, &first, &end);
    for (size_t i = first; i < end; i++) {
        float *theta = job->theta + codec_part(job->view->codec, i).from;
        if (job->replace)
            codec_view_decode(job->view, i, theta);
        else
            codec_view_axpy(job->view, i, 1.0f, theta);
    }
}

void apply_update_view(struct pool *pool, const struct codec_view *view, bool replace, float *theta)
{
    struct apply_job job = {.view = view, .replace = replace, .theta = theta, .items = codec_parts(view->codec)};
    pool_run_if(pool, job.items > 1, apply_parts, &job);
}

static void step_floats(void *ctx, int thread, int threads)
{
    const struct apply_job *job = ctx;
    const struct apply_update_sgd *s = job->step;
    size_t first, end;
    pool_share(job->items, STEP_FLOATS, thread, threads, &first, &end);
    for (size_t at = first; at < end; at += STEP_FLOATS) { /* in blocks: x is in cache for the second pass */
        size_t n = end - at < STEP_FLOATS ? end - at : STEP_FLOATS;
        apply_sgd(job->theta + at, job->x + at, n, s->lr, s->parameters, s->increment);
        apply_update(job->theta + at, !s->increment, job->x + at, n);
    }
}

void apply_update_step(struct pool *pool, const struct apply_update_sgd *step, float *x, float *theta, size_t n)
{
    struct apply_job job = {.step = step, .x = x, .theta = theta, .items = n};
    pool_run_if(pool, n > STEP_FLOATS, step_floats, &job);
}
