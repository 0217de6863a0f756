/* Peak of this CPU's multiply-add units, measured with register-only loops on all threads of a pool. */
#ifndef TESTS_BENCH_FMA_PEAK_H
#define TESTS_BENCH_FMA_PEAK_H

#include <stddef.h>

#include "common/base/clock.h"
#include "common/base/pool.h"
#include "gpu/cpu/cpu_kernels.h"

struct fma_peak_job {
    const struct cpu_kernels *kernels;
    double flops[POOL_THREADS_MAX];
};

static inline void fma_peak_thread(void *ctx, int thread, int threads)
{
    struct fma_peak_job *job = ctx;
    (void)threads;
    job->flops[thread] = job->kernels->fma_burn(2000000);
}

/* Returns the best of five runs in GFLOP/s. */
static inline double fma_peak_pool(const struct cpu_kernels *kernels, struct pool *pool)
{
    struct fma_peak_job job = {.kernels = kernels};
    double best = 0;
    for (int run = 0; run < 5; run++) {
        uint64_t start = clock_monotonic_us();
        pool_run(pool, fma_peak_thread, &job);
        uint64_t us = clock_monotonic_us() - start;
        double flops = 0;
        for (int t = 0; t < pool_threads(pool); t++) flops += job.flops[t];
        if (us > 0 && flops / (double)us / 1e3 > best) best = flops / (double)us / 1e3;
    }
    return best;
}

#endif
