/* AVX-512 forms of lowbit_plain.c: the parts of lowbit_body.h that depend on the instruction set. */
#include "compress/lowbit/lowbit.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define INLINE TARGET static inline __attribute__((always_inline))
#define MM(name) _mm512_##name
#define SI(name) _mm512_##name##_si512

typedef __m512 floats, table;
typedef __m512i ints;

INLINE floats as_floats(ints x)
{
    return _mm512_castsi512_ps(x);
}

INLINE ints in_order(ints bytes)
{
    const ints order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, bytes);
}

INLINE void add_above(floats m, floats t, floats *sum, ints *count)
{
    __mmask16 over = _mm512_cmp_ps_mask(m, t, _CMP_GT_OQ);
    *sum = _mm512_mask_add_ps(*sum, over, *sum, m);
    *count = _mm512_mask_add_epi32(*count, over, *count, _mm512_set1_epi32(1));
}

INLINE __m256 eight_of(const floats s[1])
{
    return _mm256_add_ps(_mm512_castps512_ps256(s[0]), _mm512_extractf32x8_ps(s[0], 1));
}

INLINE uint32_t largest(ints x)
{
    return _mm512_reduce_max_epu32(x);
}

INLINE size_t total(ints x)
{
    return (size_t)_mm512_reduce_add_epi32(x);
}

INLINE ints code2(ints sign, floats m, floats t)
{
    return _mm512_mask_or_epi32(sign, _mm512_cmp_ps_mask(m, t, _CMP_GT_OQ), sign, _mm512_set1_epi32(1));
}

INLINE uint16_t signs(floats x)
{
    return (uint16_t)_mm512_movepi32_mask(_mm512_castps_si512(x));
}

INLINE void narrow16(ints pairs, uint8_t *codes)
{
    _mm256_storeu_si256((__m256i *)codes, _mm512_cvtepi16_epi8(pairs));
}

INLINE void narrow32(ints fours, uint8_t *codes)
{
    _mm_storeu_si128((__m128i *)codes, _mm512_cvtepi32_epi8(fours));
}

INLINE table table4(const float *levels)
{
    return _mm512_loadu_ps(levels);
}

INLINE table table2(const float *levels)
{
    return _mm512_broadcast_f32x4(_mm_loadu_ps(levels));
}

INLINE table table1(const float *levels)
{
    return _mm512_mask_blend_ps(0xaaaa, _mm512_set1_ps(levels[0]), _mm512_set1_ps(levels[1]));
}

/* 16 codes to levels. The permutation uses the low four bits of an index. */
INLINE floats look_up4(const uint8_t *p, table t)
{
    uint32_t low, high;
    memcpy(&low, p, 4);
    memcpy(&high, p + 4, 4);
    ints word = _mm512_inserti64x4(_mm512_set1_epi32((int)low), _mm256_set1_epi32((int)high), 1);
    word = _mm512_srlv_epi32(word, _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28));
    return _mm512_permutexvar_ps(word, t);
}

INLINE floats look_up2(const uint8_t *p, table t)
{
    uint32_t all;
    memcpy(&all, p, 4);
    ints word = _mm512_srlv_epi32(_mm512_set1_epi32((int)all),
                                  _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30));
    return _mm512_permutexvar_ps(word, t);
}

INLINE floats look_up1(const uint8_t *p, table t)
{
    uint16_t ones;
    memcpy(&ones, p, 2);
    return _mm512_mask_blend_ps(ones, _mm512_moveldup_ps(t), _mm512_movehdup_ps(t));
}

#include "compress/lowbit/lowbit_body.h"

const struct lowbit_kernels lowbit_avx512 = LOWBIT_KERNELS;
#endif
