/* What outer steps tell about a run: dot products of steps, and values of rounds computed by hand. */
#include <math.h>

#include "common/base/rng.h"
#include "coordinator/outer/outer_state.h"
#include "tests/lib/test.h"

enum { N = 100003 };

static void resolve(struct config *config, const char *const *settings)
{
    struct config_sources sources;
    struct err err = {0};
    config_defaults(config, &sources);
    for (; *settings; settings++)
        assert_int_equal(config_set(config, &sources, *settings, CONFIG_FLAG, &err), STATUS_OK);
    if (config_resolve(config, &sources, &err) != STATUS_OK) fail_msg("%s", err.msg);
}

static void assert_near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-12 * fabs(want))) fail_msg("%.17g, not %.17g", got, want);
}

/* Three Nesterov steps; the same sums, to the bit, with any number of threads. */
static void check_steps(unsigned threads, uint32_t flags, struct outer_sums sums[3])
{
    static const char *const settings[] = {"outer.momentum=0.5", "codec.up=int8:256", "codec.down=int8:256",
                                           "outer.state=fp32", NULL};
    static struct outer_state outer;
    static double v[N];
    struct config config;
    struct layout layout;
    struct err err = {0};
    uint64_t first = 777, rest = N - 777;
    resolve(&config, settings);
    config.coordinator.threads = threads;
    memset(v, 0, sizeof v);
    layout_init(&layout);
    assert_int_equal(layout_add(&layout, "a", 1, &first, LAYOUT_INIT_ZEROS, 0, flags), STATUS_OK);
    assert_int_equal(layout_add(&layout, "b", 1, &rest, LAYOUT_INIT_ZEROS, 0, flags), STATUS_OK);
    assert_int_equal(layout_split(&layout, 1), STATUS_OK);
    assert_int_equal(outer_state_init(&outer, &config, &layout, &err), STATUS_OK);
    assert_int_equal(outer_state_fill(&outer, NULL, &err), STATUS_OK);
    for (uint64_t t = 0; t < 3; t++) {
        size_t size;
        double vv = 0, vd = 0, dd = 0;
        rng_normal_fill(9, RNG_TEST, t << 30, 0.1f, outer.acc, N);
        for (size_t i = 0; i < N; i++) {
            double d = (double)outer.acc[i];
            vv += v[i] * v[i];
            vd += v[i] * d;
            dd += d * d;
            v[i] = (double)(float)(0.5 * v[i] + d);
        }
        struct outer_step step = {.version = t + 1, .round = t};
        assert_int_equal(outer_state_step(&outer, &step, 0, &size), STATUS_OK);
        sums[t] = outer.sums;
        if (flags) continue;
        assert_true(outer.sums.lr == 0.7);
        assert_near(outer.sums.dd, dd);
        assert_true(fabs(outer.sums.vv - vv) <= 1e-12 * dd && fabs(outer.sums.vd - vd) <= 1e-12 * dd);
        assert_true((t == 0) == (vv == 0));
    }
    outer_state_finish(&outer);
    layout_finish(&layout);
}

TEST(test_sums_precede_the_step)
{
    struct outer_sums one[3], many[3];
    check_steps(1, 0, one);
    for (unsigned threads = 2; threads < 5; threads++) {
        check_steps(threads, 0, many);
        assert_memory_equal(one, many, sizeof one);
    }
    check_steps(2, LAYOUT_MEAN, many); /* averaged tensors have no momentum */
    for (int t = 0; t < 3; t++) assert_true(many[t].dd == 0 && many[t].vv == 0);
}

/* Two workers with deltas a, b = (3, 0), (0, 4) and 10 tokens each. D = (1.5, 2): |D|^2 = 6.25, mean |D_i|^2 = 12.5.
 * G = (20 * 6.25 - 10 * 12.5) / 10 = 0: no noise scale. */
static struct outer_sums orthogonal(void)
{
    struct outer_sums sums = {.vv = 4, .vd = 3, .dd = 6.25, .lr = 0.7, .nesterov = true};
    outer_sums_add(&sums, 3, 10);
    outer_sums_add(&sums, 4, 10);
    outer_sums_end(&sums);
    return sums;
}

TEST(test_values_follow_their_formulas)
{
    static const char *const settings[] = {"outer.momentum=0.5", "codec.up=fp32", NULL};
    struct config c;
    struct outer_report r = {0};
    resolve(&c, settings);
    struct outer_sums sums = orthogonal();
    outer_report_add(&r, &c, &sums);
    struct outer_signs s = outer_report_end(&r, &c);
    assert_near(s.rho, 3 / sqrt(4 * 6.25));
    assert_near(s.gain, 1.5 + 0.25 * 3 / 6.25);
    assert_near(s.length, 0.7 * s.gain);
    assert_near(s.agreement, 0.5);
    assert_true(isnan(s.noise_tokens));
    /* Equal tokens: S = 20 (12.5 - 9) = 70, G = 2 * 9 - 12.5 = 5.5; the round before had S = 125, G = 0. */
    sums = orthogonal();
    sums.dd = 9;
    sums.vv = 0;
    outer_report_add(&r, &c, &sums);
    s = outer_report_end(&r, &c);
    assert_true(isnan(s.rho));
    assert_near(s.noise_tokens, (0.9 * 125 + 70) / 5.5);
    /* Unequal tokens: small = 2 / (1/10 + 1/40) = 16, big = 50. */
    struct outer_sums other = {.dd = 10};
    outer_sums_add(&other, 3, 10);
    outer_sums_add(&other, 4, 40);
    outer_sums_end(&other);
    assert_near(other.small, 16);
    assert_near(other.big, 50);
    r = (struct outer_report){0};
    outer_report_add(&r, &c, &other);
    s = outer_report_end(&r, &c);
    assert_near(s.noise_tokens, (2.5 / (1.0 / 16 - 1.0 / 50)) / ((500 - 16 * 12.5) / 34));
}

TEST(test_values_without_meaning_are_unknown)
{
    static const char *const sgd[] = {"train.method=local-sgd", NULL}, *const rda[] = {"merge.rule=rda", NULL};
    struct config c;
    struct outer_report r = {0};
    resolve(&c, rda);
    struct outer_sums sums = orthogonal();
    outer_report_add(&r, &c, &sums);
    struct outer_signs s = outer_report_end(&r, &c);
    assert_true(isnan(s.agreement) && isnan(s.noise_tokens) && s.gain > 1);
    resolve(&c, sgd);
    sums = (struct outer_sums){.dd = 9};
    outer_sums_add(&sums, 3, 10); /* a single delta */
    outer_sums_end(&sums);
    outer_report_add(&r, &c, &sums);
    s = outer_report_end(&r, &c);
    assert_true(isnan(s.rho) && isnan(s.gain) && isnan(s.agreement) && isnan(s.noise_tokens));
    s = outer_report_end(&r, &c); /* no step at all */
    assert_true(isnan(s.rho) && isnan(s.agreement));
}

TEST_MAIN(NULL, NULL)
