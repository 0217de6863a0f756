/* The outer step of one fragment. All of it except encoding is elementwise, so threads share ranges of coordinates; the
 * bits are the same for any number of threads. Each block of a range passes through all steps while it is in cache. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/config/codec_choice.h"
#include "common/tensor/apply.h"
#include "common/tensor/sum_squares.h"
#include "compress/codec_simd.h"
#include "coordinator/outer/outer_half.h"
#include "coordinator/outer/outer_opt.h"
#include "coordinator/outer/outer_state.h"
#include "coordinator/outer/publish.h"

enum { BLOCK = 4096, GRAIN = 1 << 15 }; /* floats of a block; a thread's share is a multiple of GRAIN floats */

struct outer_step_job {
    struct outer_state *s;
    const struct outer_step *step;
    const struct fragment *frag;
    struct outer_in in; /* the whole fragment */
    bool relay, sparse; /* relay: apply the step to theta at once; sparse: publish only coordinates that workers sent */
    bool mean;          /* a fragment of mean tensors, or an averaged round: rate 1, no momentum */
    bool sums;          /* compute the dot products of momentum and merged delta */
    double lr;
    struct half_noise noise; /* outer.state bf16 */
    struct outer_share share;
    struct outer_adamw adamw;
    bool bad[POOL_THREADS_MAX]; /* by thread: a value was not finite */
};

/* Async: a share of Nesterov's step, or of SGD's. A delta counts by its length, as in a round of equal workers: one of
 * twice the steps is about twice as long. */
static void plan_async(struct outer_step_job *job)
{
    const struct config *c = job->s->config;
    const struct outer_step *step = job->step;
    assert(step->steps > 0 && step->members > 0 && step->fresh > 0);
    double share = (double)step->steps / ((double)step->members * c->train.sync_every);
    double weight = step->fresh / step->members; /* of the mean of the deltas: each is one of `members` */
    job->share = (struct outer_share){.lr = job->lr, .mu = c->outer.momentum, .share = share, .scale = weight / share};
    job->lr *= weight;
}

static void plan(struct outer_step_job *job)
{
    const struct config *c = job->s->config;
    bool ddp = c->train.method == METHOD_DDP;
    job->lr = job->s->lr = outer_state_lr(job->s, job->step);
    job->adamw = (struct outer_adamw){.lr = job->lr,
                                      .beta1 = c->inner.beta1,
                                      .beta2 = c->inner.beta2,
                                      .eps = c->inner.eps,
                                      .t = job->step->version,
                                      .scale = ddp ? outer_clip_scale(job->step->norm, c->inner.grad_clip) : 1};
    if (c->train.method == METHOD_ASYNC) plan_async(job);
}

static void clip(const struct outer_step_job *job, const struct outer_in *in)
{
    double scale = job->adamw.scale;
    if (scale < 1)
        for (size_t i = 0; i < in->n; i++) in->acc[i] = (float)(scale * (double)in->acc[i]);
}

/* Weight decay as in the worker's SGD, after clipping: theta - lr (gradient + weight_decay theta). */
static void decay(const struct outer_step_job *job, const struct outer_in *in, const struct tensor *tensor)
{
    double weight_decay = job->s->config->inner.weight_decay;
    if (weight_decay == 0 || !tensor->decay) return;
    for (size_t i = 0; i < in->n; i++) in->acc[i] = (float)((double)in->acc[i] + weight_decay * (double)in->theta[i]);
}

static bool has_momentum(const struct outer_step_job *job)
{
    return job->s->config->outer.optimizer == OPTIMIZER_NESTEROV && !job->mean;
}

/* Adds the dot products of one block. v: the momentum before the step, or NULL. */
static void add_sums(const struct outer_in *in, const float *v, struct outer_sums *sums)
{
    float of_parameters[BLOCK];
    const float *d = in->parameters ? of_parameters : in->acc;
    assert(in->n <= BLOCK);
    for (size_t i = 0; in->parameters && i < in->n; i++) of_parameters[i] = in->theta[i] - in->acc[i];
    sums->dd += outer_dot(d, d, in->n);
    if (!v) return;
    sums->vv += outer_dot(v, v, in->n);
    sums->vd += outer_dot(v, d, in->n);
}

/* Runs the optimizer on in->n floats of one tensor with the state vectors m and v, where it has them. */
static void optimize(const struct outer_step_job *job, const struct outer_in *in, const struct tensor *tensor, float *m,
                     float *v)
{
    const struct config *c = job->s->config;
    bool ddp = c->train.method == METHOD_DDP;
    if (job->mean) {
        outer_sgd(in, job->lr);
        return;
    }
    if (c->outer.optimizer == OPTIMIZER_ADAMW) {
        struct outer_adamw p = job->adamw;
        p.decay = tensor->decay ? c->inner.weight_decay : 0;
        outer_adamw(in, m, v, &p);
        return;
    }
    if (ddp) clip(job, in);
    if (c->outer.optimizer == OPTIMIZER_NESTEROV && c->train.method == METHOD_ASYNC) {
        outer_nesterov_share(in, m, &job->share);
    } else if (c->outer.optimizer == OPTIMIZER_NESTEROV) {
        outer_nesterov(in, m, job->lr, c->outer.momentum);
    } else {
        if (ddp) decay(job, in, tensor);
        outer_sgd(in, job->lr);
    }
}

/* The step of the optimizer on a block at theta[at]. Momentum in bf16 is widened for it, and rounded after it. */
static void optimize_block(const struct outer_step_job *job, const struct outer_in *in, const struct tensor *tensor,
                           uint64_t at, struct outer_sums *sums)
{
    float wide[BLOCK];
    const struct outer_state *s = job->s;
    bool half = s->m_half && has_momentum(job);
    assert(in->n <= BLOCK && (!half || !s->m));
    if (half) half_widen(s->m_half + at, in->n, wide);
    float *m = half ? wide : s->m ? s->m + at : NULL;
    if (sums) add_sums(in, has_momentum(job) ? m : NULL, sums);
    optimize(job, in, tensor, m, s->v ? s->v + at : NULL);
    if (half) half_round(wide, in->n, &job->noise, at, HALF_MOMENTUM, s->m_half + at);
}

/* Steps [from, to) of the fragment, within one tensor. False: a value is not finite. */
static bool step_block(const struct outer_step_job *job, size_t from, size_t to, const struct tensor *tensor)
{
    struct outer_fragment *state = &job->s->fragments[job->step->fragment];
    struct outer_in in = job->in;
    in.theta += from;
    in.acc += from;
    in.n = to - from;
    uint8_t skip[BLOCK];
    assert(from < to && to - from <= BLOCK && to <= job->frag->count);
    if (!outer_finite(in.acc, in.n)) return false;
    for (size_t i = 0; job->sparse && i < in.n; i++) skip[i] = merge_unsent(in.acc[i]);
    optimize_block(job, &in, tensor, job->frag->offset + from, job->sums ? &job->s->cells[from / GRAIN] : NULL);
    if (!outer_finite(in.acc, in.n)) return false;
    float *residual = state->residual.residual;
    if (job->relay) {
        float *theta = job->s->theta + job->frag->offset + from;
        apply_update(theta, !in.increment, in.acc, in.n);
        return outer_finite(theta, in.n);
    }
    const uint8_t *unsent = job->sparse ? skip : NULL;
    if (residual) publish_add_residual(in.acc, residual + from, state->residual.decay, unsent, in.n);
    if (state->owed) publish_add_owed(in.acc, state->owed + from, state->residual.decay, unsent, in.n);
    return true;
}

static void step_range(void *ctx, int thread, int threads)
{
    struct outer_step_job *job = ctx;
    const struct fragment *frag = job->frag;
    size_t at, end;
    uint32_t t = frag->first_tensor;
    pool_share(frag->count, GRAIN, thread, threads, &at, &end);
    while (at < end) {
        assert(t < job->s->layout->n_tensors);
        const struct tensor *tensor = &job->s->layout->tensors[t];
        size_t stop = tensor->offset - frag->offset + tensor->count;
        if (stop <= at) {
            t++;
            continue;
        }
        if (stop > end) stop = end;
        if (stop > at + BLOCK) stop = at + BLOCK;
        size_t cell_end = (at / GRAIN + 1) * GRAIN; /* blocks are the same for any number of threads */
        if (stop > cell_end) stop = cell_end;
        if (!step_block(job, at, stop, tensor)) job->bad[thread] = true;
        at = stop;
    }
}

size_t outer_cells(size_t count)
{
    return (count + GRAIN - 1) / GRAIN;
}

static void collect_sums(struct outer_step_job *job)
{
    struct outer_sums *sums = &job->s->sums;
    *sums = (struct outer_sums){.lr = job->s->lr, .nesterov = has_momentum(job)};
    for (size_t i = 0, n = outer_cells(job->frag->count); job->sums && i < n; i++) {
        sums->vv += job->s->cells[i].vv;
        sums->vd += job->s->cells[i].vd;
        sums->dd += job->s->cells[i].dd;
    }
}

enum status outer_state_step(struct outer_state *s, const struct outer_step *step, size_t at, size_t *size_p)
{
    const struct config *c = s->config;
    assert(step->fragment < s->layout->n_fragments && step->version >= 1);
    const struct fragment *frag = &s->layout->fragments[step->fragment];
    struct outer_fragment *state = &s->fragments[step->fragment];
    float *theta = s->theta + frag->offset;
    bool of_means = layout_is_mean(s->layout, step->fragment);
    bool replace = config_update_replaces(c, of_means);
    struct outer_step_job job = {.s = s,
                                 .step = step,
                                 .frag = frag,
                                 .relay = step->relay,
                                 .mean = of_means || outer_state_averages(s, step->round),
                                 .sparse = config_down(c) != CONFIG_DOWN_CODEC && !of_means,
                                 .in = {.theta = theta,
                                        .acc = s->acc,
                                        .n = frag->count,
                                        .increment = !replace,
                                        .parameters = config_delta_replaces(c, of_means)}};
    plan(&job);
    job.noise = half_noise_of(c->run.seed, step->fragment, step->version);
    job.sums = !of_means && c->train.method != METHOD_ASYNC;
    memset(s->cells, 0, outer_cells(frag->count) * sizeof *s->cells);
    pool_run_if(s->pool, frag->count > GRAIN, step_range, &job);
    collect_sums(&job);
    for (int i = 0; i < POOL_THREADS_MAX; i++)
        if (job.bad[i]) return STATUS_NONFINITE;
    if (step->relay) {
        state->hash = hash_floats(s->pool, theta, frag->count);
        return STATUS_OK;
    }
    assert(state->down && at < s->payload_cap);
    struct publish publish = {.codec = state->down,
                              .replace = replace,
                              .theta = theta,
                              .residual = state->residual.residual,
                              .owed = state->owed,
                              .noise = job.noise,
                              .first = frag->offset,
                              .pool = s->pool,
                              .scratch = s->merger.scratch,
                              .scratch_part = s->merger.part_max};
    return publish_step(&publish, s->acc, s->payload + at, s->payload_cap - at, size_p, &state->hash);
}
