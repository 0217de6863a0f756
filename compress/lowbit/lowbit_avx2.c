/* AVX2 forms of lowbit_plain.c. Packing takes 32 values at a time; lowbit_plain packs the rest. */
#include "compress/lowbit/lowbit.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define TARGET __attribute__((target("avx2")))
#define INLINE TARGET static inline __attribute__((always_inline))

enum { GROUP = 32 };

INLINE __m256i magnitude_bits(__m256 x)
{
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

INLINE __m256 magnitude(__m256 x)
{
    return _mm256_min_ps(_mm256_castsi256_ps(magnitude_bits(x)), _mm256_set1_ps(LOWBIT_SUM_MAX));
}

TARGET static uint32_t absmax(const float *x, size_t n)
{
    __m256i a = _mm256_setzero_si256(), b = a;
    size_t i = 0;
    for (; n - i >= 16; i += 16) {
        a = _mm256_max_epu32(a, magnitude_bits(_mm256_loadu_ps(x + i)));
        b = _mm256_max_epu32(b, magnitude_bits(_mm256_loadu_ps(x + i + 8)));
    }
    uint32_t lanes[8], most = i < n ? lowbit_plain.absmax(x + i, n - i) : 0;
    _mm256_storeu_si256((__m256i *)lanes, _mm256_max_epu32(a, b));
    for (int k = 0; k < 8; k++) most = lanes[k] > most ? lanes[k] : most;
    return most;
}

INLINE float fold(__m256 low, __m256 high)
{
    __m256 eight = _mm256_add_ps(low, high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* Zeros do not change a sum of magnitudes, so they pad the last values. */
TARGET static float abs_sum(const float *x, size_t n)
{
    __m256 low = _mm256_setzero_ps(), high = low;
    size_t i = 0;
    for (; n - i >= 16; i += 16) {
        low = _mm256_add_ps(low, magnitude(_mm256_loadu_ps(x + i)));
        high = _mm256_add_ps(high, magnitude(_mm256_loadu_ps(x + i + 8)));
    }
    if (i < n) {
        float padded[16] = {0};
        memcpy(padded, x + i, 4 * (n - i));
        low = _mm256_add_ps(low, magnitude(_mm256_loadu_ps(padded)));
        high = _mm256_add_ps(high, magnitude(_mm256_loadu_ps(padded + 8)));
    }
    return fold(low, high);
}

/* *sum += |x| where |x| > t; *count is incremented there. */
INLINE void add_above(const float *x, __m256 t, __m256 *sum, __m256i *count)
{
    __m256 m = magnitude(_mm256_loadu_ps(x));
    __m256 over = _mm256_cmp_ps(m, t, _CMP_GT_OQ);
    *sum = _mm256_add_ps(*sum, _mm256_and_ps(m, over));
    *count = _mm256_sub_epi32(*count, _mm256_castps_si256(over));
}

/* threshold >= 0, so padding zeros are never above it. */
TARGET static float abs_sum_above(const float *x, size_t n, float threshold, size_t *above_p)
{
    const __m256 t = _mm256_set1_ps(threshold);
    __m256 low = _mm256_setzero_ps(), high = low;
    __m256i count = _mm256_setzero_si256();
    size_t i = 0;
    for (; n - i >= 16; i += 16) {
        add_above(x + i, t, &low, &count);
        add_above(x + i + 8, t, &high, &count);
    }
    if (i < n) {
        float padded[16] = {0};
        memcpy(padded, x + i, 4 * (n - i));
        add_above(padded, t, &low, &count);
        add_above(padded + 8, t, &high, &count);
    }
    uint32_t lanes[8];
    size_t above = 0;
    _mm256_storeu_si256((__m256i *)lanes, count);
    for (int k = 0; k < 8; k++) above += lanes[k];
    *above_p = above;
    return fold(low, high);
}

/* The low bytes of 32 small integers, in order. The two narrowings leave them in groups of four, transposed. */
INLINE __m256i bytes_of(const __m256i q[4])
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i low = _mm256_packs_epi32(q[0], q[1]), high = _mm256_packs_epi32(q[2], q[3]);
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
}

INLINE void store_nibbles(const __m256i q[4], uint8_t *codes)
{
    __m256i bytes = _mm256_and_si256(bytes_of(q), _mm256_set1_epi8(15));
    __m256i pairs = _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(0x1001)); /* first + 16 * second */
    pairs = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0x08);
    _mm_storeu_si128((__m128i *)codes, _mm256_castsi256_si128(pairs));
}

INLINE void int4_group(const float *x, __m256 factor, uint8_t *codes)
{
    const __m256 shift = _mm256_set1_ps(0x1.8p23f);
    __m256i q[4];
    for (int k = 0; k < 4; k++) {
        __m256 shifted = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * k), factor), shift);
        q[k] = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(shift));
    }
    store_nibbles(q, codes);
}

TARGET static void pack_int4(const float *x, size_t n, float factor, uint8_t *codes)
{
    const __m256 f = _mm256_set1_ps(factor);
    size_t i = 0;
    for (; n - i >= GROUP; i += GROUP) int4_group(x + i, f, codes + i / 2);
    if (i < n) lowbit_plain.pack_int4(x + i, n - i, factor, codes + i / 2);
}

TARGET static void pack_2bit(const float *x, size_t n, float threshold, uint8_t *codes)
{
    const __m256 t = _mm256_set1_ps(threshold);
    size_t i = 0;
    for (; n - i >= GROUP; i += GROUP) {
        __m256i q[4];
        for (int k = 0; k < 4; k++) {
            __m256 v = _mm256_loadu_ps(x + i + 8 * (size_t)k);
            __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(_mm256_castps_si256(v), 31), 1);
            __m256i over = _mm256_castps_si256(_mm256_cmp_ps(magnitude(v), t, _CMP_GT_OQ));
            q[k] = _mm256_sub_epi32(sign, over);
        }
        __m256i pairs = _mm256_maddubs_epi16(bytes_of(q), _mm256_set1_epi16(0x0401));
        __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x00100001));
        fours = _mm256_packus_epi16(_mm256_packus_epi32(fours, fours), fours);
        uint32_t low = (uint32_t)_mm256_extract_epi32(fours, 0), high = (uint32_t)_mm256_extract_epi32(fours, 4);
        memcpy(codes + i / 4, &low, 4);
        memcpy(codes + i / 4 + 4, &high, 4);
    }
    if (i < n) lowbit_plain.pack_2bit(x + i, n - i, threshold, codes + i / 4);
}

TARGET static void pack_1bit(const float *x, size_t n, uint8_t *codes)
{
    size_t i = 0;
    for (; n - i >= 8; i += 8) codes[i / 8] = (uint8_t)_mm256_movemask_ps(_mm256_loadu_ps(x + i));
    if (i < n) lowbit_plain.pack_1bit(x + i, n - i, codes + i / 8);
}

/* 8 codes to table entries. The permutation uses the low three bits of an index; for 4-bit codes the fourth selects the
 * half. */
INLINE __m256 look_up4(const uint8_t *p, __m256 low, __m256 high)
{
    uint32_t all;
    memcpy(&all, p, 4);
    __m256i index = _mm256_srlv_epi32(_mm256_set1_epi32((int)all), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    __m256 half = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index), _mm256_permutevar8x32_ps(high, index), half);
}

INLINE __m256 look_up2(const uint8_t *p, __m256 table)
{
    uint16_t all;
    memcpy(&all, p, 2);
    return _mm256_permutevar8x32_ps(
        table, _mm256_srlv_epi32(_mm256_set1_epi32(all), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)));
}

INLINE __m256 look_up1(const uint8_t *p, __m256 table)
{
    return _mm256_permutevar8x32_ps(
        table, _mm256_srlv_epi32(_mm256_set1_epi32(*p), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
}

TARGET static void expand4(const uint8_t *codes, size_t n, const float *table, float *out)
{
    const __m256 low = _mm256_loadu_ps(table), high = _mm256_loadu_ps(table + 8);
    size_t i = 0;
    for (; n - i >= 8; i += 8) _mm256_storeu_ps(out + i, look_up4(codes + i / 2, low, high));
    if (i < n) lowbit_plain.expand4(codes + i / 2, n - i, table, out + i);
}

TARGET static void add4(const uint8_t *codes, size_t n, const float *table, float *out)
{
    const __m256 low = _mm256_loadu_ps(table), high = _mm256_loadu_ps(table + 8);
    size_t i = 0;
    for (; n - i >= 8; i += 8)
        _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_loadu_ps(out + i), look_up4(codes + i / 2, low, high)));
    if (i < n) lowbit_plain.add4(codes + i / 2, n - i, table, out + i);
}

INLINE __m256 four_times2(const float *table)
{
    return _mm256_broadcast_ps((const __m128 *)table);
}

INLINE __m256 two_times4(const float *table)
{
    return _mm256_setr_ps(table[0], table[1], table[0], table[1], table[0], table[1], table[0], table[1]);
}

#define EXPAND_AND_ADD(bits, table8)                                                                                   \
    TARGET static void expand##bits(const uint8_t *codes, size_t n, const float *table, float *out)                    \
    {                                                                                                                  \
        const __m256 t = table8(table);                                                                                \
        size_t i = 0;                                                                                                  \
        for (; n - i >= 8; i += 8) _mm256_storeu_ps(out + i, look_up##bits(codes + i * bits / 8, t));                  \
        if (i < n) lowbit_plain.expand##bits(codes + i * bits / 8, n - i, table, out + i);                             \
    }                                                                                                                  \
    TARGET static void add##bits(const uint8_t *codes, size_t n, const float *table, float *out)                       \
    {                                                                                                                  \
        const __m256 t = table8(table);                                                                                \
        size_t i = 0;                                                                                                  \
        for (; n - i >= 8; i += 8)                                                                                     \
            _mm256_storeu_ps(out + i,                                                                                  \
                             _mm256_add_ps(_mm256_loadu_ps(out + i), look_up##bits(codes + i * bits / 8, t)));         \
        if (i < n) lowbit_plain.add##bits(codes + i * bits / 8, n - i, table, out + i);                                \
    }
EXPAND_AND_ADD(2, four_times2)
EXPAND_AND_ADD(1, two_times4)

const struct lowbit_kernels lowbit_avx2 = {.absmax = absmax,
                                           .abs_sum = abs_sum,
                                           .abs_sum_above = abs_sum_above,
                                           .pack_int4 = pack_int4,
                                           .pack_2bit = pack_2bit,
                                           .pack_1bit = pack_1bit,
                                           .expand4 = expand4,
                                           .expand2 = expand2,
                                           .expand1 = expand1,
                                           .add4 = add4,
                                           .add2 = add2,
                                           .add1 = add1};
#endif
