/* Retries that wait longer each time: the one rule of the whole tree. */
#ifndef COMMON_BACKOFF_H
#define COMMON_BACKOFF_H

#include <stdint.h>

/* The wait after `tries` failures in a row: first_us, twice as long after each, at most most_us. */
static inline uint64_t backoff_us(uint64_t first_us, uint32_t tries, uint64_t most_us)
{
    uint64_t wait_us = first_us;
    for (uint32_t i = 0; i < tries && wait_us < most_us; i++) wait_us *= 2;
    return wait_us < most_us ? wait_us : most_us;
}

/* wait_us -12.5 % to +12.5 % by `seed`: many programs do not retry at once. */
static inline uint64_t backoff_spread_us(uint64_t wait_us, uint64_t seed)
{
    return wait_us - wait_us / 8 + ((seed * 0x9e3779b97f4a7c15u) >> 33) % (wait_us / 4 + 1);
}

#endif
