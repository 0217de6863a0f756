/* Row kernels of Llama's blocks for one instruction-set level: RMS norm, rotary positions, gated units. */
#ifndef GPU_LLAMA_BODY_H
#define GPU_LLAMA_BODY_H

#include <math.h>

#include "gpu/cpu/cpu_kernels.h"
#include "gpu/cpu/vec.h"
#include "gpu/device.h"

static void rms_fwd(size_t n_rows, size_t c, float eps, const float *x, const float *w, float *y, float *rstd)
{
    float inv = 1.0f / (float)c;
    for (size_t r = 0; r < n_rows; r++, x += c, y += c) {
        vf square = v_zero();
        FOR_VECTORS(i, n, c)
        {
            vf v = v_part(x + i, n);
            square = v_fma(v, v, square);
        }
        float rs = 1.0f / sqrtf(v_hsum(square) * inv + eps);
        FOR_VECTORS(i, n, c) v_put(y + i, v_part(x + i, n) * v_set1(rs) * v_part(w + i, n), n);
        rstd[r] = rs;
    }
}

/* dx = dres + rstd * (g - hat * mean(g hat)), g = dy w, hat = x rstd; dw += dy hat. */
static void rms_bwd(size_t n_rows, size_t c, const float *dy, const float *x, const float *w, const float *rstd,
                    const float *dres, float *dx, float *dw)
{
    float inv = 1.0f / (float)c;
    for (size_t r = 0; r < n_rows; r++, x += c, dy += c, dx += c) {
        vf rs = v_set1(rstd[r]), dot = v_zero();
        FOR_VECTORS(i, n, c)
        {
            vf d = v_part(dy + i, n), hat = v_part(x + i, n) * rs;
            dot = v_fma(d * v_part(w + i, n), hat, dot);
            v_put(dw + i, v_fma(d, hat, v_part(dw + i, n)), n);
        }
        vf mean = v_set1(v_hsum(dot) * inv);
        FOR_VECTORS(i, n, c)
        {
            vf hat = v_part(x + i, n) * rs, g = v_part(dy + i, n) * v_part(w + i, n);
            vf d = (g - hat * mean) * rs;
            if (dres) d = d + v_part(dres + r * c + i, n);
            v_put(dx + i, d, n);
        }
    }
}

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
