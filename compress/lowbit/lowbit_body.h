/* The vector forms of lowbit_plain.c, once for all instruction sets. lowbit_avx2.c and lowbit_avx512.c include this
 * after they have defined:
 *
 *   TARGET, INLINE                   attributes of a function for this instruction set
 *   MM(name), SI(name)               an intrinsic of the vector length
 *   floats, ints, table              a vector of each, and a table of levels in registers
 *   as_floats, in_order              the bits of integers, and the order of bytes after two narrowings of four vectors
 *   add_above                        adds the magnitudes above a threshold, and counts them
 *   eight_of, largest, total         the ends of a sum of 16 lanes, of a maximum, of a count
 *   code2, signs                     the codes of 2bit, from the sign as 0 or 2, and of 1bit
 *   narrow16, narrow32               store the low byte of each
 *   table4 ..., look_up4 ...         codes to levels
 *
 * Packing takes GROUP values at a time; lowbit_plain packs the rest. Zeros pad the last values of a sum or a maximum of
 * magnitudes, which they do not change. */

enum { LANES = sizeof(floats) / sizeof(float), SUMS = 16 / LANES, GROUP = 4 * LANES, PAIR = 2 * LANES };

INLINE ints magnitude_bits(floats x)
{
    return SI(and)(SI(castps)(x), MM(set1_epi32)(0x7fffffff));
}

INLINE floats magnitude(floats x)
{
    return MM(min_ps)(as_floats(magnitude_bits(x)), MM(set1_ps)(LOWBIT_SUM_MAX));
}

TARGET static uint32_t absmax(const float *x, size_t n)
{
    ints a = SI(setzero)(), b = a;
    size_t i = 0;
    for (; n - i >= PAIR; i += PAIR) {
        a = MM(max_epu32)(a, magnitude_bits(MM(loadu_ps)(x + i)));
        b = MM(max_epu32)(b, magnitude_bits(MM(loadu_ps)(x + i + LANES)));
    }
    if (i < n) {
        float padded[PAIR] = {0};
        memcpy(padded, x + i, 4 * (n - i));
        a = MM(max_epu32)(a, magnitude_bits(MM(loadu_ps)(padded)));
        b = MM(max_epu32)(b, magnitude_bits(MM(loadu_ps)(padded + LANES)));
    }
    return largest(MM(max_epu32)(a, b));
}

INLINE float fold(const floats s[SUMS])
{
    __m256 eight = eight_of(s);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

INLINE void add_magnitudes(const float *x, floats s[SUMS])
{
    for (size_t k = 0; k < SUMS; k++) s[k] = MM(add_ps)(s[k], magnitude(MM(loadu_ps)(x + k * LANES)));
}

TARGET static float abs_sum(const float *x, size_t n)
{
    floats s[SUMS];
    size_t i = 0;
    for (size_t k = 0; k < SUMS; k++) s[k] = MM(setzero_ps)();
    for (; n - i >= 16; i += 16) add_magnitudes(x + i, s);
    if (i < n) {
        float padded[16] = {0};
        memcpy(padded, x + i, 4 * (n - i));
        add_magnitudes(padded, s);
    }
    return fold(s);
}

/* threshold >= 0, so padding zeros are never above it. */
TARGET static float abs_sum_above(const float *x, size_t n, float threshold, size_t *above_p)
{
    const floats t = MM(set1_ps)(threshold);
    floats s[SUMS];
    ints above = SI(setzero)();
    size_t i = 0;
    for (size_t k = 0; k < SUMS; k++) s[k] = MM(setzero_ps)();
    for (; n - i >= 16; i += 16)
        for (size_t k = 0; k < SUMS; k++) add_above(magnitude(MM(loadu_ps)(x + i + k * LANES)), t, &s[k], &above);
    if (i < n) {
        float padded[16] = {0};
        memcpy(padded, x + i, 4 * (n - i));
        for (size_t k = 0; k < SUMS; k++) add_above(magnitude(MM(loadu_ps)(padded + k * LANES)), t, &s[k], &above);
    }
    *above_p = total(above);
    return fold(s);
}

/* The low bytes of the small integers of four vectors, in order. */
INLINE ints bytes_of(const ints q[4])
{
    ints low = MM(packs_epi32)(q[0], q[1]), high = MM(packs_epi32)(q[2], q[3]);
    return in_order(MM(packs_epi16)(low, high));
}

TARGET static void pack_int4(const float *x, size_t n, float factor, uint8_t *codes)
{
    const floats f = MM(set1_ps)(factor), shift = MM(set1_ps)(0x1.8p23f);
    size_t i = 0;
    for (; n - i >= GROUP; i += GROUP) {
        ints q[4];
        for (size_t k = 0; k < 4; k++) {
            floats shifted = MM(add_ps)(MM(mul_ps)(MM(loadu_ps)(x + i + k * LANES), f), shift);
            q[k] = MM(sub_epi32)(SI(castps)(shifted), SI(castps)(shift));
        }
        ints bytes = SI(and)(bytes_of(q), MM(set1_epi8)(15));
        narrow16(MM(maddubs_epi16)(bytes, MM(set1_epi16)(0x1001)), codes + i / 2); /* first + 16 * second */
    }
    if (i < n) lowbit_plain.pack_int4(x + i, n - i, factor, codes + i / 2);
}

TARGET static void pack_2bit(const float *x, size_t n, float threshold, uint8_t *codes)
{
    const floats t = MM(set1_ps)(threshold);
    size_t i = 0;
    for (; n - i >= GROUP; i += GROUP) {
        ints q[4];
        for (size_t k = 0; k < 4; k++) {
            floats v = MM(loadu_ps)(x + i + k * LANES);
            q[k] = code2(MM(slli_epi32)(MM(srli_epi32)(SI(castps)(v), 31), 1), magnitude(v), t);
        }
        ints pairs = MM(maddubs_epi16)(bytes_of(q), MM(set1_epi16)(0x0401));
        narrow32(MM(madd_epi16)(pairs, MM(set1_epi32)(0x00100001)), codes + i / 4);
    }
    if (i < n) lowbit_plain.pack_2bit(x + i, n - i, threshold, codes + i / 4);
}

TARGET static void pack_1bit(const float *x, size_t n, uint8_t *codes)
{
    size_t i = 0;
    for (; n - i >= LANES; i += LANES) {
        uint16_t bits = signs(MM(loadu_ps)(x + i));
        memcpy(codes + i / 8, &bits, LANES / 8);
    }
    if (i < n) lowbit_plain.pack_1bit(x + i, n - i, codes + i / 8);
}

#define EXPAND_AND_ADD(bits)                                                                                           \
    TARGET static void expand##bits(const uint8_t *codes, size_t n, const float *levels, float *out)                   \
    {                                                                                                                  \
        const table t = table##bits(levels);                                                                           \
        size_t i = 0;                                                                                                  \
        for (; n - i >= LANES; i += LANES) MM(storeu_ps)(out + i, look_up##bits(codes + i * bits / 8, t));             \
        if (i < n) lowbit_plain.expand##bits(codes + i * bits / 8, n - i, levels, out + i);                            \
    }                                                                                                                  \
    TARGET static void add##bits(const uint8_t *codes, size_t n, const float *levels, float *out)                      \
    {                                                                                                                  \
        const table t = table##bits(levels);                                                                           \
        size_t i = 0;                                                                                                  \
        for (; n - i >= LANES; i += LANES)                                                                             \
            MM(storeu_ps)(out + i, MM(add_ps)(MM(loadu_ps)(out + i), look_up##bits(codes + i * bits / 8, t)));         \
        if (i < n) lowbit_plain.add##bits(codes + i * bits / 8, n - i, levels, out + i);                               \
    }
EXPAND_AND_ADD(4)
EXPAND_AND_ADD(2)
EXPAND_AND_ADD(1)
