/* vec.h on AVX2 with FMA: 8 lanes; 6 x 16 tile = 12 accumulators + 2 for b + 1 for a of 16 registers. */
#ifndef GPU_VEC_AVX2_H
#define GPU_VEC_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

enum { VL = 8, MR = 6, AMR = 4 };

typedef __m256 vf;
typedef int vi __attribute__((vector_size(32)));

#define V(op) _mm256_##op
#include "gpu/cpu/vec_x86.h"

/* The first n (0 .. VL) lanes; the others read as zero, or are not written. */
static inline __m256i v_first(size_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vf v_load_n(const float *p, size_t n)
{
    return _mm256_maskload_ps(p, v_first(n));
}
static inline void v_store_n(float *p, vf v, size_t n)
{
    _mm256_maskstore_ps(p, v_first(n), v);
}

/* Lanes from `first` (0 .. VL) on are v's, those before it `other`'s. */
static inline vf v_keep_from(vf v, size_t first, vf other)
{
    return _mm256_blendv_ps(v, other, _mm256_castsi256_ps(v_first(first)));
}

/* dst[j * ld + i] = row i, element j: an 8 x 8 transposition in registers. */
static inline __attribute__((always_inline)) void v_transpose_store(const vf row[8], float *dst, size_t ld)
{
    vf t[8], s[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        s[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        s[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        s[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        s[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v_store(dst + (size_t)i * ld, _mm256_permute2f128_ps(s[i], s[i + 4], 0x20));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v_store(dst + (size_t)(i + 4) * ld, _mm256_permute2f128_ps(s[i], s[i + 4], 0x31));
    }
}

#endif
