/* Embedding, reductions and optimizers of the CPU device. Threads share the rows or vectors. */
#include "gpu/cpu/cpu_impl.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "gpu/moment_rules.h"

/* One job struct for all operations of this file; each uses the members it needs. */
struct vector_job {
    const struct cpu_kernels *kernels;
    size_t n, c, seq, block;
    const int32_t *tokens;
    const float *x, *w, *b;
    float *out, *out2;
    bool accumulate;
    float a, keep;
    double *segments;
    bool square;
    const struct adamw_span *spans;
    size_t n_spans;
    void *m, *v; /* fp32, or bf16 */
    bool bf16;
    struct adamw_step step;
    float weight_decay;
};

static void run(struct device *dev, pool_fn body, struct vector_job *job)
{
    job->kernels = cpu_of(dev)->kernels;
    pool_run(cpu_of(dev)->pool, body, job);
}

static void embed_fwd_thread(void *ctx, int thread, int threads)
{
    const struct vector_job *j = ctx;
    size_t begin, end;
    pool_share(j->n, 1, thread, threads, &begin, &end);
    j->kernels->embed_rows(begin, end - begin, j->seq, j->c, j->tokens, j->w, j->b, j->out);
}

static void embed_fwd(struct device *dev, size_t n, size_t seq, size_t c, const int32_t *tokens, const float *wte,
                      const float *wpe, void *out)
{
    struct vector_job job = {.n = n, .seq = seq, .c = c, .tokens = tokens, .w = wte, .b = wpe, .out = out};
    run(dev, embed_fwd_thread, &job);
}

/* Threads take columns, so that every element of dwte is summed in row order with any number of threads. */
static void embed_bwd_thread(void *ctx, int thread, int threads)
{
    const struct vector_job *j = ctx;
    size_t begin, end;
    pool_share(j->c, 16, thread, threads, &begin, &end);
    if (begin == end) return;
    for (size_t r = 0; r < j->n; r++) {
        const float *row = j->x + r * j->c + begin;
        j->kernels->add_row(end - begin, row, j->out + (size_t)j->tokens[r] * j->c + begin);
        if (!j->out2) continue;
        float *position = j->out2 + r % j->seq * j->c + begin;
        if (r < j->seq && !j->accumulate) {
            memcpy(position, row, (end - begin) * sizeof *position);
        } else {
            j->kernels->add_row(end - begin, row, position);
        }
    }
}

static void embed_bwd(struct device *dev, size_t n, size_t seq, size_t c, const int32_t *tokens, const void *dout,
                      float *dwte, float *dwpe, bool accumulate)
{
    struct vector_job job = {
        .n = n, .seq = seq, .c = c, .tokens = tokens, .x = dout, .out = dwte, .out2 = dwpe, .accumulate = accumulate};
    run(dev, embed_bwd_thread, &job);
}

static void reduce_thread(void *ctx, int thread, int threads)
{
    const struct vector_job *j = ctx;
    size_t begin, end;
    pool_share((j->n + j->block - 1) / j->block, 1, thread, threads, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        size_t at = i * j->block;
        j->segments[i] = j->kernels->sum_run(j->n - at < j->block ? j->n - at : j->block, j->x + at, j->square);
    }
}

static void reduce(struct device *dev, size_t n, const float *x, bool square, float *out)
{
    struct vector_job job = {.n = n, .x = x, .segments = cpu_of(dev)->segments, .square = square};
    job.block = ((n + SUM_SEGMENTS - 1) / SUM_SEGMENTS + 1023) / 1024 * 1024;
    double total = 0;
    if (n) run(dev, reduce_thread, &job);
    for (size_t i = 0; i * job.block < n; i++) total += job.segments[i];
    *out = (float)total;
}

static void sum(struct device *dev, size_t n, const float *x, float *out)
{
    reduce(dev, n, x, false, out);
}

static void sumsq(struct device *dev, size_t n, const float *x, float *out)
{
    reduce(dev, n, x, true, out);
}

static void clip_scale(struct device *dev, const float *sumsq, float max_norm, float *scale, float *norm)
{
    (void)dev;
    *norm = sqrtf(*sumsq);
    *scale = max_norm > 0 && *norm > max_norm ? max_norm / *norm : 1.0f;
    if (*scale < FLT_MIN) *scale = FLT_MIN; /* zero means a refused step only */
    if (!isfinite(*norm)) *scale = 0;
}

/* A thread's share is a range of the concatenated spans. */
static void adamw_thread(void *ctx, int thread, int threads)
{
    const struct vector_job *j = ctx;
    size_t begin, end, at = 0;
    pool_share(j->n, 1024, thread, threads, &begin, &end);
    for (size_t i = 0; i < j->n_spans; at += j->spans[i].count, i++) {
        const struct adamw_span *span = &j->spans[i];
        size_t first = begin > at ? begin - at : 0, last = end > at ? end - at : 0;
        if (last > span->count) last = span->count;
        if (first >= last) continue;
        struct adamw_step step = j->step;
        step.decay = span->decay ? step.lr * j->weight_decay : 0;
        size_t offset = span->offset + first, state = offset - span->skipped;
        if (j->bf16)
            j->kernels->adamw_bf16(last - first, offset, j->out + offset, j->x + offset, (uint16_t *)j->m + state,
                                   (uint16_t *)j->v + state, &step);
        else
            j->kernels->adamw_run(last - first, j->out + offset, j->x + offset, (float *)j->m + state,
                                  (float *)j->v + state, &step);
    }
}

static void count_step(struct device *dev, const float *scale, float beta1, float beta2, struct step_count *count)
{
    (void)dev;
    if (*scale == 0) return;
    count->steps++;
    count->correct[0] = moment_correct(beta1, count->steps);
    count->correct[1] = moment_correct(beta2, count->steps);
    moment_noise(count->seed, count->steps, count->noise);
}

static void adamw(struct device *dev, const struct adamw_span *spans, size_t n_spans, float *theta, const float *grad,
                  void *m, void *v, const struct adamw_hyper *hyper, const float *scale)
{
    const struct step_count *count = hyper->count;
    if (scale && *scale == 0) return;
    struct vector_job job = {.spans = spans,
                             .n_spans = n_spans,
                             .out = theta,
                             .x = grad,
                             .m = m,
                             .v = v,
                             .bf16 = hyper->bf16_moments,
                             .weight_decay = hyper->weight_decay};
    for (size_t i = 0; i < n_spans; i++) job.n += spans[i].count;
    job.step = (struct adamw_step){.lr = hyper->lr,
                                   .beta1 = hyper->beta1,
                                   .beta2 = hyper->beta2,
                                   .eps = hyper->eps,
                                   .scale = scale ? *scale : 1.0f};
    job.step.correct1 = count ? count->correct[0] : moment_correct(hyper->beta1, hyper->step);
    job.step.correct2 = count ? count->correct[1] : moment_correct(hyper->beta2, hyper->step);
    for (int i = 0; count && i < 2; i++) job.step.noise[i] = count->noise[i];
    run(dev, adamw_thread, &job);
}

static void axpy_thread(void *ctx, int thread, int threads)
{
    const struct vector_job *j = ctx;
    size_t begin, end;
    pool_share(j->n, 1024, thread, threads, &begin, &end);
    j->kernels->axpy_run(end - begin, j->out + begin, j->x + begin, j->keep, j->a);
}

static void axpy(struct device *dev, size_t n, float a, const float *x, float *y)
{
    struct vector_job job = {.n = n, .a = a, .keep = 1, .x = x, .out = y};
    run(dev, axpy_thread, &job);
}

static void sgd(struct device *dev, size_t n, float *theta, const float *grad, float lr, float keep, const float *scale)
{
    if (scale && *scale == 0) return;
    struct vector_job job = {.n = n, .a = -(lr * (scale ? *scale : 1.0f)), .keep = keep, .x = grad, .out = theta};
    run(dev, axpy_thread, &job);
}

void cpu_vector_ops(struct device_ops *ops)
{
    ops->embed_fwd = embed_fwd;
    ops->embed_bwd = embed_bwd;
    ops->sum = sum;
    ops->sumsq = sumsq;
    ops->clip_scale = clip_scale;
    ops->count_step = count_step;
    ops->adamw = adamw;
    ops->sgd = sgd;
    ops->axpy = axpy;
}
