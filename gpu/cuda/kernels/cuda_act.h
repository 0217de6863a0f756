/* Activations in kernels: fp32 or bf16 in memory, fp32 in registers. `bf16` and `width` are compile-time constants at
 * each call, so the device never branches on them. WIDE numbers take one or two loads of 16 bytes; index i is then a
 * multiple of WIDE, and the base is aligned to 16 bytes. */
#ifndef GPU_CUDA_ACT_H
#define GPU_CUDA_ACT_H

#include "gpu/cuda/kernels/cuda_kernel.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#else
#include <string.h>
#endif

enum { WIDE = CUDA_WIDE };

/* A kernel that is one call with the constant `width`: WIDE if `wide`, else 1. */
#define WIDE_KERNEL(name, args, threads, wide, call)                                                                   \
    ACT_KERNEL(name, args, threads)                                                                                    \
    {                                                                                                                  \
        if (wide) {                                                                                                    \
            const int width = WIDE;                                                                                    \
            call;                                                                                                      \
        } else {                                                                                                       \
            const int width = 1;                                                                                       \
            call;                                                                                                      \
        }                                                                                                              \
    }

#define LOG2_E 1.4426950408889634f

/* Rounds to nearest, ties to even. NaN stays NaN. */
DEVICE uint16_t bf16_of(float x)
{
#ifdef __CUDACC__
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}

DEVICE float bf16_value(uint32_t half)
{
    return rule_float(half << 16);
}

/* Loads the raw bits of WIDE numbers without converting them: bits[WIDE]; bf16 fills the first half. */
DEVICE void act_hold(const void *p, size_t i, const int bf16, uint32_t *bits)
{
    const int words = bf16 ? WIDE / 2 : WIDE;
    const char *from = (const char *)p + i * (bf16 ? sizeof(uint16_t) : sizeof(float));
#ifdef __CUDACC__
    UNROLL for (int k = 0; k < words; k += 4)
    {
        uint4 q = *(const uint4 *)(from + 4 * k);
        bits[k] = q.x, bits[k + 1] = q.y, bits[k + 2] = q.z, bits[k + 3] = q.w;
    }
#else
    cuda_emulated_wide(from);
    for (int k = 0; k < words; k++) bits[k] = ((const uint32_t *)(const void *)from)[k];
#endif
}

DEVICE void act_held(const uint32_t *bits, const int bf16, float *out)
{
    UNROLL for (int k = 0; k < WIDE; k += 2)
    {
        out[k] = bf16 ? bf16_value(bits[k / 2]) : rule_float(bits[k]);
        out[k + 1] = bf16 ? bf16_value(bits[k / 2] >> 16) : rule_float(bits[k + 1]);
    }
}

/* out[0 .. width-1] = p[i ..], width 1 or WIDE */
DEVICE void act_load(const void *p, size_t i, const int bf16, const int width, float *out)
{
#ifdef __CUDACC__
    if (width == WIDE) {
        uint32_t bits[WIDE];
        act_hold(p, i, bf16, bits);
        act_held(bits, bf16, out);
        return;
    }
#else
    if (width == WIDE) cuda_emulated_wide((const char *)p + i * (bf16 ? sizeof(uint16_t) : sizeof(float)));
#endif
    for (int k = 0; k < width; k++)
        out[k] = bf16 ? bf16_value(((const uint16_t *)p)[i + k]) : ((const float *)p)[i + k];
}

/* p[i ..] = in[0 .. width-1] */
DEVICE void act_store(void *p, size_t i, const int bf16, const int width, const float *in)
{
#ifdef __CUDACC__
    if (width == WIDE && bf16) {
        uint32_t pairs[4];
        UNROLL for (int k = 0; k < 4; k++) pairs[k] = bf16_of(in[2 * k]) | (uint32_t)bf16_of(in[2 * k + 1]) << 16;
        *(uint4 *)((uint16_t *)p + i) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        return;
    }
    if (width == WIDE) {
        *(float4 *)((float *)p + i) = make_float4(in[0], in[1], in[2], in[3]);
        *(float4 *)((float *)p + i + 4) = make_float4(in[4], in[5], in[6], in[7]);
        return;
    }
#else
    if (width == WIDE) cuda_emulated_wide((const char *)p + i * (bf16 ? sizeof(uint16_t) : sizeof(float)));
#endif
    for (int k = 0; k < width; k++) {
        if (bf16)
            ((uint16_t *)p)[i + k] = bf16_of(in[k]);
        else
            ((float *)p)[i + k] = in[k];
    }
}

/* out[width] = w[i ..], fp32 numbers that may be misaligned in theta. Aligned weights use wide loads: with single
 * loads, each of the 32 lanes would touch its own sector for 4 bytes, WIDE times over. */
DEVICE void weights_load(const float *w, size_t i, const int width, float *out)
{
    if (width == WIDE && (uintptr_t)w % 16 == 0)
        act_load(w, i, 0, WIDE, out);
    else
        UNROLL for (int k = 0; k < width; k++) out[k] = w[i + k];
}

/* 2^x with an error of at most two units in the last place; 0 if the result is below 2^-126. */
DEVICE float power_of_2(float x)
{
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return x < -126 ? 0 : exp2f(x);
#endif
}

/* 1 / (1 + e^-z). With bf16, two approximate instructions with a relative error of a few parts in a million. __expf and
 * __fdividef are the same two instructions and eight more, for results that bf16 cannot tell from 0. [derived from code
 * for sm_90: GELU of 8 numbers takes 110 instructions, 174 with __expf and __fdividef; the memory of an H200 leaves
 * time for 220] */
DEVICE float logistic(float z, const int bf16)
{
#ifdef __CUDACC__
    if (bf16) {
        float s;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + power_of_2(z * -LOG2_E)));
        return s;
    }
#endif
    (void)bf16;
    return 1.0f / (1.0f + expf(-z));
}

DEVICE float act_one(const void *p, size_t i, const int bf16)
{
    float x;
    act_load(p, i, bf16, 1, &x);
    return x;
}

#endif
