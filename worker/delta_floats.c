#include "worker/delta_floats.h"

#include <math.h>

#include "common/pool.h"
#include "common/sum_squares.h"
#include "compress/codec_simd.h"

/* The pseudo-gradient, subtracted in double precision and rounded once, in out (NULL: not wanted); its squared norm. */
static double subtract(const float *base, const float *values, float *restrict out, size_t n)
{
    double lane[SUM_LANES] = {0};
    size_t whole = n / SUM_LANES * SUM_LANES;
    for (size_t i = 0; i < whole; i += SUM_LANES)
        for (size_t k = 0; k < SUM_LANES; k++) {
            double d = (double)base[i + k] - (double)values[i + k];
            lane[k] += d * d;
            if (out) out[i + k] = (float)d;
        }
    for (size_t i = whole; i < n; i++) {
        double d = (double)base[i] - (double)values[i];
        lane[i - whole] += d * d;
        if (out) out[i] = (float)d;
    }
    return sum_lanes(lane);
}

struct making {
    const float *base, *values;
    float *out; /* NULL: only the sums */
    size_t n;
    double square[SUM_BLOCKS];
};

static void make_blocks(void *ctx, int thread, int threads)
{
    struct making *m = ctx;
    size_t at, end;
    pool_share(m->n, SUM_BLOCK, thread, threads, &at, &end);
    for (; at < end; at += SUM_BLOCK) {
        size_t n = end - at < SUM_BLOCK ? end - at : SUM_BLOCK;
        m->square[at / SUM_BLOCK] = subtract(m->base + at, m->values + at, m->out ? m->out + at : NULL, n);
    }
}

/* As sum_squares shares them out, of base - values. */
static double subtract_blocks(struct pool *pool, const float *base, const float *values, float *out, size_t n)
{
    const size_t most = (size_t)SUM_BLOCK * SUM_BLOCKS;
    struct making m;
    double square = 0;
    for (size_t at = 0; at < n; at += most) {
        m.base = base + at;
        m.values = values + at;
        m.out = out ? out + at : NULL;
        m.n = n - at < most ? n - at : most;
        if (pool && m.n > SUM_BLOCK)
            pool_run(pool, make_blocks, &m);
        else
            make_blocks(&m, 0, 1);
        for (size_t i = 0; i * SUM_BLOCK < m.n; i++) square += m.square[i];
    }
    return square;
}

double delta_floats(struct pool *pool, enum delta_form form, const float *base, const float *values, float *out,
                    size_t n)
{
    if (form == DELTA_PSEUDO_GRADIENT) return sqrt(subtract_blocks(pool, base, values, out, n));
    pool_copy(pool, out, values, n * sizeof *out);
    return sqrt(form == DELTA_GRADIENT ? sum_squares(pool, values, n) : subtract_blocks(pool, base, values, NULL, n));
}

struct looking {
    const float *values;
    size_t n;
    bool bad[POOL_THREADS_MAX]; /* by thread: something is not finite */
};

static void look_at_share(void *ctx, int thread, int threads)
{
    struct looking *l = ctx;
    size_t at, end;
    pool_share(l->n, SUM_BLOCK, thread, threads, &at, &end);
    l->bad[thread] = codec_first_nonfinite(l->values + at, end - at) < end - at;
}

bool delta_floats_finite(struct pool *pool, const float *values, size_t n)
{
    struct looking l = {.values = values, .n = n};
    bool bad = false;
    if (pool && n > SUM_BLOCK)
        pool_run(pool, look_at_share, &l);
    else
        look_at_share(&l, 0, 1);
    for (int i = 0; i < POOL_THREADS_MAX; i++) bad = bad || l.bad[i];
    return !bad;
}
