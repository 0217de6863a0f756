/* AVX2 forms of lowbit_plain.c: the parts of lowbit_body.h that depend on the instruction set. */
#include "compress/lowbit/lowbit.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define TARGET __attribute__((target("avx2")))
#define INLINE TARGET static inline __attribute__((always_inline))
#define MM(name) _mm256_##name
#define SI(name) _mm256_##name##_si256

typedef __m256 floats;
typedef __m256i ints;
typedef struct {
    floats low, high; /* high: of 16 levels only */
} table;

INLINE floats as_floats(ints x)
{
    return _mm256_castsi256_ps(x);
}

INLINE ints in_order(ints bytes)
{
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

INLINE void add_above(floats m, floats t, floats *sum, ints *count)
{
    floats over = _mm256_cmp_ps(m, t, _CMP_GT_OQ);
    *sum = _mm256_add_ps(*sum, _mm256_and_ps(m, over));
    *count = _mm256_sub_epi32(*count, _mm256_castps_si256(over));
}

INLINE __m256 eight_of(const floats s[2])
{
    return _mm256_add_ps(s[0], s[1]);
}

INLINE uint32_t largest(ints x)
{
    uint32_t lanes[8], most = 0;
    memcpy(lanes, &x, sizeof lanes);
    for (int k = 0; k < 8; k++) most = lanes[k] > most ? lanes[k] : most;
    return most;
}

INLINE size_t total(ints x)
{
    uint32_t lanes[8], sum = 0;
    memcpy(lanes, &x, sizeof lanes);
    for (int k = 0; k < 8; k++) sum += lanes[k];
    return sum;
}

INLINE ints code2(ints sign, floats m, floats t)
{
    return _mm256_sub_epi32(sign, _mm256_castps_si256(_mm256_cmp_ps(m, t, _CMP_GT_OQ)));
}

INLINE uint16_t signs(floats x)
{
    return (uint16_t)_mm256_movemask_ps(x);
}

INLINE void narrow16(ints pairs, uint8_t *codes)
{
    pairs = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0x08);
    _mm_storeu_si128((__m128i *)codes, _mm256_castsi256_si128(pairs));
}

INLINE void narrow32(ints fours, uint8_t *codes)
{
    fours = _mm256_packus_epi16(_mm256_packus_epi32(fours, fours), fours);
    uint32_t low = (uint32_t)_mm256_extract_epi32(fours, 0), high = (uint32_t)_mm256_extract_epi32(fours, 4);
    memcpy(codes, &low, 4);
    memcpy(codes + 4, &high, 4);
}

INLINE table table4(const float *levels)
{
    return (table){_mm256_loadu_ps(levels), _mm256_loadu_ps(levels + 8)};
}

INLINE table table2(const float *levels)
{
    return (table){.low = _mm256_broadcast_ps((const __m128 *)levels)};
}

INLINE table table1(const float *levels)
{
    return (table){.low = _mm256_castpd_ps(_mm256_broadcast_sd((const double *)levels))};
}

/* 8 codes to levels. The permutation uses the low three bits of an index; for 4-bit codes the fourth selects the half.
 */
INLINE floats look_up4(const uint8_t *p, table t)
{
    uint32_t all;
    memcpy(&all, p, 4);
    ints index = _mm256_srlv_epi32(_mm256_set1_epi32((int)all), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    floats half = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(t.low, index), _mm256_permutevar8x32_ps(t.high, index), half);
}

INLINE floats look_up2(const uint8_t *p, table t)
{
    uint16_t all;
    memcpy(&all, p, 2);
    return _mm256_permutevar8x32_ps(
        t.low, _mm256_srlv_epi32(_mm256_set1_epi32(all), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)));
}

INLINE floats look_up1(const uint8_t *p, table t)
{
    return _mm256_permutevar8x32_ps(
        t.low, _mm256_srlv_epi32(_mm256_set1_epi32(*p), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
}

#include "compress/lowbit/lowbit_body.h"

const struct lowbit_kernels lowbit_avx2 = LOWBIT_KERNELS;
#endif
