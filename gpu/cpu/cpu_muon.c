/* Muon on the CPU device: one matrix after the other, each with all threads. */
#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "gpu/cpu/cpu_impl.h"
#include "gpu/cpu/gemm.h"
#include "gpu/moment_rules.h"
#include "gpu/muon_rules.h"

/* Floats of the largest matrix, and of the largest square of a short side. */
static void largest(const struct muon_matrix *matrices, size_t n, size_t *area, size_t *square)
{
    *area = *square = 0;
    for (size_t i = 0; i < n; i++) {
        size_t side = muon_side(matrices[i].rows, matrices[i].cols);
        *area = muon_max(*area, matrices[i].rows * matrices[i].cols);
        *square = muon_max(*square, side * side);
    }
}

static size_t muon_bytes(struct device *dev, const struct muon_matrix *matrices, size_t n)
{
    size_t area, square;
    (void)dev;
    largest(matrices, n, &area, &square);
    return n * sizeof *matrices + (2 * area + 3 * square) * sizeof(float);
}

static enum status muon_plan(struct device *dev, const struct muon_matrix *matrices, size_t n, struct muon_plan **out)
{
    struct cpu_plan *plan;
    size_t area, square;
    if (!muon_matrices_valid(matrices, n)) return STATUS_INVALID;
    TRY(cpu_plan_new(cpu_of(dev), CPU_PLAN_MUON, &plan));
    largest(matrices, n, &area, &square);
    plan->as.muon.n = n;
    plan->as.muon.matrices = mem_alloc(n, sizeof *matrices);
    float *x = plan->as.muon.x = mem_alloc(2 * area + 3 * square, sizeof(float));
    if (!plan->as.muon.matrices || !x) {
        cpu_plan_free(dev, plan);
        return STATUS_NOMEM;
    }
    plan->as.muon.y = x + area;
    plan->as.muon.gram = x + 2 * area;
    plan->as.muon.poly = plan->as.muon.gram + square;
    plan->as.muon.mult = plan->as.muon.poly + square;
    memcpy(plan->as.muon.matrices, matrices, n * sizeof *matrices);
    *out = (struct muon_plan *)plan;
    return STATUS_OK;
}

struct muon_job {
    const struct cpu_kernels *kernels;
    const struct muon_matrix *matrix;
    size_t side;
    const float *grad;
    float *theta, *x; /* x: contiguous rows */
    void *momentum;
    const uint32_t *noise; /* not NULL: the momentum is bf16 */
    float mu, scale, keep, step;
    float *gram, *poly, *mult;
    float inverse; /* 1 / norm in the first round; 1 later */
};

static void momentum_thread(void *ctx, int thread, int threads)
{
    const struct muon_job *j = ctx;
    const struct muon_matrix *t = j->matrix;
    size_t begin, end;
    pool_share(t->rows, 1, thread, threads, &begin, &end);
    for (size_t r = begin; r < end; r++) {
        size_t at = t->offset + r * t->ld;
        float *x = j->x + r * t->cols;
        if (j->noise)
            j->kernels->muon_momentum_bf16(t->cols, at, j->grad + at, (uint16_t *)j->momentum + (at - t->skipped), x,
                                           j->mu, j->scale, j->noise);
        else
            j->kernels->muon_momentum(t->cols, j->grad + at, (float *)j->momentum + (at - t->skipped), x, j->mu,
                                      j->scale);
    }
}

static void apply_thread(void *ctx, int thread, int threads)
{
    const struct muon_job *j = ctx;
    const struct muon_matrix *t = j->matrix;
    size_t begin, end;
    pool_share(t->rows, 1, thread, threads, &begin, &end);
    for (size_t r = begin; r < end; r++)
        j->kernels->axpy_run(t->cols, j->theta + t->offset + r * t->ld, j->x + r * t->cols, j->keep, j->step);
}

/* Replaces G by that of X / norm. poly = (b I + c G) / norm and mult = a I / norm, so that X is multiplied by G poly +
 * mult. */
static void poly_thread(void *ctx, int thread, int threads)
{
    const struct muon_job *j = ctx;
    size_t begin, end;
    pool_share(j->side, 1, thread, threads, &begin, &end);
    float square = j->inverse * j->inverse, c = MUON_C * j->inverse;
    for (size_t r = begin; r < end; r++) {
        float *gram = j->gram + r * j->side, *poly = j->poly + r * j->side, *mult = j->mult + r * j->side;
        for (size_t i = 0; i < j->side; i++) {
            gram[i] *= square;
            poly[i] = c * gram[i];
            mult[i] = 0;
        }
        poly[r] += MUON_B * j->inverse;
        mult[r] = MUON_A * j->inverse;
    }
}

static float inverse_norm(const float *gram, size_t side)
{
    double trace = 0;
    for (size_t i = 0; i < side; i++) trace += (double)gram[i * side + i];
    double norm = sqrt(trace);
    return (float)(1 / (norm > MUON_NORM_MIN ? norm : MUON_NORM_MIN));
}

/* Orthogonalizes the matrix in x; returns the buffer that holds the result. */
static float *orthogonalize(struct cpu_device *cpu, const struct cpu_plan *p, struct muon_job *j, uint32_t rounds)
{
    size_t rows = j->matrix->rows, cols = j->matrix->cols, side = j->side;
    bool tall = rows > cols;
    float *x = p->as.muon.x, *y = p->as.muon.y;
    for (uint32_t round = 0; round < rounds; round++) {
        struct gemm gram = {.m = side,
                            .n = side,
                            .k = tall ? rows : cols,
                            .a = x,
                            .b = x,
                            .a_trans = tall,
                            .b_trans = !tall,
                            .c = j->gram};
        gemm_run(&gram, cpu->kernels, cpu->pool, cpu->scratch);
        j->inverse = round ? 1 : inverse_norm(j->gram, side);
        pool_run(cpu->pool, poly_thread, j);
        struct gemm mult = {.m = side, .n = side, .k = side, .a = j->gram, .b = j->poly, .c = j->mult, .add = j->mult};
        gemm_run(&mult, cpu->kernels, cpu->pool, cpu->scratch);
        struct gemm next = {.m = rows, .n = cols, .k = side, .a = tall ? x : j->mult, .b = tall ? j->mult : x, .c = y};
        gemm_run(&next, cpu->kernels, cpu->pool, cpu->scratch);
        float *previous = x;
        x = y;
        y = previous;
    }
    return x;
}

static void muon(struct device *dev, const struct muon_plan *plan, float *theta, const float *grad, void *momentum,
                 const struct muon_hyper *hyper, const float *scale)
{
    struct cpu_device *cpu = cpu_of(dev);
    const struct cpu_plan *p = cpu_plan_of(cpu, plan, CPU_PLAN_MUON);
    if (!p || (scale && *scale == 0)) return;
    assert(hyper->steps >= 1 && (!hyper->bf16_moments || hyper->count));
    for (size_t i = 0; i < p->as.muon.n; i++) {
        const struct muon_matrix *t = &p->as.muon.matrices[i];
        assert(t->skipped <= t->offset);
        struct muon_job job = {.kernels = cpu->kernels,
                               .matrix = t,
                               .side = muon_side(t->rows, t->cols),
                               .grad = grad,
                               .theta = theta,
                               .momentum = momentum,
                               .x = p->as.muon.x,
                               .mu = hyper->momentum,
                               .scale = scale ? *scale : 1.0f,
                               .gram = p->as.muon.gram,
                               .poly = p->as.muon.poly,
                               .mult = p->as.muon.mult,
                               .noise = hyper->bf16_moments ? hyper->count->noise : NULL};
        pool_run(cpu->pool, momentum_thread, &job);
        job.x = orthogonalize(cpu, p, &job, hyper->steps);
        job.keep = 1 - (t->decay ? hyper->lr * hyper->weight_decay : 0);
        job.step = -hyper->lr * muon_length(t->rows, t->cols);
        pool_run(cpu->pool, apply_thread, &job);
    }
}

void cpu_muon_ops(struct device_ops *ops)
{
    ops->muon_plan = muon_plan;
    ops->muon_bytes = muon_bytes;
    ops->muon = muon;
}
