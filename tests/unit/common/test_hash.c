/* Checksums: published check values, both CRC paths, continuation.
 * The hash of a fragment is the same with any number of threads, and differs after every change.
 * ctest: labels=threads */

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/base/rng.h"
#include "tests/lib/test.h"

TEST(test_crc_matches_published_values)
{
    uint8_t zeros[32] = {0}, ones[32];
    memset(ones, 0xff, sizeof ones);
    uint32_t (*const paths[])(uint32_t, const void *, size_t) = {crc32c, crc32c_portable};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(paths[i](0, "123456789", 9), 0xE3069283);
        assert_int_equal(paths[i](0, "", 0), 0);
        assert_int_equal(paths[i](0, zeros, 32), 0x8A9136AA); /* RFC 3720, B.4 */
        assert_int_equal(paths[i](0, ones, 32), 0x62A8AB43);
    }
}

TEST(test_crc_paths_agree)
{
    uint8_t data[300];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)rng_u64(1, RNG_TEST, i);
    for (size_t from = 0; from < 9; from++)
        for (size_t n = 0; n + from <= sizeof data; n++)
            assert_int_equal(crc32c(0, data + from, n), crc32c_portable(0, data + from, n));
    for (size_t cut = 0; cut <= sizeof data; cut++)
        assert_int_equal(crc32c(crc32c(0, data, cut), data + cut, sizeof data - cut), crc32c(0, data, sizeof data));
}

TEST(test_crc_of_parts_joins)
{
    uint8_t data[300];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)rng_u64(3, RNG_TEST, i);
    uint32_t whole = crc32c(0, data, sizeof data);
    for (size_t cut = 0; cut <= sizeof data; cut++) {
        size_t rest = sizeof data - cut;
        uint32_t a = crc32c(0, data, cut), b = crc32c(0, data + cut, rest);
        assert_int_equal(crc32c_join(a, b, rest), whole);
        assert_int_equal(crc32c_join(a, whole, rest), b);
        assert_int_equal(crc32c_join(crc32c(77, data, cut), b, rest), crc32c(77, data, sizeof data));
    }
    static uint8_t large[(1 << 20) + 5];
    assert_int_equal(crc32c_join(whole, crc32c(0, large, sizeof large), sizeof large),
                     crc32c(whole, large, sizeof large));
}

/* Lengths at which the parallel part begins, ends and begins again, continued from an earlier checksum. */
TEST(test_crc_paths_agree_on_long_input)
{
    enum { STRETCH = 8192, STRETCHES = 3 * STRETCH, N = 2 * STRETCHES + 30 };
    static uint8_t data[N];
    for (size_t i = 0; i < N; i++) data[i] = (uint8_t)rng_u64(2, RNG_TEST, i);
    for (size_t whole = STRETCHES; whole <= 2 * STRETCHES; whole += STRETCHES)
        for (size_t n = whole - 10; n < whole + 20; n++)
            assert_int_equal(crc32c(0x1234567u + (uint32_t)n, data + n % 9, n),
                             crc32c_portable(0x1234567u + (uint32_t)n, data + n % 9, n));
    uint32_t clean = crc32c(0, data, STRETCHES);
    for (size_t bit = 0; bit < 300; bit++) { /* in each stretch */
        for (size_t k = 0; k < 3; k++) {
            data[k * STRETCH + 27 * bit] ^= (uint8_t)(1 << bit % 8);
            assert_int_not_equal(crc32c(0, data, STRETCHES), clean);
            data[k * STRETCH + 27 * bit] ^= (uint8_t)(1 << bit % 8);
        }
    }
}

TEST(test_crc_detects_every_flipped_bit)
{
    uint8_t data[64] = {0};
    uint32_t clean = crc32c(0, data, sizeof data);
    for (size_t bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_not_equal(crc32c(0, data, sizeof data), clean);
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

TEST(test_hash64_matches_published_values)
{
    assert_true(hash64("", 0) == 0x2d06800538d394c2u); /* XXH3, seed 0, empty input */
    assert_true(hash_mix(hash_mix(0, 1), 2) != hash_mix(hash_mix(0, 2), 1));
    assert_true(hash_mix(0, 0) != 0);
}

/* Hashes of x[i] = i, from another program with the library's XXH3. The last two exceed one batch of blocks. */
static const struct {
    size_t n;
    uint64_t hash;
} fragments[] = {
    {0, 0},
    {1, 0x31df59d71bb784b1},
    {HASH_BLOCK - 1, 0x4f676e2b3b3748e0},
    {HASH_BLOCK, 0x6dd2b476c4152e6c},
    {HASH_BLOCK + 1, 0xf7144455fc71b37c},
    {5 * HASH_BLOCK + 3, 0x16b5936a936d17ba},
    {1024 * HASH_BLOCK, 0xec182fb53f38171b},
    {1025 * HASH_BLOCK + 1, 0xb73dfd54ab159d69},
};

TEST(test_float_hash_is_independent_of_threads)
{
    size_t kinds = sizeof fragments / sizeof *fragments, most = fragments[kinds - 1].n;
    float *x = mem_alloc(most, sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < most; i++) x[i] = (float)i;
    for (int threads = 0; threads <= 8; threads++) {
        struct pool *pool = NULL;
        if (threads) assert_int_equal(pool_create(threads, POOL_FLOATS_EXACT, &pool), STATUS_OK);
        for (size_t k = 0; k < kinds; k++)
            if (hash_floats(pool, x, fragments[k].n) != fragments[k].hash)
                fail_msg("%zu floats, %d threads", fragments[k].n, threads);
        pool_destroy(pool);
    }
    mem_free(x);
}

/* Flips one bit, swaps two blocks, appends a zero. */
TEST(test_float_hash_detects_every_change)
{
    enum { N = 4 * HASH_BLOCK + 7 };
    static float x[N + 1], block[HASH_BLOCK];
    for (size_t i = 0; i < N; i++) x[i] = (float)rng_uniform(3, RNG_TEST, i);
    uint64_t hash = hash_floats(NULL, x, N);
    for (size_t i = 0; i < N; i += i % HASH_BLOCK < 2 || i % HASH_BLOCK > HASH_BLOCK - 3 || i > N - 8 ? 1 : 509) {
        uint8_t *byte = (uint8_t *)&x[i] + i % 4;
        *byte ^= (uint8_t)(1 << i % 8);
        if (hash_floats(NULL, x, N) == hash) fail_msg("float %zu", i);
        *byte ^= (uint8_t)(1 << i % 8);
    }
    assert_true(hash_floats(NULL, x, N) == hash);
    assert_true(hash_floats(NULL, x, N + 1) != hash);
    assert_true(hash_floats(NULL, x, N - 1) != hash);
    for (size_t a = 0; a < 4; a++)
        for (size_t b = 0; b < a; b++) {
            memcpy(block, x + a * HASH_BLOCK, sizeof block);
            memcpy(x + a * HASH_BLOCK, x + b * HASH_BLOCK, sizeof block);
            memcpy(x + b * HASH_BLOCK, block, sizeof block);
            if (hash_floats(NULL, x, N) == hash) fail_msg("blocks %zu and %zu", a, b);
            memcpy(x + b * HASH_BLOCK, x + a * HASH_BLOCK, sizeof block);
            memcpy(x + a * HASH_BLOCK, block, sizeof block);
        }
    assert_true(hash_floats(NULL, x, N) == hash);
}

TEST_MAIN(NULL, NULL)
