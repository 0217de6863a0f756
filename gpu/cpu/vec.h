/* A short vector on three instruction sets. The kernels (*_body.h) are written once over these functions and compiled
 * once a level, in cpu_portable.c, cpu_avx2.c and cpu_avx512.c. Everything here is static: code of a level never leaks
 * into a file that must run on every CPU.
 *
 * - vf has VL floats. Loads and stores need no alignment. Casts between vf, vi and vu keep the bits.
 * - Fused multiply-adds are always explicit (v_fma) and never chosen by the compiler, so the source defines the bits of
 *   each level.
 * - MR x NR is the GEMM register tile of the level, AMR x NR that of attention (AMR divides VL). */
#ifndef GPU_VEC_H
#define GPU_VEC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(VEC_AVX512)
#include "gpu/cpu/vec_avx512.h"
#elif defined(VEC_AVX2)
#include "gpu/cpu/vec_avx2.h"
#else
#include "gpu/cpu/vec_portable.h"
#endif

enum { NR = 2 * VL };

typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef uint16_t vh __attribute__((vector_size(VL * 2)));

#define INLINE static inline __attribute__((always_inline, unused))

/* Sum of the lanes, always in the same order. */
INLINE float v_hsum(vf v)
{
    float lanes[VL];
    memcpy(lanes, &v, sizeof lanes);
    for (int half = VL / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

/* exp(x) to 2e-7 relative for -87 <= x <= 87; x is clamped to that range, NaN stays NaN. x = n ln2 + r, |r| <= ln2/2;
 * exp(r) is a degree-5 minimax polynomial (1.05e-7 relative). 2^n is built from bits: adding 1.5 * 2^23 leaves n in the
 * low mantissa bits. */
INLINE vf v_exp(vf x)
{
    const vf magic = v_set1(12582912.0f);
    x = v_min(v_set1(87.0f), v_max(v_set1(-87.0f), x));
    vf shifted = v_fma(x, v_set1(1.44269504f), magic);
    vf n = shifted - magic;
    vf r = v_fma(n, v_set1(-0.693145752f), x);
    r = v_fma(n, v_set1(-1.42860677e-6f), r);
    vf p = v_fma(v_set1(8.312501e-3f), r, v_set1(4.189033e-2f));
    p = v_fma(p, r, v_set1(1.6667116e-1f));
    p = v_fma(p, r, v_set1(4.9999231e-1f));
    p = v_fma(p, r, v_set1(1.0f));
    p = v_fma(p, r, v_set1(1.0f));
    return p * (vf)(((vi)shifted << 23) + 0x3f800000);
}

/* GELU in its tanh form, written with the logistic function: 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2u)),
 * u = sqrt(2/pi) (z + 0.044715 z^3). *dgelu is the derivative. */
INLINE vf v_gelu(vf z, vf *dgelu)
{
    const float c1 = 1.5957691216f, c3 = 0.0713548162726f; /* 2 sqrt(2/pi) and that times 0.044715 */
    vf zz = z * z;
    vf e = v_exp(-z * v_fma(zz, v_set1(c3), v_set1(c1)));
    vf s = v_set1(1.0f) / (v_set1(1.0f) + e);
    vf y = z * s;
    *dgelu = v_fma(y * (v_set1(1.0f) - s), v_fma(zz, v_set1(3.0f * c3), v_set1(c1)), s);
    return y;
}

/* log(x) to 2e-7 for normal positive x: x = 2^e m with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m - 1) / (m +
 * 1)). */
INLINE vf v_log(vf x)
{
    const vf magic = v_set1(12582912.0f);
    vi bits = (vi)x, e = (bits - 0x3f3504f3) >> 23;
    vf m = (vf)(bits - (e << 23)), exponent = (vf)((vi)magic + e);
    vf s = (m - v_set1(1.0f)) / (m + v_set1(1.0f)), ss = s * s;
    vf p = v_fma(v_set1(0.22222222f), ss, v_set1(0.28571429f));
    p = v_fma(p, ss, v_set1(0.4f));
    p = v_fma(p, ss, v_set1(0.66666667f));
    p = v_fma(p, ss, v_set1(2.0f));
    return v_fma(exponent - magic, v_set1(0.69314718f), p * s);
}

/* For each vector of a row of c floats: i is its start, n the number of its lanes in the row. */
#define FOR_VECTORS(i, n, c) for (size_t i = 0, n; i < (c) && (n = (c)-i < VL ? (c)-i : VL); i += VL)

INLINE vf v_part(const float *p, size_t n)
{
    return n == VL ? v_load(p) : v_load_n(p, n);
}

INLINE void v_put(float *p, vf v, size_t n)
{
    if (n == VL) {
        v_store(p, v);
    } else {
        v_store_n(p, v, n);
    }
}

#endif
