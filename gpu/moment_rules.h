/* Moments of the inner optimizer kept in bf16, for the kernels of a GPU and the CPU's alike: what rounds them. They are
 * computed in fp32 and rounded up with the probability of the part that is cut off, so that the mean of many roundings
 * is the number itself; rounded to nearest, a moment would stay where it is as soon as a step adds less than half of
 * its last bit (beta2 0.999 adds a thousandth, the last bit is a 128th).
 *
 * The randomness is a hash of (seed of the worker, step, index in theta), 16 bits of it for each of the two moments: no
 * state, and the same for any number of threads, ranks and kinds of devices. A few integer operations an element, so
 * that the kernels wait for memory alone.
 *
 * Products and sums here are two roundings each (no fused multiply-add), which all devices have alike, and numbers
 * below MOMENT_LEAST count as 0, for a CPU's threads make zeros of subnormal numbers and a GPU does not. */
#ifndef GPU_MOMENT_RULES_H
#define GPU_MOMENT_RULES_H

#include <math.h>
#include <stdint.h>

#include "gpu/delta_rules.h" /* RULE, the bits of a float */

#define MOMENT_LEAST 0x1p-110f
#define MOMENT_LARGEST 0x7f7fffffu /* the bits that become the largest finite bf16 */

/* Of one rank, in device memory. The host writes the first two, device_ops.count_step the rest. */
struct step_count {
    uint64_t steps;    /* taken */
    uint64_t seed;     /* of the worker's roundings */
    float correct[2];  /* 1 / (1 - beta^steps) */
    uint32_t noise[2]; /* of step number `steps` */
};

/* 1 / (1 - beta^step) of AdamW (Kingma and Ba, arXiv 1412.6980), of products that all devices round alike: no two
 * libraries' pow do. */
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

/* Of one element: the low half is for the first moment, the high one for the second. A mixer of 32 bits with the
 * multipliers of Wellons' lowbias32, keyed before each of them. */
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

/* Away from 0 with the probability of what is cut off. random: 16 bits. Never infinity or NaN. */
RULE uint16_t moment_round(float x, uint32_t random)
{
    uint32_t up = rule_magnitude(x) + random;
    up = up < MOMENT_LARGEST ? up : MOMENT_LARGEST;
    return (uint16_t)(up >> 16 | rule_sign(x) << 15);
}

#endif
