#include "coordinator/outer/outer_half.h"

#include <assert.h>

#include "common/base/rng.h"
#include "compress/codec_simd.h"
#include "gpu/moment_rules.h"

struct half_noise half_noise_of(uint64_t seed, uint32_t fragment, uint64_t version)
{
    struct half_noise noise;
    moment_noise(rng_u64(seed, RNG_OUTER, fragment), version, noise.words);
    return noise;
}

CODEC_SIMD_OF(, half_widen, (const uint16_t *half, size_t n, float *x), (half, n, x))
{
    for (size_t i = 0; i < n; i++) x[i] = rule_bf16_value(half[i]);
}

CODEC_SIMD(round_all,
           (const float *restrict x, size_t n, const uint32_t *noise, uint64_t first, uint32_t shift,
            uint16_t *restrict half),
           (x, n, noise, first, shift, half))
{
    const uint32_t noise0 = noise[0], noise1 = noise[1];
    for (size_t i = 0; i < n; i++) {
        uint32_t random = moment_word(noise0, noise1, first + i) >> shift & 0xffffu;
        half[i] = moment_round(moment_drop(x[i]), random);
    }
}

void half_round(const float *x, size_t n, const struct half_noise *noise, uint64_t first, enum half_use use,
                uint16_t *half)
{
    assert(x && half && (use == HALF_MOMENTUM || use == HALF_RESIDUAL));
    round_all(x, n, noise->words, first, use == HALF_RESIDUAL ? 16 : 0, half);
}
