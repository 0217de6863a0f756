/* RMS norm, rotary positions and gated units of the CPU device. Threads share the rows. */
#include "gpu/cpu/cpu_impl.h"

#include <string.h>

/* One job struct for all operations of this file; each uses the members it needs. */
struct row_job {
    const struct cpu_kernels *kernels;
    size_t n, c, block;
    const float *x, *dy, *w, *rstd, *dres, *table;
    float *out, *rstd_out, *partials;
    float eps;
    const struct rope_shape *rope;
    bool back;
};

static void rms_fwd_thread(void *ctx, int thread, int threads)
{
    const struct row_job *j = ctx;
    size_t begin, end;
    pool_share(j->n, 1, thread, threads, &begin, &end);
    j->kernels->rms_fwd(end - begin, j->c, j->eps, j->x + begin * j->c, j->w, j->out + begin * j->c,
                        j->rstd_out + begin);
}

void cpu_rms_fwd(struct device *dev, size_t n, size_t c, float eps, const void *x, const float *w, void *y, float *rstd)
{
    struct cpu_device *cpu = cpu_of(dev);
    struct row_job job = {
        .kernels = cpu->kernels, .n = n, .c = c, .eps = eps, .x = x, .w = w, .out = y, .rstd_out = rstd};
    pool_run(cpu->pool, rms_fwd_thread, &job);
}

static void rms_bwd_thread(void *ctx, int thread, int threads)
{
    const struct row_job *j = ctx;
    size_t c = j->c, begin, end;
    pool_share((j->n + j->block - 1) / j->block, 1, thread, threads, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        size_t row = i * j->block, rows = j->n - row < j->block ? j->n - row : j->block;
        float *dw = j->partials + i * c;
        memset(dw, 0, c * sizeof *dw);
        j->kernels->rms_bwd(rows, c, j->dy + row * c, j->x + row * c, j->w, j->rstd + row,
                            j->dres ? j->dres + row * c : NULL, j->out + row * c, dw);
    }
}

void cpu_rms_bwd(struct device *dev, size_t n, size_t c, const void *dy, const void *x, const float *w,
                 const float *rstd, const void *dres, void *dx, float *dw, bool accumulate)
{
    struct cpu_device *cpu = cpu_of(dev);
    size_t blocks = PARTIAL_FLOATS / c < NORM_BLOCKS ? PARTIAL_FLOATS / c : NORM_BLOCKS;
    if (!blocks) {
        cpu_fail(cpu, STATUS_LIMIT, "rms_bwd: rows too long");
        return;
    }
    struct row_job job = {.kernels = cpu->kernels,
                          .n = n,
                          .c = c,
                          .dy = dy,
                          .x = x,
                          .w = w,
                          .rstd = rstd,
                          .dres = dres,
                          .out = dx,
                          .partials = cpu->partials,
                          .block = (n + blocks - 1) / blocks};
    pool_run(cpu->pool, rms_bwd_thread, &job);
    if (!accumulate) memset(dw, 0, c * sizeof *dw);
    for (size_t i = 0; i * job.block < n; i++) cpu->kernels->add_row(c, cpu->partials + i * c, dw);
}

static void rope_thread(void *ctx, int thread, int threads)
{
    const struct row_job *j = ctx;
    size_t begin, end;
    pool_share(j->rope->n, 1, thread, threads, &begin, &end);
    j->kernels->rope_rows(j->rope, begin, end - begin, j->table, j->out, j->back);
}

void cpu_rope(struct device *dev, const struct rope_shape *shape, const float *table, void *x, bool back)
{
    struct cpu_device *cpu = cpu_of(dev);
    struct row_job job = {.kernels = cpu->kernels, .rope = shape, .table = table, .out = x, .back = back};
    if (shape->head_dim % 2 || shape->heads * shape->head_dim > shape->ld) {
        cpu_fail(cpu, STATUS_INVALID, "rope: head_dim is odd, or the heads are wider than a row");
        return;
    }
    pool_run(cpu->pool, rope_thread, &job);
}

static void glu_fwd_thread(void *ctx, int thread, int threads)
{
    const struct row_job *j = ctx;
    size_t begin, end;
    pool_share(j->n, 1, thread, threads, &begin, &end);
    j->kernels->glu_fwd(end - begin, j->c, j->x + begin * 2 * j->c, j->out + begin * j->c);
}

void cpu_glu_fwd(struct device *dev, size_t n, size_t f, const void *gu, void *h)
{
    struct row_job job = {.kernels = cpu_of(dev)->kernels, .n = n, .c = f, .x = gu, .out = h};
    pool_run(cpu_of(dev)->pool, glu_fwd_thread, &job);
}

static void glu_bwd_thread(void *ctx, int thread, int threads)
{
    const struct row_job *j = ctx;
    size_t begin, end;
    pool_share(j->n, 1, thread, threads, &begin, &end);
    j->kernels->glu_bwd(end - begin, j->c, j->x + begin * 2 * j->c, j->dy + begin * j->c, j->out + begin * 2 * j->c);
}

void cpu_glu_bwd(struct device *dev, size_t n, size_t f, const void *gu, const void *dh, void *dgu)
{
    struct row_job job = {.kernels = cpu_of(dev)->kernels, .n = n, .c = f, .x = gu, .dy = dh, .out = dgu};
    pool_run(cpu_of(dev)->pool, glu_bwd_thread, &job);
}
