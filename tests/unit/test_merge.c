/* The weighted mean, the way from an outer step to bytes and back, and the one loop that moves theta. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/apply.h"
#include "common/hash.h"
#include "common/mem.h"
#include "common/rng.h"
#include "compress/codec.h"
#include "coordinator/merge.h"
#include "coordinator/publish.h"

enum { N = 700, CAP = 8192 };

struct world {
    struct codec *codec;
    uint8_t payload[4][CAP];
    size_t size[4];
    float x[4][N];
};

static void world_open(struct world *w, const char *spec)
{
    struct codec_span span = {.count = N, .rows = 1, .cols = N, .ndim = 1};
    struct err err = {0};
    assert_int_equal(codec_create(&w->codec, spec, &span, 1, &err), STATUS_OK);
    for (int i = 0; i < 4; i++) {
        rng_normal_fill(5, RNG_TEST, (uint64_t)i << 30, 1.0f, w->x[i], N);
        w->x[i][3] = -0.0f;
        assert_int_equal(codec_encode(w->codec, w->x[i], w->payload[i], CAP, &w->size[i], NULL), STATUS_OK);
        assert_int_equal(codec_decode(w->codec, w->payload[i], w->size[i], w->x[i]), STATUS_OK);
    }
}

static void add(struct merge *m, const struct world *w, int i, uint64_t tokens)
{
    assert_int_equal(merge_add(m, w->codec, tokens, w->payload[i], w->size[i]), STATUS_OK);
}

/* acc = w0 x0, then acc += w1 x1, ... in fp32, in this order. */
static void test_weighted_mean(void **state)
{
    (void)state;
    static struct world w;
    const char *const specs[] = {"fp32", "int8:128", "bf16+lz4"};
    const uint64_t tokens[4] = {100, 300, 50, 550};
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
        float acc[N], expect[N];
        struct merge m;
        world_open(&w, specs[s]);
        memset(acc, 0x7f, sizeof acc); /* stale contents do not matter */
        merge_start(&m, acc, N, 1000);
        for (int i = 0; i < 4; i++) add(&m, &w, i, tokens[i]);
        for (int k = 0; k < N; k++) {
            expect[k] = -0.0f;
            for (int i = 0; i < 4; i++) expect[k] += (float)((double)tokens[i] / 1000) * w.x[i][k];
        }
        assert_memory_equal(acc, expect, sizeof acc);
        codec_destroy(w.codec);
    }
}

/* The order is part of the result: otherwise a test of the order would mean nothing. */
static void test_order_shows(void **state)
{
    (void)state;
    static struct world w;
    float up[N], down[N];
    struct merge m;
    world_open(&w, "fp32");
    merge_start(&m, up, N, 4);
    for (int i = 0; i < 4; i++) add(&m, &w, i, 1);
    merge_start(&m, down, N, 4);
    for (int i = 3; i >= 0; i--) add(&m, &w, i, 1);
    assert_memory_not_equal(up, down, sizeof up);
    codec_destroy(w.codec);
}

static void test_single_is_exact(void **state)
{
    (void)state;
    static struct world w;
    float acc[N];
    struct merge m;
    world_open(&w, "fp32");
    merge_start(&m, acc, N, 12345);
    add(&m, &w, 0, 12345);
    assert_memory_equal(acc, w.x[0], sizeof acc); /* -0 included */
    assert_true(signbit(acc[3]));
    assert_true(merge_weight(7, 7) == 1.0f);
    assert_true(merge_weight(1, 3) == (float)(1.0 / 3.0));
    codec_destroy(w.codec);
}

static void test_bad_payload_changes_nothing(void **state)
{
    (void)state;
    static struct world w;
    float acc[N], before[N];
    uint8_t bad[CAP];
    struct merge m;
    float nan_value = NAN;
    world_open(&w, "fp32");
    merge_start(&m, acc, N, 2);
    add(&m, &w, 0, 1);
    memcpy(before, acc, sizeof acc);
    assert_int_not_equal(merge_add(&m, w.codec, 1, w.payload[1], w.size[1] - 1), STATUS_OK);
    memcpy(bad, w.payload[1], w.size[1]);
    memcpy(bad + w.size[1] - 4, &nan_value, 4);
    assert_int_equal(merge_add(&m, w.codec, 1, bad, w.size[1]), STATUS_NONFINITE);
    assert_memory_equal(acc, before, sizeof acc);
    assert_int_equal(m.added, 1);
    codec_destroy(w.codec);
}

static void test_publish_increment(void **state)
{
    (void)state;
    static struct world w;
    static uint8_t payload[CAP];
    float theta[N], worker[N], x[N], wanted[N], total[N];
    struct feedback fb;
    size_t size;
    uint64_t hash;
    world_open(&w, "int8:128");
    assert_int_equal(feedback_init(&fb, N, 1.0f, true), STATUS_OK);
    memcpy(theta, w.x[0], sizeof theta);
    memcpy(worker, theta, sizeof theta);
    memset(total, 0, sizeof total);
    for (int step = 1; step < 4; step++) {
        memcpy(x, w.x[step], sizeof x);
        for (int i = 0; i < N; i++) x[i] *= 1.37f; /* off the grid of the codec */
        memcpy(wanted, x, sizeof x);
        for (int i = 0; i < N; i++) wanted[i] += fb.residual[i];
        assert_int_equal(publish_step(w.codec, &fb, false, x, theta, N, payload, CAP, &size, &hash), STATUS_OK);
        float got[N];
        assert_int_equal(codec_decode(w.codec, payload, size, got), STATUS_OK);
        apply_update(worker, false, got, N); /* what a worker does */
        assert_memory_equal(worker, theta, sizeof theta);
        assert_true(hash == hash64(worker, sizeof worker));
        for (int i = 0; i < N; i++) assert_true(fabsf(wanted[i] - got[i] - fb.residual[i]) < 1e-6f); /* nothing is lost */
    }
    feedback_finish(&fb);
    codec_destroy(w.codec);
}

static void test_publish_parameters_is_exact(void **state)
{
    (void)state;
    static struct world w;
    static uint8_t payload[CAP];
    float theta[N], x[N];
    struct feedback fb;
    size_t size;
    uint64_t hash;
    world_open(&w, "fp32+lz4");
    assert_int_equal(feedback_init(&fb, N, 1.0f, false), STATUS_OK);
    memcpy(theta, w.x[0], sizeof theta);
    memcpy(x, w.x[1], sizeof x);
    assert_int_equal(publish_step(w.codec, &fb, true, x, theta, N, payload, CAP, &size, &hash), STATUS_OK);
    assert_memory_equal(theta, w.x[1], sizeof theta);
    feedback_finish(&fb);
    codec_destroy(w.codec);
}

/* Two finite numbers whose sum is not: theta stays what it was. */
static void test_publish_never_makes_infinity(void **state)
{
    (void)state;
    static struct world w;
    static uint8_t payload[CAP];
    float theta[N], before[N], x[N] = {0};
    struct feedback fb;
    size_t size;
    uint64_t hash;
    world_open(&w, "fp32");
    assert_int_equal(feedback_init(&fb, N, 1.0f, false), STATUS_OK);
    memcpy(theta, w.x[0], sizeof theta);
    theta[9] = 3e38f;
    x[9] = 3e38f;
    memcpy(before, theta, sizeof theta);
    assert_int_equal(publish_step(w.codec, &fb, false, x, theta, N, payload, CAP, &size, &hash), STATUS_NONFINITE);
    assert_memory_equal(theta, before, sizeof theta);
    feedback_finish(&fb);
    codec_destroy(w.codec);
    assert_int_equal(mem_live_bytes(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weighted_mean),
        cmocka_unit_test(test_order_shows),
        cmocka_unit_test(test_single_is_exact),
        cmocka_unit_test(test_bad_payload_changes_nothing),
        cmocka_unit_test(test_publish_increment),
        cmocka_unit_test(test_publish_parameters_is_exact),
        cmocka_unit_test(test_publish_never_makes_infinity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
