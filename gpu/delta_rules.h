/* Quantization of single delta values (docs/codecs.md), shared by the GPU kernels and the CPU reference. Each operation
 * is exact or rounded once to fp32, so the results have the codecs' bits. */
#ifndef GPU_DELTA_RULES_H
#define GPU_DELTA_RULES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/tensor/delta_format.h"

#ifdef __CUDACC__
#define RULE static __device__ __forceinline__
#else
#define RULE static inline
#endif

#define RULE_MAGNITUDE 0x7fffffffu
#define RULE_INFINITY 0x7f800000u
#define RULE_SUM_MAX 0x1p100f    /* sums of 2bit and 1bit clamp magnitudes to this */
#define RULE_SCALE_MIN 0x1p-110f /* blocks below are sent as zeros: their levels could be denormal */
#define RULE_INT8_MIN 0x1p-119f

RULE uint32_t rule_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

RULE float rule_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

RULE uint32_t rule_magnitude(float x)
{
    return rule_bits(x) & RULE_MAGNITUDE;
}

RULE uint32_t rule_sign(float x)
{
    return rule_bits(x) >> 31;
}

/* ---- bf16 -------------------------------------------------------------------------------------------------------- */

RULE uint16_t rule_bf16(float x)
{
    uint32_t bits = rule_bits(x), up = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(up - ((up & 0x7fffu) == 0x7f80u)); /* infinity becomes the largest finite value */
}

RULE float rule_bf16_value(uint16_t half)
{
    return rule_float((uint32_t)half << 16);
}

/* ---- chunks of top-k --------------------------------------------------------------------------------------------- */

/* Mantissa bits of a scale. */
RULE unsigned rule_mantissa(enum piece_kind kind)
{
    return kind == PIECE_SIGN ? 4 : kind == PIECE_TWO_LEVELS ? 5 : kind == PIECE_BYTES ? 7 : 0;
}

/* The nearest code, halves up, at most the largest finite one. */
RULE uint32_t rule_scale_code(unsigned mantissa, uint32_t bits)
{
    unsigned drop = 23 - mantissa;
    uint32_t code = (bits + (1u << (drop - 1))) >> drop, end = 255u << mantissa;
    return code < end ? code : end - 1;
}

RULE float rule_scale(unsigned mantissa, uint32_t code)
{
    return rule_float(code << (23 - mantissa));
}

/* The smallest scale that is sent, 2^-100. */
RULE uint32_t rule_scale_least(unsigned mantissa)
{
    return 27u << mantissa;
}

/* PIECE_BYTES: |x| in 128ths of the scale, minus one. */
RULE uint32_t rule_byte(uint32_t magnitude, float scale)
{
    float m = nearbyintf(rule_float(magnitude) / scale * 128.0f);
    m = m < 1.0f ? 1.0f : m > 128.0f ? 128.0f : m;
    return (uint32_t)m - 1;
}

/* PIECE_HALF: the 14 bits of |x| / 2^exponent as a positive fp16 below 2; never 0, never 2. */
RULE uint32_t rule_half(uint32_t magnitude, uint32_t exponent)
{
    int32_t moved = (int32_t)magnitude - ((int32_t)exponent - 127) * (1 << 23);
    if (moved < (100 << 23)) return 1;
    uint32_t bits = (uint32_t)moved, half;
    if (bits < (113u << 23)) /* denormal: its step 2^-24 is the last bit of numbers between 1/2 and 1 */
        half = rule_bits(rule_float(bits) + 0.5f) - rule_bits(0.5f);
    else
        half = ((bits + 0xfffu + (bits >> 13 & 1)) >> 13) - (112u << 10);
    return half < 1 ? 1 : half > 0x3fff ? 0x3fff : half;
}

/* The code of a selected x, sign in bit 0. code0, scale: code and value of scale[0]. split: with TWO_LEVELS, larger
 * magnitudes take scale[1]. */
RULE uint32_t rule_chosen(enum piece_kind kind, float x, uint32_t split, uint32_t code0, float scale)
{
    uint32_t magnitude = rule_magnitude(x), rest = 0;
    switch (kind) {
    case PIECE_TWO_LEVELS: rest = magnitude > split; break;
    case PIECE_BYTES: rest = rule_byte(magnitude, scale); break;
    case PIECE_HALF: rest = rule_half(magnitude, code0); break;
    default: break;
    }
    return rest << 1 | rule_sign(x);
}

/* The value of that code; scale1: value of scale[1]. */
RULE float rule_chosen_value(enum piece_kind kind, uint32_t code, float scale, float scale1)
{
    uint32_t rest = code >> 1;
    float x = scale;
    switch (kind) {
    case PIECE_TWO_LEVELS: x = rest ? scale1 : scale; break;
    case PIECE_BYTES: x = (float)(rest + 1) * (scale * 0x1p-7f); break;
    case PIECE_HALF: x = rule_float(rest << 13) * 0x1p112f * scale; break;
    default: break;
    }
    return code & 1 ? -x : x;
}

/* ---- blocks of the quantizers ------------------------------------------------------------------------------------ */

RULE unsigned rule_code_bits(enum piece_kind kind)
{
    return kind == PIECE_INT8 ? 8 : kind == PIECE_2BIT ? 2 : kind == PIECE_1BIT ? 1 : 4;
}

RULE float rule_capped(float x)
{
    float m = rule_float(rule_magnitude(x));
    return m < RULE_SUM_MAX ? m : RULE_SUM_MAX;
}

/* "e8m8": the 16 bits of a positive fp32 pattern below the sign. */
RULE float rule_e8m8(uint32_t code)
{
    return rule_float(code << 15);
}

RULE uint32_t rule_e8m8_nearest(float x)
{
    uint32_t bits = rule_bits(x);
    return (bits + 0x3fffu + (bits >> 15 & 1)) >> 15;
}

/* A block: its head and its quantization parameters. */
struct rule_block {
    uint32_t scale[2];
    uint32_t zero;   /* sent as zeros */
    float factor;    /* int8, int4: values are multiplied by it before rounding */
    float threshold; /* 2bit */
    float low, high; /* levels; int8, int4: high is the scale */
};

/* int8, int4: the block of the largest magnitude `most` (bits). */
RULE struct rule_block rule_block_of(enum piece_kind kind, uint32_t most)
{
    struct rule_block b;
    memset(&b, 0, sizeof b);
    float largest = rule_float(most);
    b.zero = largest < (kind == PIECE_INT8 ? RULE_INT8_MIN : RULE_SCALE_MIN);
    if (b.zero) return b;
    if (kind == PIECE_INT8) {
        uint32_t bits = rule_bits(largest / 127.0f);
        b.scale[0] = bits > 0x7c010203u ? 0x7c010203u : bits; /* FLT_MAX / 127 rounds up */
        b.high = rule_float(b.scale[0]);
        b.factor = 127.0f / largest;
    } else {
        uint32_t code = (rule_bits(largest / 7.0f) + 0x7fffu) >> 15;
        b.scale[0] = code > 0xfc24u ? 0xfc24u : code;
        b.high = rule_e8m8(b.scale[0]);
        b.factor = 1.0f / b.high;
    }
    return b;
}

/* 1bit: the block of a mean magnitude. */
RULE struct rule_block rule_block_1bit(float mean)
{
    struct rule_block b;
    memset(&b, 0, sizeof b);
    b.zero = mean < RULE_SCALE_MIN;
    if (b.zero) return b;
    b.scale[0] = rule_e8m8_nearest(mean);
    b.high = rule_e8m8(b.scale[0]);
    return b;
}

/* 2bit: the block of the means below and above the threshold. */
RULE struct rule_block rule_block_2bit(float low, float high)
{
    struct rule_block b;
    memset(&b, 0, sizeof b);
    b.scale[0] = rule_e8m8_nearest(high);
    b.high = rule_e8m8(b.scale[0]);
    uint32_t ratio = (uint32_t)(low / b.high * 256.0f + 0.5f);
    b.scale[1] = ratio > 255 ? 255 : ratio;
    b.low = b.high * ((float)b.scale[1] * 0x1p-8f);
    b.threshold = 0.5f * (b.low + b.high);
    return b;
}

/* The levels of a block from its head. */
RULE struct rule_block rule_block_of_head(enum piece_kind kind, const uint32_t scale[2])
{
    struct rule_block b;
    memset(&b, 0, sizeof b);
    if (kind == PIECE_INT8) {
        b.high = rule_float(scale[0]);
    } else {
        b.high = rule_e8m8(scale[0]);
        b.low = b.high * ((float)scale[1] * 0x1p-8f);
    }
    return b;
}

/* Code i in the bytes of a block. */
RULE uint32_t rule_code_at(const uint8_t *bytes, unsigned bits, size_t i)
{
    return (uint32_t)bytes[i * bits / 8] >> i * bits % 8 & ((1u << bits) - 1);
}

/* The code of x in a block that is not sent as zeros; int8 in two's complement. Adding 1.5 * 2^23 leaves the nearest
 * integer in the low bits. */
RULE uint32_t rule_code(enum piece_kind kind, const struct rule_block *b, float x)
{
    switch (kind) {
    case PIECE_INT8: return rule_bits(x * b->factor + 0x1.8p23f) & 255;
    case PIECE_INT4: return rule_bits(x * b->factor + 0x1.8p23f) & 15;
    case PIECE_2BIT: return rule_sign(x) << 1 | (rule_capped(x) > b->threshold);
    default: return rule_sign(x); /* PIECE_1BIT */
    }
}

RULE float rule_code_value(enum piece_kind kind, const struct rule_block *b, uint32_t code)
{
    float level;
    switch (kind) {
    case PIECE_INT8: return (float)(int32_t)((code ^ 128) - 128) * b->high;
    case PIECE_INT4: return (float)((int32_t)(code ^ 8) - 8) * b->high;
    case PIECE_2BIT: level = code & 1 ? b->high : b->low; return code & 2 ? -level : level;
    default: return code & 1 ? -b->high : b->high; /* PIECE_1BIT */
    }
}

#endif
