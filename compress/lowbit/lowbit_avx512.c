/* AVX-512 forms of lowbit_plain.c. Packing takes 64 values at a time; the last ones go through a padded copy. */
#include "compress/lowbit/lowbit.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define INLINE TARGET static inline __attribute__((always_inline))

enum { GROUP = 64 };

INLINE __mmask16 lanes_of(size_t n)
{
    return n < 16 ? (__mmask16)((1u << n) - 1) : (__mmask16)0xffff;
}

INLINE __m512i magnitude_bits(__m512 x)
{
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

INLINE __m512 magnitude(__m512 x)
{
    return _mm512_min_ps(_mm512_castsi512_ps(magnitude_bits(x)), _mm512_set1_ps(LOWBIT_SUM_MAX));
}

TARGET static uint32_t absmax(const float *x, size_t n)
{
    __m512i a = _mm512_setzero_si512(), b = a;
    size_t i = 0;
    for (; n - i >= 32; i += 32) {
        a = _mm512_max_epu32(a, magnitude_bits(_mm512_loadu_ps(x + i)));
        b = _mm512_max_epu32(b, magnitude_bits(_mm512_loadu_ps(x + i + 16)));
    }
    for (; i < n; i += 16) a = _mm512_max_epu32(a, magnitude_bits(_mm512_maskz_loadu_ps(lanes_of(n - i), x + i)));
    return _mm512_reduce_max_epu32(_mm512_max_epu32(a, b));
}

INLINE float fold(__m512 s)
{
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

TARGET static float abs_sum(const float *x, size_t n)
{
    __m512 s = _mm512_setzero_ps();
    size_t i = 0;
    for (; n - i >= 16; i += 16) s = _mm512_add_ps(s, magnitude(_mm512_loadu_ps(x + i)));
    if (i < n) s = _mm512_add_ps(s, magnitude(_mm512_maskz_loadu_ps(lanes_of(n - i), x + i)));
    return fold(s);
}

TARGET static float abs_sum_above(const float *x, size_t n, float threshold, size_t *above_p)
{
    const __m512 t = _mm512_set1_ps(threshold);
    const __m512i one = _mm512_set1_epi32(1);
    __m512 s = _mm512_setzero_ps();
    __m512i above = _mm512_setzero_si512();
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 there = lanes_of(n - i);
        __m512 m = magnitude(_mm512_maskz_loadu_ps(there, x + i));
        __mmask16 over = _mm512_mask_cmp_ps_mask(there, m, t, _CMP_GT_OQ);
        s = _mm512_mask_add_ps(s, over, s, m);
        above = _mm512_mask_add_epi32(above, over, above, one);
    }
    *above_p = (size_t)_mm512_reduce_add_epi32(above);
    return fold(s);
}

/* The low bytes of 64 small integers, in order. The two narrowings leave them in groups of four, transposed. */
INLINE __m512i bytes_of(const __m512i q[4])
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i low = _mm512_packs_epi32(q[0], q[1]), high = _mm512_packs_epi32(q[2], q[3]);
    return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(low, high));
}

INLINE void store_nibbles(const __m512i q[4], uint8_t *codes)
{
    __m512i bytes = _mm512_and_si512(bytes_of(q), _mm512_set1_epi8(15));
    __m512i pairs = _mm512_maddubs_epi16(bytes, _mm512_set1_epi16(0x1001)); /* first + 16 * second */
    _mm256_storeu_si256((__m256i *)codes, _mm512_cvtepi16_epi8(pairs));
}

INLINE void int4_group(const float *x, __m512 factor, uint8_t *codes)
{
    const __m512 shift = _mm512_set1_ps(0x1.8p23f);
    __m512i q[4];
    for (int k = 0; k < 4; k++) {
        __m512 shifted = _mm512_add_ps(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * k), factor), shift);
        q[k] = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_castps_si512(shift));
    }
    store_nibbles(q, codes);
}

TARGET static void pack_int4(const float *x, size_t n, float factor, uint8_t *codes)
{
    const __m512 f = _mm512_set1_ps(factor);
    size_t i = 0;
    for (; n - i >= GROUP; i += GROUP) int4_group(x + i, f, codes + i / 2);
    if (i == n) return;
    float padded[GROUP] = {0};
    uint8_t last[GROUP / 2];
    memcpy(padded, x + i, 4 * (n - i));
    int4_group(padded, f, last);
    memcpy(codes + i / 2, last, (n - i + 1) / 2);
}

INLINE void two_bit_group(const float *x, __m512 threshold, uint8_t *codes)
{
    __m512i q[4];
    for (int k = 0; k < 4; k++) {
        __m512 v = _mm512_loadu_ps(x + 16 * k);
        __m512i sign = _mm512_slli_epi32(_mm512_srli_epi32(_mm512_castps_si512(v), 31), 1);
        __mmask16 over = _mm512_cmp_ps_mask(magnitude(v), threshold, _CMP_GT_OQ);
        q[k] = _mm512_mask_or_epi32(sign, over, sign, _mm512_set1_epi32(1));
    }
    __m512i pairs = _mm512_maddubs_epi16(bytes_of(q), _mm512_set1_epi16(0x0401));
    __m512i fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x00100001));
    _mm_storeu_si128((__m128i *)codes, _mm512_cvtepi32_epi8(fours));
}

TARGET static void pack_2bit(const float *x, size_t n, float threshold, uint8_t *codes)
{
    const __m512 t = _mm512_set1_ps(threshold);
    size_t i = 0;
    for (; n - i >= GROUP; i += GROUP) two_bit_group(x + i, t, codes + i / 4);
    if (i == n) return;
    float padded[GROUP] = {0};
    uint8_t last[GROUP / 4];
    memcpy(padded, x + i, 4 * (n - i));
    two_bit_group(padded, t, last);
    memcpy(codes + i / 4, last, (n - i + 3) / 4);
}

TARGET static void pack_1bit(const float *x, size_t n, uint8_t *codes)
{
    size_t i = 0;
    for (; n - i >= 16; i += 16) {
        uint16_t signs = (uint16_t)_mm512_movepi32_mask(_mm512_castps_si512(_mm512_loadu_ps(x + i)));
        memcpy(codes + i / 8, &signs, 2);
    }
    if (i == n) return;
    __m512 last = _mm512_maskz_loadu_ps(lanes_of(n - i), x + i);
    uint16_t signs = (uint16_t)_mm512_movepi32_mask(_mm512_castps_si512(last));
    memcpy(codes + i / 8, &signs, (n - i + 7) / 8);
}

/* 16 codes to table entries. The permutation uses the low four bits of an index. */
INLINE __m512 look_up4(const uint8_t *p, __m512 table)
{
    uint32_t low, high;
    memcpy(&low, p, 4);
    memcpy(&high, p + 4, 4);
    __m512i word = _mm512_inserti64x4(_mm512_set1_epi32((int)low), _mm256_set1_epi32((int)high), 1);
    word = _mm512_srlv_epi32(word, _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28));
    return _mm512_permutexvar_ps(word, table);
}

INLINE __m512 look_up2(const uint8_t *p, __m512 table)
{
    uint32_t all;
    memcpy(&all, p, 4);
    __m512i word = _mm512_srlv_epi32(_mm512_set1_epi32((int)all),
                                     _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30));
    return _mm512_permutexvar_ps(word, table);
}

INLINE __m512 look_up1(const uint8_t *p, __m512 table)
{
    uint16_t ones;
    memcpy(&ones, p, 2);
    return _mm512_mask_blend_ps(ones, _mm512_moveldup_ps(table), _mm512_movehdup_ps(table));
}

INLINE __m512 once16(const float *table)
{
    return _mm512_loadu_ps(table);
}

INLINE __m512 four_times4(const float *table)
{
    return _mm512_broadcast_f32x4(_mm_loadu_ps(table));
}

INLINE __m512 eight_times2(const float *table)
{
    return _mm512_mask_blend_ps(0xaaaa, _mm512_set1_ps(table[0]), _mm512_set1_ps(table[1]));
}

#define EXPAND_AND_ADD(bits, table16)                                                                                  \
    TARGET static void expand##bits(const uint8_t *codes, size_t n, const float *table, float *out)                    \
    {                                                                                                                  \
        const __m512 t = table16(table);                                                                               \
        size_t i = 0;                                                                                                  \
        for (; n - i >= 16; i += 16) _mm512_storeu_ps(out + i, look_up##bits(codes + i * bits / 8, t));                \
        if (i < n) lowbit_plain.expand##bits(codes + i * bits / 8, n - i, table, out + i);                             \
    }                                                                                                                  \
    TARGET static void add##bits(const uint8_t *codes, size_t n, const float *table, float *out)                       \
    {                                                                                                                  \
        const __m512 t = table16(table);                                                                               \
        size_t i = 0;                                                                                                  \
        for (; n - i >= 16; i += 16)                                                                                   \
            _mm512_storeu_ps(out + i,                                                                                  \
                             _mm512_add_ps(_mm512_loadu_ps(out + i), look_up##bits(codes + i * bits / 8, t)));         \
        if (i < n) lowbit_plain.add##bits(codes + i * bits / 8, n - i, table, out + i);                                \
    }
EXPAND_AND_ADD(4, once16)
EXPAND_AND_ADD(2, four_times4)
EXPAND_AND_ADD(1, eight_times2)

const struct lowbit_kernels lowbit_avx512 = {.absmax = absmax,
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
