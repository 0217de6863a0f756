/* Several threads apply updates to theta with the bits of one thread that decodes and applies
 * (common/tensor/apply.h), for every codec, including the signs of zeros. ctest: labels=threads,asan */

#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/base/rng.h"
#include "common/tensor/apply.h"
#include "compress/apply_update.h"
#include "tests/lib/test.h"

enum {
    FIRST = 140000,
    N = 300001,
    THREADS = 3
}; /* several parts of a codec, several shares of floats, and a
    * remainder */

static const char *const specs[] = {"fp32",
                                    "bf16+lz4",
                                    "int8:64",
                                    "int4:256+huff",
                                    "2bit:64",
                                    "1bit:64",
                                    "topk:64/4096",
                                    "topk:1000/4096+2bit",
                                    "topk:64/1024+int8+huff"};
static const struct codec_span spans[] = {{0, FIRST, 100, FIRST / 100, 2}, {FIRST, N - FIRST, 1, N - FIRST, 1}};

static float theta[2][N], x[N], merged[2][N];
static struct pool *pool;

/* Some values of theta and of the update are zeros of both signs. */
static void draw(uint64_t seed, float *out, float sigma)
{
    rng_normal_fill(seed, RNG_TEST, 0, sigma, out, N);
    for (size_t i = seed; i < N; i += 97) out[i] = i % 2 ? 0.0f : -0.0f;
}

static void both(uint64_t seed)
{
    draw(seed, theta[0], 1);
    memcpy(theta[1], theta[0], sizeof theta[0]);
}

TEST(test_applied_view_equals_decode_and_apply)
{
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
        struct codec *codec;
        struct codec_view view;
        size_t size;
        assert_int_equal(codec_create(&codec, specs[s], spans, 2, NULL), STATUS_OK);
        uint8_t *payload = mem_alloc(1, codec_bound(codec));
        assert_non_null(payload);
        draw(s + 1, x, 1e-3f);
        assert_int_equal(codec_encode(codec, x, payload, codec_bound(codec), &size, NULL), STATUS_OK);
        for (int k = 0; k < 4; k++) {
            bool replace = k % 2;
            both(50 + s);
            assert_int_equal(codec_decode(codec, payload, size, x), STATUS_OK);
            apply_update(theta[0], replace, x, N);
            assert_int_equal(codec_open(codec, payload, size, NULL, &view), STATUS_OK);
            apply_update_view(k < 2 ? pool : NULL, &view, replace, theta[1]);
            assert_memory_equal(theta[0], theta[1], sizeof theta[0]);
        }
        mem_free(payload);
        codec_destroy(codec);
    }
}

TEST(test_applied_step_equals_sgd_and_apply)
{
    static const struct apply_update_sgd steps[] = {
        {1, true, false}, {0.7, true, false}, {0.7, true, true}, {0.7, false, true}};
    for (size_t s = 0; s < 2 * sizeof steps / sizeof *steps; s++) {
        const struct apply_update_sgd *step = &steps[s / 2];
        both(s);
        draw(100 + s, merged[0], step->parameters ? 1.0f : 1e-3f);
        memcpy(merged[1], merged[0], sizeof merged[0]);
        apply_sgd(theta[0], merged[0], N, step->lr, step->parameters, step->increment);
        apply_update(theta[0], !step->increment, merged[0], N);
        apply_update_step(s % 2 ? pool : NULL, step, merged[1], theta[1], N);
        assert_memory_equal(theta[0], theta[1], sizeof theta[0]);
    }
}

int main(int argc, char **argv)
{
    if (pool_create(THREADS, POOL_FLOATS_EXACT, &pool) != STATUS_OK) return 1;
    int failed = test_run(argc, argv, NULL, NULL);
    pool_destroy(pool);
    return failed;
}
