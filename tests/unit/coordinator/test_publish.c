/* From an outer step to bytes and back with any number of threads, and the loop that moves theta. */
#include <math.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/base/rng.h"
#include "common/tensor/apply.h"
#include "compress/codec.h"
#include "coordinator/outer/publish.h"
#include "tests/lib/test.h"

enum { N = 300000, STEPS = 3 }; /* three parts of a codec */

struct world {
    struct codec *codec;
    struct publish p;
    float *x, *theta, *worker, *got, *residual, *scratch;
    uint8_t *payload;
    size_t cap, size;
    uint64_t hash;
};

static float *floats(size_t n)
{
    float *x = mem_alloc(n, sizeof *x);
    assert_non_null(x);
    return x;
}

static void world_open(struct world *w, const char *spec, bool replace, bool feedback, int threads)
{
    struct codec_span span = {.count = N, .rows = 1, .cols = N, .ndim = 2};
    struct err err = {0};
    *w = (struct world){.x = floats(N),
                        .theta = floats(N),
                        .worker = floats(N),
                        .got = floats(N),
                        .residual = floats(N),
                        .scratch = floats((size_t)threads * N)};
    assert_int_equal(codec_create(&w->codec, spec, &span, 1, &err), STATUS_OK);
    w->cap = codec_bound(w->codec);
    w->payload = mem_alloc(1, w->cap);
    w->p = (struct publish){.codec = w->codec,
                            .replace = replace,
                            .theta = w->theta,
                            .residual = feedback ? w->residual : NULL,
                            .scratch = w->scratch,
                            .scratch_part = N};
    if (threads > 1) assert_int_equal(pool_create(threads, POOL_FLOATS_EXACT, &w->p.pool), STATUS_OK);
    rng_normal_fill(5, RNG_TEST, 0, 1.0f, w->theta, N);
    memcpy(w->worker, w->theta, N * sizeof *w->theta);
}

static void world_close(struct world *w)
{
    pool_destroy(w->p.pool);
    codec_destroy(w->codec);
    mem_free(w->x);
    mem_free(w->theta);
    mem_free(w->worker);
    mem_free(w->got);
    mem_free(w->residual);
    mem_free(w->scratch);
    mem_free(w->payload);
}

static enum status publish(struct world *w)
{
    return publish_step(&w->p, w->x, w->payload, w->cap, &w->size, &w->hash);
}

static void draw(struct world *w, int step)
{
    rng_normal_fill(6, RNG_TEST, (uint64_t)step << 30, 0.01f, w->x, N);
}

TEST(test_bits_are_independent_of_threads)
{
    static struct world one, many;
    for (int threads = 2; threads < 6; threads++) {
        world_open(&one, "int8:128", false, true, 1);
        world_open(&many, "int8:128", false, true, threads);
        draw(&one, 0);
        draw(&many, 0);
        publish_add_residual(one.x, one.residual, 1, NULL, N);
        publish_add_residual(many.x, many.residual, 1, NULL, N);
        assert_int_equal(publish(&one), STATUS_OK);
        assert_int_equal(publish(&many), STATUS_OK);
        assert_memory_equal(one.theta, many.theta, N * sizeof *one.theta);
        assert_memory_equal(one.residual, many.residual, N * sizeof *one.theta);
        assert_true(one.hash == many.hash);
        world_close(&one);
        world_close(&many);
    }
}

/* A skipped value keeps its residual and is not published. */
TEST(test_skipped_values_keep_residual)
{
    float x[4] = {1, 2, 3, 4}, residual[4] = {10, 20, 30, 40};
    const uint8_t skip[4] = {0, 1, 0, 1};
    publish_add_residual(x, residual, 0.5f, skip, 4);
    assert_true(x[0] == 6 && x[1] == 0 && x[2] == 18 && x[3] == 0);
    assert_true(residual[0] == 6 && residual[1] == 20 && residual[2] == 18 && residual[3] == 40);
}

/* The sum of two finite values may be infinite. */
TEST(test_infinite_theta_is_refused)
{
    static struct world w;
    const int places[] = {0, 9, N / 2, N - 1};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        world_open(&w, "fp32", false, false, 2);
        draw(&w, 0);
        w.theta[places[i]] = 3e38f;
        w.x[places[i]] = 3e38f;
        assert_int_equal(publish(&w), STATUS_NONFINITE);
        world_close(&w);
    }
    assert_int_equal(mem_live_bytes(), 0);
}

TEST_MAIN(NULL, NULL)
