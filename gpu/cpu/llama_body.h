/* Row kernels of Llama's blocks for one instruction-set level: rotary positions, gated units. */
#ifndef GPU_LLAMA_BODY_H
#define GPU_LLAMA_BODY_H

#include "gpu/cpu/cpu_kernels.h"
#include "gpu/cpu/vec.h"
#include "gpu/device.h"

/* (a, b) -> (a cos - b sin, b cos + a sin); `back` uses -sin. */
static void rope_rows(const struct rope_shape *s, size_t first, size_t n_rows, const float *table, float *x, bool back)
{
    size_t half = s->head_dim / 2;
    const vf sign = v_set1(back ? -1.0f : 1.0f);
    for (size_t r = first; r < first + n_rows; r++) {
        const float *cosines = table + r % s->seq * s->head_dim, *sines = cosines + half;
        for (size_t h = 0; h < s->heads; h++) {
            float *head = x + r * s->ld + h * s->head_dim;
            FOR_VECTORS(i, n, half)
            {
                vf a = v_part(head + i, n), b = v_part(head + half + i, n);
                vf co = v_part(cosines + i, n), si = v_part(sines + i, n) * sign;
                v_put(head + i, v_fma(a, co, -(b * si)), n);
                v_put(head + half + i, v_fma(b, co, a * si), n);
            }
        }
    }
}

INLINE vf v_logistic(vf z)
{
    return v_set1(1.0f) / (v_set1(1.0f) + v_exp(-z));
}

static void glu_fwd(size_t n_rows, size_t f, const float *gu, float *h)
{
    for (size_t r = 0; r < n_rows; r++, gu += 2 * f, h += f) {
        FOR_VECTORS(i, n, f)
        {
            vf z = v_part(gu + i, n);
            v_put(h + i, z * v_logistic(z) * v_part(gu + f + i, n), n);
        }
    }
}

/* silu'(z) = s + z s (1 - s), s the logistic function of z. */
static void glu_bwd(size_t n_rows, size_t f, const float *gu, const float *dh, float *dgu)
{
    for (size_t r = 0; r < n_rows; r++, gu += 2 * f, dgu += 2 * f, dh += f) {
        FOR_VECTORS(i, n, f)
        {
            vf z = v_part(gu + i, n), up = v_part(gu + f + i, n), d = v_part(dh + i, n), s = v_logistic(z);
            vf silu = z * s;
            v_put(dgu + i, d * up * v_fma(silu, v_set1(1.0f) - s, s), n);
            v_put(dgu + f + i, d * silu, n);
        }
    }
}

#endif
