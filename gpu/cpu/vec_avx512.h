/* vec.h on AVX-512: 16 lanes; 14 x 32 tile = 28 accumulators + 2 for b + 1 for a of 32 registers. */
#ifndef GPU_VEC_AVX512_H
#define GPU_VEC_AVX512_H

#include <immintrin.h>
#include <stddef.h>

enum { VL = 16, MR = 14, AMR = 8 };

typedef __m512 vf;
typedef int vi __attribute__((vector_size(64)));

#define V(op) _mm512_##op
#include "gpu/cpu/vec_x86.h"

/* The first n (0 .. VL) lanes; the others read as zero, or are not written. */
static inline __mmask16 v_first(size_t n)
{
    return (__mmask16)((1u << n) - 1);
}
static inline vf v_load_n(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps(v_first(n), p);
}
static inline void v_store_n(float *p, vf v, size_t n)
{
    _mm512_mask_storeu_ps(p, v_first(n), v);
}

/* Lanes from `first` (0 .. VL) on are v's, those before it `other`'s. */
static inline vf v_keep_from(vf v, size_t first, vf other)
{
    return _mm512_mask_blend_ps(v_first(first), v, other);
}

/* dst[j * ld + i] = row i, element j: a 16 x 16 transposition in registers. */
static inline __attribute__((always_inline)) void v_transpose_store(const vf row[16], float *dst, size_t ld)
{
    vf r[16], t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(row[i], row[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(row[i], row[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        __m512d t0 = _mm512_castps_pd(t[i]), t1 = _mm512_castps_pd(t[i + 1]);
        __m512d t2 = _mm512_castps_pd(t[i + 2]), t3 = _mm512_castps_pd(t[i + 3]);
        r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(t0, t2));
        r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(t0, t2));
        r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(t1, t3));
        r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(t1, t3));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) v_store(dst + (size_t)i * ld, r[i]);
}

#endif
