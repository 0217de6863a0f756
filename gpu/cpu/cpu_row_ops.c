/* Norms, rotary positions and gated units of the CPU device. Threads share the rows. */
#include "gpu/cpu/cpu_impl.h"

#include <string.h>

/* One job struct for all operations of this file; each uses the members it needs. */
struct row_job {
    const struct cpu_kernels *kernels;
    size_t n, c, block;
    const float *x, *dy, *w, *b, *mean, *rstd, *dres, *table;
    float *out, *mean_out, *rstd_out, *partials;
    size_t sums; /* backward of a norm: floats of a block's sums, c for RMS norm or 2 c */
    float eps;
    const struct rope_shape *rope;
    bool back;
};

static void run(struct device *dev, pool_fn body, struct row_job *job)
{
    job->kernels = cpu_of(dev)->kernels;
    pool_run(cpu_of(dev)->pool, body, job);
}

/* --- norms -------------------------------------------------------------------------------------------------------- */

static void norm_fwd_thread(void *ctx, int thread, int threads)
{
    const struct row_job *j = ctx;
    size_t c = j->c, begin, end;
    pool_share(j->n, 1, thread, threads, &begin, &end);
    j->kernels->norm_fwd(end - begin, c, j->eps, j->x + begin * c, j->w, j->b, j->out + begin * c,
                         j->mean_out ? j->mean_out + begin : NULL, j->rstd_out + begin);
}

static void norm_fwd(struct device *dev, size_t n, size_t c, const void *x, const float *w, const float *b, void *y,
                     float *mean, float *rstd)
{
    struct row_job job = {
        .n = n, .c = c, .eps = 1e-5f, .x = x, .w = w, .b = b, .out = y, .mean_out = mean, .rstd_out = rstd};
    run(dev, norm_fwd_thread, &job);
}

static void rms_fwd(struct device *dev, size_t n, size_t c, float eps, const void *x, const float *w, void *y,
                    float *rstd)
{
    struct row_job job = {.n = n, .c = c, .eps = eps, .x = x, .w = w, .out = y, .rstd_out = rstd};
    run(dev, norm_fwd_thread, &job);
}

static void norm_bwd_thread(void *ctx, int thread, int threads)
{
    const struct row_job *j = ctx;
    size_t c = j->c, begin, end;
    pool_share((j->n + j->block - 1) / j->block, 1, thread, threads, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        size_t row = i * j->block, rows = j->n - row < j->block ? j->n - row : j->block;
        float *dw = j->partials + i * j->sums;
        memset(dw, 0, j->sums * sizeof *dw);
        j->kernels->norm_bwd(rows, c, j->dy + row * c, j->x + row * c, j->w, j->mean ? j->mean + row : NULL,
                             j->rstd + row, j->dres ? j->dres + row * c : NULL, j->out + row * c, dw,
                             j->mean ? dw + c : NULL);
    }
}

/* Computes dx, and the sums of dw (and db) over fixed blocks of rows. False with an error of the device. */
static bool norm_backward(struct device *dev, struct row_job *j)
{
    struct cpu_device *cpu = cpu_of(dev);
    size_t blocks = PARTIAL_FLOATS / j->sums < NORM_BLOCKS ? PARTIAL_FLOATS / j->sums : NORM_BLOCKS;
    if (!blocks) {
        cpu_fail(cpu, STATUS_LIMIT, "backward of a norm: rows too long");
        return false;
    }
    j->partials = cpu->partials;
    j->block = (j->n + blocks - 1) / blocks;
    run(dev, norm_bwd_thread, j);
    return true;
}

/* out[c] = or += the sums of all blocks; `at`: where they begin in those of a block. */
static void add_blocks(const struct row_job *j, size_t at, float *out, bool accumulate)
{
    if (!accumulate) memset(out, 0, j->c * sizeof *out);
    for (size_t i = 0; i * j->block < j->n; i++) j->kernels->add_row(j->c, j->partials + i * j->sums + at, out);
}

static void norm_bwd(struct device *dev, size_t n, size_t c, const void *dy, const void *x, const float *w,
                     const float *mean, const float *rstd, const void *dres, void *dx, float *dw, float *db,
                     bool accumulate)
{
    struct row_job job = {
        .n = n, .c = c, .sums = 2 * c, .dy = dy, .x = x, .w = w, .mean = mean, .rstd = rstd, .dres = dres, .out = dx};
    if (!norm_backward(dev, &job)) return;
    add_blocks(&job, 0, dw, accumulate);
    add_blocks(&job, c, db, accumulate);
}

static void rms_bwd(struct device *dev, size_t n, size_t c, const void *dy, const void *x, const float *w,
                    const float *rstd, const void *dres, void *dx, float *dw, bool accumulate)
{
    struct row_job job = {.n = n, .c = c, .sums = c, .dy = dy, .x = x, .w = w, .rstd = rstd, .dres = dres, .out = dx};
    if (norm_backward(dev, &job)) add_blocks(&job, 0, dw, accumulate);
}

/* --- rotary positions and gated units ----------------------------------------------------------------------------- */

static void rope_thread(void *ctx, int thread, int threads)
{
    const struct row_job *j = ctx;
    size_t begin, end;
    pool_share(j->rope->n, 1, thread, threads, &begin, &end);
    j->kernels->rope_rows(j->rope, begin, end - begin, j->table, j->out, j->back);
}

static void rope(struct device *dev, const struct rope_shape *shape, const float *table, void *x, bool back)
{
    struct row_job job = {.rope = shape, .table = table, .out = x, .back = back};
    if (shape->head_dim % 2 || shape->heads * shape->head_dim > shape->ld) {
        cpu_fail(cpu_of(dev), STATUS_INVALID, "rope: head_dim is odd, or the heads are wider than a row");
        return;
    }
    run(dev, rope_thread, &job);
}

/* Backward has dy. */
static void glu_thread(void *ctx, int thread, int threads)
{
    const struct row_job *j = ctx;
    size_t begin, end, f = j->c;
    pool_share(j->n, 1, thread, threads, &begin, &end);
    const float *gu = j->x + begin * 2 * f;
    if (j->dy)
        j->kernels->glu_bwd(end - begin, f, gu, j->dy + begin * f, j->out + begin * 2 * f);
    else
        j->kernels->glu_fwd(end - begin, f, gu, j->out + begin * f);
}

static void glu_fwd(struct device *dev, size_t n, size_t f, const void *gu, void *h)
{
    struct row_job job = {.n = n, .c = f, .x = gu, .out = h};
    run(dev, glu_thread, &job);
}

static void glu_bwd(struct device *dev, size_t n, size_t f, const void *gu, const void *dh, void *dgu)
{
    struct row_job job = {.n = n, .c = f, .x = gu, .dy = dh, .out = dgu};
    run(dev, glu_thread, &job);
}

void cpu_row_ops(struct device_ops *ops)
{
    ops->norm_fwd = norm_fwd;
    ops->norm_bwd = norm_bwd;
    ops->rms_fwd = rms_fwd;
    ops->rms_bwd = rms_bwd;
    ops->rope = rope;
    ops->glu_fwd = glu_fwd;
    ops->glu_bwd = glu_bwd;
}
