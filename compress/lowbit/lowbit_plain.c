#include <string.h>

#include "common/base/float_bits.h"
#include "compress/codec_simd.h"
#include "compress/lowbit/lowbit.h"

enum { LANES = 16 };

static inline uint32_t magnitude_bits(float x)
{
    return float_bits(x) & 0x7fffffffu;
}

static inline float magnitude(float x)
{
    float most = float_of_bits(magnitude_bits(x));
    return most < LOWBIT_SUM_MAX ? most : LOWBIT_SUM_MAX;
}

static inline uint8_t sign_of(float x)
{
    return (uint8_t)(float_bits(x) >> 31);
}

static uint32_t absmax(const float *x, size_t n)
{
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = magnitude_bits(x[i]);
        most = bits > most ? bits : most;
    }
    return most;
}

static float fold(float s[LANES])
{
    for (size_t half = LANES / 2; half; half /= 2)
        for (size_t j = 0; j < half; j++) s[j] = s[j] + s[j + half];
    return s[0];
}

static float abs_sum(const float *x, size_t n)
{
    float s[LANES] = {0};
    for (size_t i = 0; i < n; i++) s[i % LANES] = s[i % LANES] + magnitude(x[i]);
    return fold(s);
}

static float abs_sum_above(const float *x, size_t n, float threshold, size_t *above_p)
{
    float s[LANES] = {0};
    size_t above = 0;
    for (size_t i = 0; i < n; i++) {
        float m = magnitude(x[i]);
        if (!(m > threshold)) continue;
        s[i % LANES] = s[i % LANES] + m;
        above++;
    }
    *above_p = above;
    return fold(s);
}

/* Adding 1.5 * 2^23 leaves the nearest integer in the low bits. */
static void pack_int4(const float *x, size_t n, float factor, uint8_t *codes)
{
    memset(codes, 0, (n + 1) / 2);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = float_bits(x[i] * factor + 0x1.8p23f);
        codes[i / 2] |= (uint8_t)((bits & 15) << i % 2 * 4);
    }
}

static void pack_2bit(const float *x, size_t n, float threshold, uint8_t *codes)
{
    memset(codes, 0, (n + 3) / 4);
    for (size_t i = 0; i < n; i++) {
        uint32_t code = (uint32_t)sign_of(x[i]) << 1 | (magnitude(x[i]) > threshold);
        codes[i / 4] |= (uint8_t)(code << i % 4 * 2);
    }
}

static void pack_1bit(const float *x, size_t n, uint8_t *codes)
{
    memset(codes, 0, (n + 7) / 8);
    for (size_t i = 0; i < n; i++) codes[i / 8] |= (uint8_t)(sign_of(x[i]) << i % 8);
}

static inline float entry(const uint8_t *codes, size_t i, size_t bits, const float *table)
{
    return table[codes[i * bits / 8] >> i * bits % 8 & ((1u << bits) - 1)];
}

#define EXPAND_AND_ADD(bits)                                                                                           \
    static void expand##bits(const uint8_t *codes, size_t n, const float *table, float *out)                           \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i++) out[i] = entry(codes, i, bits, table);                                          \
    }                                                                                                                  \
    static void add##bits(const uint8_t *codes, size_t n, const float *table, float *out)                              \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i++) out[i] = out[i] + entry(codes, i, bits, table);                                 \
    }
EXPAND_AND_ADD(4)
EXPAND_AND_ADD(2)
EXPAND_AND_ADD(1)

const struct lowbit_kernels lowbit_plain = LOWBIT_KERNELS;

const struct lowbit_kernels *lowbit_kernels(void)
{
#if defined(__x86_64__)
    switch (codec_simd_level()) {
    case CODEC_SIMD_AVX512: return &lowbit_avx512;
    case CODEC_SIMD_AVX2: return &lowbit_avx2;
    default: break;
    }
#endif
    return &lowbit_plain;
}
