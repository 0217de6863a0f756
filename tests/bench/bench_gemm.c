/* Benchmark of the CPU back end's matrix product: GFLOP/s on the trainer's shapes, beside the peak of the FMA units.
 *
 * Usage: bench_gemm [threads]
 *
 * Each figure is the best of at least 5 runs, because noise of the machine only slows a run down. */
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "gpu/cpu/cpu_kernels.h"
#include "gpu/cpu/gemm.h"
#include "tests/bench/lib/fma_peak.h"

#include <stdio.h>
#include <stdlib.h>

struct shape {
    size_t n, k, m;
};

static const struct shape shapes[] = {
    {2048, 128, 384},  {2048, 128, 128}, {2048, 128, 512},  {2048, 512, 128},  {2048, 128, 256},
    {2048, 384, 1152}, {2048, 384, 384}, {2048, 384, 1536}, {2048, 1536, 384}, {512, 768, 2304},
    {512, 768, 768},   {512, 768, 3072}, {512, 3072, 768},  {512, 768, 50257},
};

static float *random_floats(size_t n)
{
    float *p = mem_alloc(n, sizeof *p);
    for (size_t i = 0; p && i < n; i++) p[i] = (float)((i * 2654435761u >> 16) & 1023) / 512.0f - 1.0f;
    return p;
}

static double best_gflops(const struct gemm *g, const struct cpu_kernels *kernels, struct pool *pool,
                          void *const *scratch)
{
    double flops = 2.0 * (double)g->m * (double)g->n * (double)g->k, best = 0;
    uint64_t start = clock_monotonic_us();
    for (int run = 0; run < 5 || (run < 1000 && clock_monotonic_us() - start < 150000); run++) {
        uint64_t t = clock_monotonic_us();
        gemm_run(g, kernels, pool, scratch);
        t = clock_monotonic_us() - t;
        double rate = flops / (double)(t ? t : 1) / 1e3;
        if (rate > best) best = rate;
    }
    return best;
}

static void bench_shape(const struct shape *s, const struct cpu_kernels *kernels, struct pool *pool,
                        void *const *scratch)
{
    float *x = random_floats(s->n * s->k), *w = random_floats(s->k * s->m), *y = random_floats(s->n * s->m);
    float *dx = random_floats(s->n * s->k), *dw = random_floats(s->k * s->m), *db = random_floats(s->m);
    if (!x || !w || !y || !dx || !dw || !db) abort();
    bool head = s->m > 10000 || s->m == 256;
    struct gemm fwd = {.m = s->n,
                       .n = s->m,
                       .k = s->k,
                       .a = x,
                       .lda = s->k,
                       .b = w,
                       .ldb = head ? s->k : s->m,
                       .b_trans = head,
                       .c = y,
                       .ldc = s->m};
    struct gemm bwd_x = {.m = s->n,
                         .n = s->k,
                         .k = s->m,
                         .a = y,
                         .lda = s->m,
                         .b = w,
                         .ldb = head ? s->k : s->m,
                         .b_trans = !head,
                         .c = dx,
                         .ldc = s->k};
    struct gemm bwd_w = {.m = s->k,
                         .n = s->m,
                         .k = s->n,
                         .a = x,
                         .lda = s->k,
                         .a_trans = true,
                         .b = y,
                         .ldb = s->m,
                         .c = dw,
                         .ldc = s->m,
                         .colsum = db};
    if (head) {
        bwd_w = (struct gemm){.m = s->m,
                              .n = s->k,
                              .k = s->n,
                              .a = y,
                              .lda = s->m,
                              .a_trans = true,
                              .b = x,
                              .ldb = s->k,
                              .c = dw,
                              .ldc = s->k};
    }
    printf("%5zu %5zu %6zu   %7.1f  %7.1f  %7.1f\n", s->n, s->k, s->m, best_gflops(&fwd, kernels, pool, scratch),
           best_gflops(&bwd_x, kernels, pool, scratch), best_gflops(&bwd_w, kernels, pool, scratch));
    mem_free(x);
    mem_free(w);
    mem_free(y);
    mem_free(dx);
    mem_free(dw);
    mem_free(db);
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    const struct cpu_kernels *kernels = cpu_kernels_select(getenv("ATOLL_CPU"));
    struct pool *pool;
    if (!kernels || pool_create(threads, POOL_FLOATS_FLUSHED, &pool) != STATUS_OK) {
        fprintf(stderr, "bench_gemm: cannot start: ATOLL_CPU is unknown or the number of threads is too large\n");
        return 2;
    }
    void **scratch = mem_alloc((size_t)threads, sizeof *scratch);
    for (int t = 0; t < threads; t++) scratch[t] = mem_alloc(1, gemm_scratch_bytes());
    printf("%s, %d thread%s, FMA peak %.1f GFLOP/s\n    n     k      m       fwd    bwd_x    bwd_w   (GFLOP/s)\n",
           kernels->name, threads, threads == 1 ? "" : "s", fma_peak_pool(kernels, pool));
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) bench_shape(&shapes[i], kernels, pool, scratch);
    for (int t = 0; t < threads; t++) mem_free(scratch[t]);
    mem_free(scratch);
    pool_destroy(pool);
    return 0;
}
