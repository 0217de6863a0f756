/* Momentum and residual in bf16 (outer.state): the rounding is unbiased and the same everywhere, what is not sent keeps
 * its residual, and nothing is lost over many steps. */
#include <math.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "compress/codec_simd.h"
#include "coordinator/outer/outer_half.h"
#include "coordinator/outer/outer_state.h"
#include "coordinator/outer/publish.h"
#include "tests/lib/test.h"

enum { N = 1 << 16, COLS = 512 };

static float x[N], wide[N];
static uint16_t half[N], other[N];

static void fill(float value)
{
    for (size_t i = 0; i < N; i++) x[i] = value;
}

/* The mean of N roundings of one value differs from it by at most 5 standard errors: each is a bf16 neighbour. */
static void check_mean(float value, uint64_t version, enum half_use use)
{
    struct half_noise noise = half_noise_of(7, 3, version);
    double sum = 0, low = INFINITY, high = -INFINITY;
    fill(value);
    half_round(x, N, &noise, 1000, use, half);
    half_widen(half, N, wide);
    for (size_t i = 0; i < N; i++) {
        double v = (double)wide[i];
        sum += v;
        if (v < low) low = v;
        if (v > high) high = v;
    }
    double part = high > low ? ((double)value - low) / (high - low) : 0;
    double error = (high - low) * sqrt(part * (1 - part) / N);
    assert_true(low <= (double)value && (double)value <= high);
    assert_true(high - low <= fabs((double)value) * 0x1p-7);
    if (!(fabs(sum / N - (double)value) <= 5 * error))
        fail_msg("%.9g, version %d: the mean is off by %g, one error is %g", (double)value, (int)version,
                 sum / N - (double)value, error);
}

TEST(test_rounding_is_unbiased)
{
    static const float values[] = {1.0f, 1.001f, -1.003f, 0.3333f, -2e-9f, 7.77e20f, 3e-30f, 1.9999f};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        for (uint64_t version = 1; version < 9; version++)
            for (int use = HALF_MOMENTUM; use <= HALF_RESIDUAL; use++)
                check_mean(values[i], version, (enum half_use)use);
}

/* Both values of an element, two versions, two fragments and two runs round independently. */
TEST(test_noise_is_independent)
{
    static const struct {
        uint64_t seed, version;
        uint32_t fragment;
        enum half_use use;
    } cases[] = {
        {7, 1, 0, HALF_RESIDUAL}, {7, 2, 0, HALF_MOMENTUM}, {7, 1, 1, HALF_MOMENTUM}, {8, 1, 0, HALF_MOMENTUM}};
    struct half_noise noise = half_noise_of(7, 0, 1);
    fill(1 + 0x1p-8f); /* half of the way */
    half_round(x, N, &noise, 0, HALF_MOMENTUM, half);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        size_t equal = 0;
        noise = half_noise_of(cases[c].seed, cases[c].fragment, cases[c].version);
        half_round(x, N, &noise, 0, cases[c].use, other);
        for (size_t i = 0; i < N; i++) equal += half[i] == other[i];
        if (fabs((double)equal - N / 2.0) > 5 * sqrt(N) / 2) fail_msg("case %zu: %zu of %d are equal", c, equal, N);
    }
}

/* The bits of a value depend on its index alone, and on no instruction set. They are pinned: a run continues with other
 * releases and on other machines. */
TEST(test_bits_are_pinned)
{
    struct half_noise noise = half_noise_of(1, 2, 3);
    const uint64_t first = (UINT64_C(1) << 32) - 1000; /* the index crosses 32 bits */
    for (size_t i = 0; i < N; i++) x[i] = (float)(rng_uniform(4, RNG_TEST, i) - 0.5);
    x[5] = 0;
    x[6] = 1e-38f;
    x[7] = 3.4e38f;
    half_round(x, N, &noise, first, HALF_MOMENTUM, half);
    assert_int_equal(half[5], 0);
    assert_int_equal(half[6], 0);
    assert_int_equal(half[7], 0x7f7f); /* finite */
    uint64_t hash = hash64(half, sizeof half);
    for (int limit = CODEC_SIMD_AVX512; limit >= CODEC_SIMD_PLAIN; limit--) {
        codec_simd_limit((enum codec_simd)limit);
        for (size_t at = 0; at < N;) {
            size_t n = at + 777 < N ? 777 : N - at;
            half_round(x + at, n, &noise, first + at, HALF_MOMENTUM, other + at);
            at += n;
        }
        assert_memory_equal(half, other, sizeof half);
    }
    codec_simd_limit(CODEC_SIMD_AVX512);
    if (hash != UINT64_C(0x56f2ab5e71c54b44)) fail_msg("%016llx", (unsigned long long)hash);
}

TEST(test_unsent_values_keep_what_is_owed)
{
    float v[4] = {1, 2, 3, 4};
    uint16_t owed[4] = {0x4120, 0x41a0, 0x41f0, 0x4220}; /* 10, 20, 30, 40 */
    const uint8_t skip[4] = {0, 1, 0, 1};
    publish_add_owed(v, owed, 0.5f, skip, 4);
    assert_true(v[0] == 6 && v[1] == 0 && v[2] == 18 && v[3] == 0);
    assert_true(owed[0] == HALF_OPEN && owed[1] == 0x41a0 && owed[2] == HALF_OPEN && owed[3] == 0x4220);
    publish_add_owed(v, owed + 1, 1, NULL, 1);
    assert_true(v[0] == 26 && owed[1] == HALF_OPEN);
}

/* --- many steps --------------------------------------------------------------------------------------------------- */

struct world {
    struct config config;
    struct layout layout;
    struct outer_state outer;
};

static void world_open(struct world *w, const char *state, const char *const *settings)
{
    struct config_sources sources;
    struct err err = {0};
    uint64_t shape[2] = {N / COLS, COLS};
    config_defaults(&w->config, &sources);
    for (; *settings; settings++)
        assert_int_equal(config_set(&w->config, &sources, *settings, CONFIG_FLAG, &err), STATUS_OK);
    assert_int_equal(config_set(&w->config, &sources, state, CONFIG_FLAG, &err), STATUS_OK);
    if (config_resolve(&w->config, &sources, &err) != STATUS_OK) fail_msg("%s", err.msg);
    w->config.coordinator.threads = 1;
    layout_init(&w->layout);
    assert_int_equal(layout_add(&w->layout, "a", 2, shape, LAYOUT_INIT_ZEROS, 0, 0), STATUS_OK);
    assert_int_equal(layout_split(&w->layout, 1), STATUS_OK);
    if (outer_state_init(&w->outer, &w->config, &w->layout, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_int_equal(outer_state_fill(&w->outer, NULL, &err), STATUS_OK);
}

static void world_close(struct world *w)
{
    outer_state_finish(&w->outer);
    layout_finish(&w->layout);
}

/* Steps with a small constant gradient and noise. Returns the mean of theta plus residual. */
static double walk(const char *state, const char *const *settings, uint64_t steps)
{
    static struct world w;
    double sum = 0;
    world_open(&w, state, settings);
    for (uint64_t version = 1; version <= steps; version++) {
        size_t size;
        struct outer_step step = {.version = version, .round = version - 1};
        rng_normal_fill(9, RNG_TEST, version << 30, 1e-2f, w.outer.acc, N);
        for (size_t i = 0; i < N; i++) w.outer.acc[i] += 1e-5f;
        assert_int_equal(outer_state_step(&w.outer, &step, 0, &size), STATUS_OK);
    }
    const struct outer_fragment *f = &w.outer.fragments[0];
    if (f->owed) half_widen(f->owed, N, wide);
    if (f->residual.residual) memcpy(wide, f->residual.residual, sizeof wide);
    for (size_t i = 0; i < N; i++) sum += (double)w.outer.theta[i] + (double)wide[i];
    world_close(&w);
    return sum / N;
}

/* A rounding that loses small values, or leans to one side, would show in the mean over all coordinates. */
TEST(test_nothing_is_lost_over_many_steps)
{
    static const char *const nesterov[] = {"codec.down=int8:256", "outer.momentum=0.9", NULL};
    static const char *const sgd[] = {"codec.down=2bit:256", "outer.optimizer=sgd", NULL};
    const uint64_t steps = 100;
    const double error = 1e-2 / sqrt((double)N * (double)steps); /* of the gradients' own mean */
    double lean = walk("outer.state=bf16", nesterov, steps), full = walk("outer.state=fp32", nesterov, steps);
    if (!(fabs(lean - full) < (double)steps * 7 * error / 4)) fail_msg("%g beside %g", lean, full);
    lean = walk("outer.state=bf16", sgd, steps);
    full = walk("outer.state=fp32", sgd, steps);
    if (!(fabs(lean - full) < (double)steps * error / 4)) fail_msg("%g beside %g", lean, full);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST_MAIN(NULL, NULL)
