#include "common/base/rng.h"

#include <assert.h>
#include <math.h>

void rng_block(uint64_t seed, uint32_t stream, uint64_t counter, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = stream, c3 = 0;
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint64_t rng_u64(uint64_t seed, uint32_t stream, uint64_t counter)
{
    uint32_t b[4];
    rng_block(seed, stream, counter, b);
    return (uint64_t)b[1] << 32 | b[0];
}

double rng_uniform(uint64_t seed, uint32_t stream, uint64_t counter)
{
    return (double)(rng_u64(seed, stream, counter) >> 11) * 0x1p-53;
}

void rng_normal_fill(uint64_t seed, uint32_t stream, uint64_t counter0, float sigma, float *out, size_t n)
{
    for (size_t i = 0; i < n; i += RNG_NORMALS) {
        uint32_t b[4];
        float z[RNG_NORMALS];
        rng_block(seed, stream, counter0 + i / RNG_NORMALS, b);
        for (int j = 0; j < RNG_NORMALS; j += 2) {
            double u = ((double)b[j] + 0.5) * 0x1p-32, v = (double)b[j + 1] * 0x1p-32;
            double r = sqrt(-2.0 * log(u)), a = 6.283185307179586 * v;
            z[j] = (float)(r * cos(a));
            z[j + 1] = (float)(r * sin(a));
        }
        for (size_t j = 0; j < RNG_NORMALS && i + j < n; j++) out[i + j] = sigma * z[j];
    }
}

uint64_t rng_permute(uint64_t seed, uint64_t epoch, uint64_t k, uint64_t n)
{
    if (n < 2) return 0;
    unsigned half = (65u - (unsigned)__builtin_clzll(n - 1)) / 2; /* bits of one half; both together hold n - 1 */
    assert(half >= 1 && half <= 32);
    uint64_t mask = ((uint64_t)1 << half) - 1, x = k;
    uint64_t key = rng_u64(seed, RNG_ORDER, epoch);
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t f = rng_u64(key, RNG_ORDER, right << 2 | round) & mask, next = left ^ f;
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= n);
    return x;
}
