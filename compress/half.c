#include "compress/half.h"

#include <string.h>

#include "common/base/float_bits.h"
#include "compress/codec_simd.h"

static inline __attribute__((always_inline)) float bf16_value(uint16_t half)
{
    return float_of_bits((uint32_t)half << 16);
}

static inline __attribute__((always_inline)) uint16_t bf16_of(float x)
{
    uint32_t bits = float_bits(x);
    uint32_t up = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16; /* ties to even */
    up -= (up & 0x7fffu) == 0x7f80u;                         /* infinity becomes the largest finite value */
    return (uint16_t)up;
}

/* A normal number changes its exponent bias; a denormal is a multiple of 2^-24. The function computes both and masks
 * one out: a branch would keep the compiler from vectorizing the loop. */
static inline __attribute__((always_inline)) float fp16_value(uint16_t half)
{
    uint32_t rest = half & 0x7fffu, normal = (rest << 13) + (112u << 23);
    uint32_t denormal = float_bits((float)(int32_t)rest * 0x1p-24f);
    uint32_t which = 0u - (rest < 0x0400u);
    return float_of_bits((denormal & which) | (normal & ~which) | (uint32_t)(half & 0x8000u) << 16);
}

/* Adding a number below 2^-14 to 0.5 rounds it to a multiple of 2^-24, an fp16 denormal, in the low bits. */
static inline __attribute__((always_inline)) uint16_t fp16_of(float x)
{
    uint32_t bits = float_bits(x), rest = bits & 0x7fffffffu;
    uint32_t normal = (rest + 0xfffu + (rest >> 13 & 1)) >> 13;
    normal = normal < (143u << 10) ? normal - (112u << 10) : 0x7bffu; /* from 2^16 on: 65504 */
    uint32_t denormal = float_bits(float_of_bits(rest) + 0.5f) - 0x3f000000u;
    return (uint16_t)((rest < 0x38800000u ? denormal : normal) | (bits >> 16 & 0x8000u));
}

/* The functions of one format, from its two conversions and its exponent mask. */
#define FORMAT(name, exponent)                                                                                         \
    CODEC_SIMD_OF(, name##_narrow, (const float *restrict x, size_t n, uint8_t *restrict dst), (x, n, dst))            \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i++) {                                                                               \
            uint16_t half = name##_of(x[i]);                                                                           \
            memcpy(dst + 2 * i, &half, 2);                                                                             \
        }                                                                                                              \
    }                                                                                                                  \
    CODEC_SIMD_OF(, name##_widen, (const uint8_t *restrict src, size_t n, float *restrict x), (src, n, x))             \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i++) {                                                                               \
            uint16_t half;                                                                                             \
            memcpy(&half, src + 2 * i, 2);                                                                             \
            x[i] = name##_value(half);                                                                                 \
        }                                                                                                              \
    }                                                                                                                  \
    CODEC_SIMD_OF(, name##_axpy, (float a, const uint8_t *restrict src, size_t n, float *restrict acc),                \
                  (a, src, n, acc))                                                                                    \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i++) {                                                                               \
            uint16_t half;                                                                                             \
            memcpy(&half, src + 2 * i, 2);                                                                             \
            acc[i] = acc[i] + a * name##_value(half);                                                                  \
        }                                                                                                              \
    }                                                                                                                  \
    CODEC_SIMD(name##_scan, (const uint8_t *restrict src, size_t n, uint32_t *bad), (src, n, bad))                     \
    {                                                                                                                  \
        uint16_t any = 0;                                                                                              \
        for (size_t i = 0; i < n; i++) {                                                                               \
            uint16_t half;                                                                                             \
            memcpy(&half, src + 2 * i, 2);                                                                             \
            any |= (uint16_t)((half & (exponent)) == (exponent));                                                      \
        }                                                                                                              \
        *bad = any;                                                                                                    \
    }                                                                                                                  \
    bool name##_finite(const uint8_t *src, size_t n)                                                                   \
    {                                                                                                                  \
        uint32_t bad;                                                                                                  \
        name##_scan(src, n, &bad);                                                                                     \
        return !bad;                                                                                                   \
    }
FORMAT(bf16, 0x7f80u)
FORMAT(fp16, 0x7c00u)
