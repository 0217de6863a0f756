#include "common/tensor/sum_squares.h"

#include "common/base/pool.h"

#include <assert.h>

double sum_lanes(const double lane[SUM_LANES])
{
    double sum = 0;
    for (int k = 0; k < SUM_LANES; k++) sum += lane[k];
    return sum;
}

struct sums {
    sum_block_fn sum_block;
    void *ctx;
    size_t from, n;
    double block[SUM_BLOCKS];
};

static void sum_share(void *ctx, int thread, int threads)
{
    struct sums *sums = ctx;
    size_t at, end;
    pool_share(sums->n, SUM_BLOCK, thread, threads, &at, &end);
    assert(at % SUM_BLOCK == 0 || at == end);
    assert(end <= (size_t)SUM_BLOCK * SUM_BLOCKS);
    for (; at < end; at += SUM_BLOCK) {
        size_t n = end - at < SUM_BLOCK ? end - at : SUM_BLOCK;
        sums->block[at / SUM_BLOCK] = sums->sum_block(sums->ctx, sums->from + at, n);
    }
}

double sum_by_blocks(struct pool *pool, size_t n, sum_block_fn sum_block, void *ctx)
{
    const size_t batch = (size_t)SUM_BLOCK * SUM_BLOCKS;
    struct sums sums = {.sum_block = sum_block, .ctx = ctx};
    double sum = 0;
    for (sums.from = 0; sums.from < n; sums.from += batch) {
        sums.n = n - sums.from < batch ? n - sums.from : batch;
        pool_run_if(pool, sums.n > SUM_BLOCK, sum_share, &sums);
        for (size_t i = 0; i * SUM_BLOCK < sums.n; i++) sum += sums.block[i];
    }
    return sum;
}

static double square_block(void *ctx, size_t at, size_t n)
{
    const float *x = *(const float *const *)ctx + at;
    double lane[SUM_LANES] = {0};
    size_t whole = n / SUM_LANES * SUM_LANES;
    for (size_t i = 0; i < whole; i += SUM_LANES)
        for (size_t k = 0; k < SUM_LANES; k++) lane[k] += (double)x[i + k] * (double)x[i + k];
    for (size_t i = whole; i < n; i++) lane[i - whole] += (double)x[i] * (double)x[i];
    return sum_lanes(lane);
}

double sum_squares(struct pool *pool, const float *x, size_t n)
{
    return sum_by_blocks(pool, n, square_block, &x);
}
