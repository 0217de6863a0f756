/* Counter-based random numbers: a pure function of (seed, stream, counter), without state.
 *
 * Any element can be drawn alone, in any order and on any node, with the same result. The generator is Philox4x32-10
 * (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). */
#ifndef COMMON_RNG_H
#define COMMON_RNG_H

#include <stddef.h>
#include <stdint.h>

/* One stream per use of a seed. */
enum rng_stream {
    RNG_INIT = 1,    /* initial parameters; counter = tensor index << 40 | element */
    RNG_ORDER = 2,   /* sample order; counter = epoch */
    RNG_SAMPLE = 3,  /* text generation */
    RNG_MOMENTS = 5, /* rounding of the inner optimizer's moments; counter = worker */
    RNG_TIMING = 6,  /* operands of timed matrix products */
    RNG_LINK = 7,    /* jitter of an emulated link */
    RNG_OUTER = 8,   /* rounding of the outer state; counter = fragment */
    RNG_TEST = 100,
};

/* Four words of block `counter` of `stream`. */
void rng_block(uint64_t seed, uint32_t stream, uint64_t counter, uint32_t out[4]);
uint64_t rng_u64(uint64_t seed, uint32_t stream, uint64_t counter);
/* Uniform in [0, 1). */
double rng_uniform(uint64_t seed, uint32_t stream, uint64_t counter);
enum { RNG_NORMALS = 4 }; /* normal values per block */
/* Fill out[n] with N(0, sigma^2): Box-Muller on blocks counter0, counter0 + 1, ..., RNG_NORMALS values a block. */
void rng_normal_fill(uint64_t seed, uint32_t stream, uint64_t counter0, float sigma, float *out, size_t n);
/* Permutation of [0, n) keyed by (seed, epoch): the index of the k-th sample of that epoch. A Feistel network of four
 * rounds permutes the smallest even number of bits that holds n - 1. It is repeated until the result is below n (O(1)
 * expected). k < n, n >= 1. */
uint64_t rng_permute(uint64_t seed, uint64_t epoch, uint64_t k, uint64_t n);

#endif
