/* Philox known answers, an independent second implementation, distribution, and the permutation. */
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/lib/test.h"

TEST(test_philox_matches_known_answer)
{
    /* Random123 distribution, kat_vectors: philox4x32 10 rounds, counter 0, key 0. */
    static const uint32_t expected[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    uint32_t out[4];
    rng_block(0, 0, 0, out);
    assert_memory_equal(out, expected, sizeof out);
    assert_true(rng_u64(0, 0, 0) == 0xe169c58d6627e8d5u);
}

/* The paper's round, written on arrays, for counters and keys other than 0. */
static void philox_reference(uint64_t seed, uint32_t stream, uint64_t counter, uint32_t c[4])
{
    uint32_t k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    c[0] = (uint32_t)counter;
    c[1] = (uint32_t)(counter >> 32);
    c[2] = stream;
    c[3] = 0;
    for (int round = 0; round < 10; round++) {
        uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
        const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k[1],
                                  (uint32_t)a};
        memcpy(c, next, sizeof next);
        k[0] += 0x9E3779B9;
        k[1] += 0xBB67AE85;
    }
}

TEST(test_philox_matches_reference)
{
    uint32_t expected[4], out[4];
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t seed = i * 0x9E3779B97F4A7C15u, counter = i * 0xD1B54A32D192ED03u;
        philox_reference(seed, (uint32_t)i, counter, expected);
        rng_block(seed, (uint32_t)i, counter, out);
        assert_memory_equal(out, expected, sizeof out);
    }
}

TEST(test_uniform_has_uniform_distribution)
{
    double sum = 0, least = 1, most = 0;
    enum { N = 100000 };
    for (uint64_t i = 0; i < N; i++) {
        double u = rng_uniform(7, RNG_TEST, i);
        sum += u;
        if (u < least) least = u;
        if (u > most) most = u;
    }
    assert_true(least >= 0 && least < 1e-3 && most < 1 && most > 0.999);
    assert_true(fabs(sum / N - 0.5) < 5e-3); /* five standard deviations: 0.0046 */
}

TEST(test_normal_has_normal_distribution)
{
    enum { N = 100001 };
    static float x[N], y[N];
    rng_normal_fill(3, RNG_TEST, 1000, 2.0f, x, N);
    double sum = 0, square = 0, fourth = 0, neighbours = 0;
    for (int i = 0; i < N; i++) {
        double z = x[i] / 2.0;
        assert_true(isfinite(x[i]));
        sum += z;
        square += z * z;
        fourth += z * z * z * z;
        if (i) neighbours += z * x[i - 1] / 2.0;
    }
    assert_true(fabs(sum / N) < 0.016 && fabs(square / N - 1) < 0.023 && fabs(fourth / N - 3) < 0.16);
    assert_true(fabs(neighbours / N) < 0.016);
    /* Any part of the sequence, from any block and of any length, has the same numbers. */
    for (size_t n = 0; n < 9; n++) {
        y[n] = -1;
        rng_normal_fill(3, RNG_TEST, 1000 + 5, 2.0f, y, n);
        assert_memory_equal(y, x + 20, n * sizeof *y);
        assert_true(y[n] == -1);
    }
}

static void check_permutation(uint64_t seed, uint64_t epoch, uint64_t n)
{
    uint8_t *seen = mem_alloc(n, 1);
    assert_non_null(seen);
    for (uint64_t k = 0; k < n; k++) {
        uint64_t at = rng_permute(seed, epoch, k, n);
        assert_true(at < n);
        if (seen[at]) fail_msg("n %lu: two indices map to %lu", (unsigned long)n, (unsigned long)at);
        seen[at] = 1;
    }
    mem_free(seen);
}

TEST(test_permutation_hits_every_index_once)
{
    for (uint64_t n = 1; n <= 300; n++) check_permutation(n, 0, n);
    for (uint64_t power = 512; power <= 65536; power *= 2)
        for (uint64_t n = power - 1; n <= power + 1; n++) check_permutation(1, power, n);
    check_permutation(5, 9, 100003);
}

/* Epochs and seeds give different orders, and no order is the identity. */
TEST(test_permutation_depends_on_epoch_and_seed)
{
    enum { N = 10000 };
    int same_epoch = 0, same_seed = 0, fixed = 0, ascending = 0;
    for (uint64_t k = 0; k < N; k++) {
        uint64_t at = rng_permute(1, 0, k, N);
        same_epoch += at == rng_permute(1, 1, k, N);
        same_seed += at == rng_permute(2, 0, k, N);
        fixed += at == k;
        ascending += k && at > rng_permute(1, 0, k - 1, N);
    }
    assert_true(same_epoch < 12 && same_seed < 12 && fixed < 12); /* one is expected of each */
    assert_in_range(ascending, N / 2 - 250, N / 2 + 250);
}

TEST(test_large_permutation_hits_no_index_twice)
{
    static const uint64_t sizes[] = {(1ull << 40) + 1, 1ull << 62, (1ull << 63) + 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (uint64_t k = 0; k < 1000; k++) assert_true(rng_permute(1, 2, sizes[i] - 1 - k, sizes[i]) < sizes[i]);
}

TEST_MAIN(NULL, NULL)
