/* Vector and optimizer kernels of one instruction-set level. */
#ifndef GPU_OPTIM_BODY_H
#define GPU_OPTIM_BODY_H

#include "gpu/cpu/cpu_kernels.h"
#include "gpu/cpu/vec.h"
#include "gpu/moment_rules.h"

/* Sums are fp32 within runs of SUM_RUN vectors and double across runs. */
enum { SUM_RUN = 64 };

static double sum_run(size_t n, const float *x, bool square)
{
    double total = 0;
    for (size_t begin = 0; begin < n; begin += SUM_RUN * VL) {
        size_t count = n - begin < SUM_RUN * VL ? n - begin : SUM_RUN * VL;
        vf sum = v_zero();
        FOR_VECTORS(i, lanes, count)
        {
            vf v = v_part(x + begin + i, lanes), added = sum + v;
            sum = square ? v_fma(v, v, sum) : added;
        }
        total += (double)v_hsum(sum);
    }
    return total;
}

static void adamw_run(size_t n, float *theta, const float *grad, float *m, float *v, const struct adamw_step *s)
{
    vf b1 = v_set1(s->beta1), b2 = v_set1(s->beta2), a1 = v_set1(1 - s->beta1), a2 = v_set1(1 - s->beta2);
    vf lr = v_set1(-s->lr * s->correct1), c2 = v_set1(s->correct2), keep = v_set1(1 - s->decay);
    FOR_VECTORS(i, lanes, n)
    {
        vf g = v_part(grad + i, lanes) * v_set1(s->scale);
        vf m1 = v_fma(b1, v_part(m + i, lanes), a1 * g);
        vf v1 = v_fma(b2, v_part(v + i, lanes), a2 * (g * g));
        vf step = m1 / (v_sqrt(v1 * c2) + v_set1(s->eps));
        v_put(theta + i, v_fma(lr, step, v_part(theta + i, lanes) * keep), lanes);
        v_put(m + i, m1, lanes);
        v_put(v + i, v1, lanes);
    }
}

static void muon_momentum(size_t n, const float *grad, float *m, float *x, float mu, float scale)
{
    vf keep = v_set1(mu), take = v_set1(1 - mu);
    FOR_VECTORS(i, lanes, n)
    {
        vf g = take * (v_part(grad + i, lanes) * v_set1(scale));
        vf m1 = v_fma(keep, v_part(m + i, lanes), g);
        v_put(m + i, m1, lanes);
        v_put(x + i, v_fma(keep, m1, g), lanes);
    }
}

/* --- moments in bf16: gpu/moment_rules.h, a vector at a time ------------------------------------------------------ */

/* moment_word of VL elements from `index` on. */
INLINE vu moment_words(const uint32_t noise[2], uint64_t index)
{
    vu low;
    for (uint32_t i = 0; i < VL; i++) low[i] = i;
    low += (uint32_t)index;
    vu high = (uint32_t)(index >> 32) - (vu)(low < (uint32_t)index); /* the comparison is -1 where low overflowed */
    vu x = low + noise[0];
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) + high * 0x9e3779b9u + noise[1];
    x = (x ^ x >> 16) * 0x846ca68bu;
    return x ^ x >> 16;
}

INLINE vf moments_drop(vf x)
{
    vu bits = (vu)x, keep = (vu)((vi)(bits & RULE_MAGNITUDE) >= (vi)v_set1(MOMENT_LEAST));
    return (vf)(bits & keep);
}

INLINE vf moments_load(const uint16_t *p, size_t lanes)
{
    vh half = {0};
    memcpy(&half, p, lanes == VL ? sizeof half : lanes * sizeof *p);
    return (vf)(__builtin_convertvector(half, vu) << 16);
}

INLINE void moments_store(uint16_t *p, vf x, vu random, size_t lanes)
{
    vu bits = (vu)x, up = (bits & RULE_MAGNITUDE) + random;
    vu over = (vu)(up > MOMENT_LARGEST);
    up = (up & ~over) | (over & MOMENT_LARGEST);
    vh half = __builtin_convertvector(up >> 16 | (bits & ~RULE_MAGNITUDE) >> 16, vh);
    memcpy(p, &half, lanes == VL ? sizeof half : lanes * sizeof *p);
}

static void adamw_bf16(size_t n, uint64_t index, float *theta, const float *grad, uint16_t *m, uint16_t *v,
                       const struct adamw_step *s)
{
    vf b1 = v_set1(s->beta1), b2 = v_set1(s->beta2), a1 = v_set1(1 - s->beta1), a2 = v_set1(1 - s->beta2);
    vf lr = v_set1(-s->lr * s->correct1), c2 = v_set1(s->correct2), keep = v_set1(1 - s->decay);
    FOR_VECTORS(i, lanes, n)
    {
        vu word = moment_words(s->noise, index + i);
        vf g = v_part(grad + i, lanes) * v_set1(s->scale);
        vf m1 = moments_drop(b1 * moments_load(m + i, lanes) + moments_drop(a1 * g));
        vf v1 = moments_drop(b2 * moments_load(v + i, lanes) + moments_drop(a2 * (g * g)));
        vf step = m1 / (v_sqrt(v1 * c2) + v_set1(s->eps));
        v_put(theta + i, v_part(theta + i, lanes) * keep + moments_drop(lr * step), lanes);
        moments_store(m + i, m1, word & 0xffffu, lanes);
        moments_store(v + i, v1, word >> 16, lanes);
    }
}

static void muon_momentum_bf16(size_t n, uint64_t index, const float *grad, uint16_t *m, float *x, float mu,
                               float scale, const uint32_t noise[2])
{
    vf keep = v_set1(mu), take = v_set1(1 - mu);
    FOR_VECTORS(i, lanes, n)
    {
        vf g = moments_drop(take * (v_part(grad + i, lanes) * v_set1(scale)));
        vf m1 = moments_drop(keep * moments_load(m + i, lanes) + g);
        moments_store(m + i, m1, moment_words(noise, index + i) & 0xffffu, lanes);
        v_put(x + i, keep * m1 + g, lanes);
    }
}

/* --- vectors ------------------------------------------------------------------------------------------------------ */

static void axpy_run(size_t n, float *y, const float *x, float keep, float a)
{
    FOR_VECTORS(i, lanes, n)
    v_put(y + i, v_fma(v_set1(a), v_part(x + i, lanes), v_part(y + i, lanes) * v_set1(keep)), lanes);
}

static void gelu_run(size_t n, const float *z, float *y)
{
    vf dgelu;
    FOR_VECTORS(i, lanes, n) v_put(y + i, v_gelu(v_part(z + i, lanes), &dgelu), lanes);
}

#endif
