/* Momentum and residual of the outer step in bf16 (outer.state), by the rules of gpu/moment_rules.h.
 *
 * - The step computes in fp32 and double, and rounds what it stores stochastically: the mean of many roundings is the
 *   exact value. Rounding to nearest would lose each change below half of a value's last bit (a 256th).
 * - The randomness is a hash of run.seed, fragment, version and index in theta. It has no state: a replay from the
 *   journal, a taken-back run and any number of threads give the same bits. */
#ifndef COORDINATOR_OUTER_HALF_H
#define COORDINATOR_OUTER_HALF_H

#include <stddef.h>
#include <stdint.h>

/* Rounding noise of one outer step of one fragment. */
struct half_noise {
    uint32_t words[2];
};
/* Each element has 16 random bits for each of its two values. */
enum half_use { HALF_MOMENTUM, HALF_RESIDUAL };

/* A residual that publish_step has not yet computed. Rounding never gives it: it is a NaN. */
#define HALF_OPEN 0x7fffu

/* version: after the step. */
struct half_noise half_noise_of(uint64_t seed, uint32_t fragment, uint64_t version);
/* x[n] = half[n]. */
void half_widen(const uint16_t *half, size_t n, float *x);
/* half[n] = x[n], finite, rounded. first: index of x[0] in theta. */
void half_round(const float *x, size_t n, const struct half_noise *noise, uint64_t first, enum half_use use,
                uint16_t *half);

#endif
