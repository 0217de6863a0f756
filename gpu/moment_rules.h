/* Rounding of optimizer moments kept in bf16, shared by the GPU kernels and the CPU.
 *
 * - Moments are computed in fp32 and rounded stochastically: up with a probability equal to the part that is cut off,
 *   so the mean of many roundings is the exact value. Rounding to nearest would freeze a moment once a step adds less
 *   than half of its last bit (beta2 0.999 adds a thousandth; the last bit is a 128th).
 * - The randomness is a hash of (seed of the worker, step, index in theta), 16 bits for each of the two moments. It has
 *   no state and is the same for any number of threads, ranks and kinds of devices. It takes a few integer operations
 *   an element, so memory stays the bottleneck of the kernels.
 * - Products and sums are rounded separately (no fused multiply-add), so all devices agree. Values below MOMENT_LEAST
 *   count as 0, because CPU threads flush subnormal numbers to zero and a GPU does not. */
#ifndef GPU_MOMENT_RULES_H
#define GPU_MOMENT_RULES_H

#include <math.h>
#include <stdint.h>

#include "gpu/delta_rules.h" /* RULE, rule_magnitude, rule_sign */

#define MOMENT_LEAST 0x1p-110f
#define MOMENT_LARGEST 0x7f7fffffu /* bits of the largest value that rounds to a finite bf16 */

/* The step counter of one rank, in device memory. The host writes the first two members, device_ops.count_step the
 * others. */
struct step_count {
    uint64_t steps;    /* steps taken */
    uint64_t seed;     /* of the worker's rounding noise */
    float correct[2];  /* 1 / (1 - beta^steps) */
    uint32_t noise[2]; /* noise of step number `steps` */
};

/* 1 / (1 - beta^step) of AdamW (Kingma and Ba, arXiv 1412.6980). It uses products, which all devices round alike; pow
 * differs between libraries. */
RULE float moment_correct(float beta, uint64_t step)
{
    double power = 1, square = (double)beta;
    for (; step; step /= 2, square *= square)
        if (step % 2) power *= square;
    return (float)(1 / (1 - power));
}

/* SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014). */
RULE void moment_noise(uint64_t seed, uint64_t step, uint32_t noise[2])
{
    uint64_t z = seed + step * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    noise[0] = (uint32_t)z;
    noise[1] = (uint32_t)(z >> 32);
}

/* The random word of one element: the low half is for the first moment, the high half for the second. A mixer of 32
 * bits with the multipliers of Wellons' lowbias32, keyed before each of them. */
RULE uint32_t moment_word(uint32_t noise0, uint32_t noise1, uint64_t index)
{
    uint32_t x = (uint32_t)index + noise0;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) + (uint32_t)(index >> 32) * 0x9e3779b9u + noise1;
    x = (x ^ x >> 16) * 0x846ca68bu;
    return x ^ x >> 16;
}

RULE float moment_drop(float x)
{
    return fabsf(x) < MOMENT_LEAST ? 0.0f : x;
}

/* Rounds away from 0 with a probability equal to the part that is cut off. random: 16 bits. Never returns infinity or
 * NaN. */
RULE uint16_t moment_round(float x, uint32_t random)
{
    uint32_t up = rule_magnitude(x) + random;
    up = up < MOMENT_LARGEST ? up : MOMENT_LARGEST;
    return (uint16_t)(up >> 16 | rule_sign(x) << 15);
}

#endif
