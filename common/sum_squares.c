#include "common/sum_squares.h"

#include "common/pool.h"

double sum_lanes(const double lane[SUM_LANES])
{
    double sum = 0;
    for (int k = 0; k < SUM_LANES; k++) sum += lane[k];
    return sum;
}

static double of_block(const float *x, size_t n)
{
    double lane[SUM_LANES] = {0};
    size_t whole = n / SUM_LANES * SUM_LANES;
    for (size_t i = 0; i < whole; i += SUM_LANES)
        for (size_t k = 0; k < SUM_LANES; k++) lane[k] += (double)x[i + k] * (double)x[i + k];
    for (size_t i = whole; i < n; i++) lane[i - whole] += (double)x[i] * (double)x[i];
    return sum_lanes(lane);
}

struct sums {
    const float *x;
    size_t n;
    double of[SUM_BLOCKS];
};

static void sum_blocks(void *ctx, int thread, int threads)
{
    struct sums *sums = ctx;
    size_t at, end;
    pool_share(sums->n, SUM_BLOCK, thread, threads, &at, &end);
    for (; at < end; at += SUM_BLOCK)
        sums->of[at / SUM_BLOCK] = of_block(sums->x + at, end - at < SUM_BLOCK ? end - at : SUM_BLOCK);
}

double sum_squares(struct pool *pool, const float *x, size_t n)
{
    const size_t most = (size_t)SUM_BLOCK * SUM_BLOCKS;
    struct sums sums;
    double sum = 0;
    for (size_t at = 0; at < n; at += most) {
        sums.x = x + at;
        sums.n = n - at < most ? n - at : most;
        if (pool && sums.n > SUM_BLOCK)
            pool_run(pool, sum_blocks, &sums);
        else
            sum_blocks(&sums, 0, 1);
        for (size_t i = 0; i * SUM_BLOCK < sums.n; i++) sum += sums.of[i];
    }
    return sum;
}
