/* Segments of a round: what the trained parameters take over from the run's, and when.
 *
 * theta is the run's vector, live the trained one. At a fragment's sync point the worker sends base - live and, with
 * train.apply correct, keeps live as the new base. At its apply point, tau steps later:
 *     correct    live = theta + (live - base)              (2605.20866)
 *     mix        live = alpha live + (1 - alpha) theta     (Streaming DiLoCo, 2501.18512)
 * and base = theta. With correct, mean tensors mix with alpha 1/2. After an averaged round (train.start_step) live =
 * theta. Each element is computed in double precision and rounded once. */
#include <assert.h>
#include <math.h>

#include "common/base/pool.h"
#include "worker/outer/outer_loop_impl.h"

enum { GRAIN = 1 << 14 };

struct adoption {
    float *live;
    const float *theta, *base;
    size_t n;
    enum apply_rule rule;
    double alpha;
};

static void adopt_share(void *ctx, int thread, int threads)
{
    const struct adoption *a = ctx;
    size_t at, end;
    pool_share(a->n, GRAIN, thread, threads, &at, &end);
    for (; at < end; at++) {
        double theta = (double)a->theta[at], live = (double)a->live[at];
        if (a->rule == APPLY_MIX)
            live = a->alpha * live + (1 - a->alpha) * theta;
        else
            live = a->rule == APPLY_CORRECT ? theta + (live - (double)a->base[at]) : theta;
        a->live[at] = (float)live;
    }
}

static void adopt(struct outer_loop *loop, uint32_t i, bool replace)
{
    struct outer_fragment *f = &loop->f[i];
    struct adoption a = {.live = loop->live + f->offset,
                         .theta = loop->theta + f->offset,
                         .base = loop->base + f->offset,
                         .n = f->count,
                         .rule = loop->fresh || replace ? APPLY_REPLACE : loop->rule,
                         .alpha = loop->alpha};
    /* A correction adds changes of two anchors: a variance could become negative. */
    if (a.rule == APPLY_CORRECT && layout_is_mean(loop->model.layout, i)) {
        a.rule = APPLY_MIX;
        a.alpha = 0.5;
    }
    pool_run_if(loop->model.pool, a.n > GRAIN, adopt_share, &a);
}

void outer_segment_begin(struct outer_loop *loop, bool new_round)
{
    const struct sync *s = &loop->sync;
    bool after_mean = new_round && sync_points_after_mean(loop->model.config, s->current.step0);
    for (uint32_t i = 0; i < loop->n_fragments; i++) {
        struct outer_fragment *f = &loop->f[i];
        if (!new_round && !sync_is_applied(s, i)) continue;
        assert(!new_round || (!f->pending && !f->fb.pending));
        bool changed = loop->fresh || f->moved || !loop->live;
        if (loop->live && changed) adopt(loop, i, after_mean);
        if (loop->base != loop->theta && changed)
            pool_copy(loop->model.pool, loop->base + f->offset, loop->theta + f->offset, f->count * sizeof(float));
        f->base_version = s->f[i].version;
        f->moved = false;
    }
    loop->fresh = loop->fresh && !new_round;
}

void outer_segment_add(struct outer_loop *loop, const struct outer_result *result)
{
    struct outer_window *w = &loop->window;
    w->steps += result->steps;
    w->tokens += result->tokens;
    w->compute_us += result->compute_us;
    w->loss_sum += result->loss_unknown ? 0 : result->loss_sum;
    w->loss_unknown = w->loss_unknown || result->loss_unknown;
    if (!loop->live) return;
    assert(result->values);
    if (result->values != loop->live)
        pool_copy(loop->model.pool, loop->live, result->values, loop->n_params * sizeof(float));
}

void outer_segment_sent(struct outer_loop *loop, uint32_t fragment)
{
    struct outer_fragment *f = &loop->f[fragment];
    f->moved = true; /* merged or refused, the sent change leaves the trained parameters at the apply point */
    if (!loop->live || loop->rule != APPLY_CORRECT) return;
    pool_copy(loop->model.pool, loop->base + f->offset, loop->live + f->offset, f->count * sizeof(float));
}

/* The coordinator expects the tokens of the assignment. With overlap its last steps are not trained yet, and those of
 * the round before are in the delta, so sums are scaled to the assignment. */
void outer_segment_report(struct outer_loop *loop)
{
    const struct outer_window *w = &loop->window;
    const struct msg_assign *task = &loop->sync.current;
    uint64_t tokens = 0;
    uint64_t of_sample = loop->model.sample_tokens ? loop->model.sample_tokens : 1;
    for (uint32_t i = 0; i < task->n_ranges; i++) tokens += task->ranges[i].count * of_sample;
    bool whole = w->steps == task->steps;
    if (whole)
        tokens = w->tokens;
    else if (config_is_external(loop->model.config) && w->steps && w->tokens)
        tokens = (w->tokens * task->steps + w->steps - 1) / w->steps;
    loop->tokens = tokens;
    loop->steps = task->steps;
    loop->compute_us = whole ? w->compute_us : w->steps ? w->compute_us * task->steps / w->steps : 0;
    if (w->loss_unknown || !w->tokens)
        loop->loss_sum = NAN;
    else
        loop->loss_sum = whole ? w->loss_sum : w->loss_sum / (double)w->tokens * (double)tokens;
    if (sync_is_last_sent(&loop->sync)) loop->window = (struct outer_window){0};
}
