#include "worker/outer/delta_host.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "common/base/pool.h"
#include "common/tensor/sum_squares.h"
#include "compress/codec_simd.h"

struct difference {
    const float *base, *values;
    float *out; /* NULL: only the squared norm is needed */
};

/* Writes the pseudo-gradient of a block to `out`; returns its squared norm. */
static double subtract_block(void *ctx, size_t at, size_t n)
{
    const struct difference *d = ctx;
    const float *base = d->base + at, *values = d->values + at;
    float *restrict out = d->out ? d->out + at : NULL;
    double lane[SUM_LANES] = {0};
    size_t whole = n / SUM_LANES * SUM_LANES;
    for (size_t i = 0; i < whole; i += SUM_LANES)
        for (size_t k = 0; k < SUM_LANES; k++) {
            double x = (double)base[i + k] - (double)values[i + k];
            lane[k] += x * x;
            if (out) out[i + k] = (float)x;
        }
    for (size_t i = whole; i < n; i++) {
        double x = (double)base[i] - (double)values[i];
        lane[i - whole] += x * x;
        if (out) out[i] = (float)x;
    }
    return sum_lanes(lane);
}

static double subtract(struct pool *pool, const float *base, const float *values, float *out, size_t n)
{
    struct difference d = {base, values, out};
    return sum_by_blocks(pool, n, subtract_block, &d);
}

double delta_host(struct pool *pool, enum delta_form form, const float *base, const float *values, float *out, size_t n)
{
    if (form == DELTA_PSEUDO_GRADIENT) return sqrt(subtract(pool, base, values, out, n));
    if (out) pool_copy(pool, out, values, n * sizeof *out);
    return sqrt(form == DELTA_GRADIENT ? sum_squares(pool, values, n) : subtract(pool, base, values, NULL, n));
}

struct finite_check {
    const float *values;
    size_t n;
    bool nonfinite[POOL_THREADS_MAX]; /* by thread */
};

static void check_share(void *ctx, int thread, int threads)
{
    struct finite_check *check = ctx;
    size_t at, end;
    pool_share(check->n, SUM_BLOCK, thread, threads, &at, &end);
    check->nonfinite[thread] = codec_first_nonfinite(check->values + at, end - at) < end - at;
}

bool delta_host_finite(struct pool *pool, const float *values, size_t n)
{
    struct finite_check check = {.values = values, .n = n};
    bool nonfinite = false;
    pool_run_if(pool, n > SUM_BLOCK, check_share, &check);
    for (int i = 0; i < POOL_THREADS_MAX; i++) nonfinite = nonfinite || check.nonfinite[i];
    return !nonfinite;
}

bool delta_host_nonfinite_text(const struct layout *layout, const float *values, char text[DELTA_HOST_TEXT])
{
    for (uint32_t i = 0; i < layout->n_tensors; i++) {
        const struct tensor *t = &layout->tensors[i];
        uint64_t bad = 0;
        for (uint64_t k = codec_first_nonfinite(values + t->offset, t->count); k < t->count; k++)
            bad += !isfinite(values[t->offset + k]);
        if (!bad) continue;
        snprintf(text, DELTA_HOST_TEXT, "tensor '%s' has %" PRIu64 " value%s NaN or infinite", t->name, bad,
                 bad > 1 ? "s that are" : " that is");
        return true;
    }
    return false;
}
