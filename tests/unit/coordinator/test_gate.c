/* The norm that the others expect of an async delta: medians of their last deltas, and the scaling with the reach. */
#include <math.h>

#include "common/config/config.h"
#include "coordinator/round/gate.h"
#include "tests/lib/test.h"

static const struct gate_rule rule = {.learning_rate = 1};

TEST(test_one_sample_expects_nothing)
{
    struct gate_sample two[] = {{1000, 1}, {1, 1}}, three[] = {{1, 1}, {1000, 1}, {1.2f, 1}};
    assert_true(gate_expected(&rule, two, 1, 1) == 0);
    assert_float_equal(gate_expected(&rule, two, 2, 1), 1, 1e-6);
    assert_float_equal(gate_expected(&rule, three, 3, 1), 1.2, 1e-6);
    assert_true(gate_expected(&rule, three, 3, 0) == 0); /* a rate of 0 */
}

/* The lower of two middle values: a liar of four does not raise it. */
TEST(test_median_is_the_lower_one)
{
    struct gate_sample four[] = {{1e18f, 1}, {1.1f, 1}, {1, 1}, {1.2f, 1}};
    assert_float_equal(gate_expected(&rule, four, 4, 1), 1.1, 1e-6);
    struct gate_sample five[] = {{1e18f, 1}, {1.1f, 1}, {1, 1}, {1.2f, 1}, {1e18f, 1}};
    assert_float_equal(gate_expected(&rule, five, 5, 1), 1.2, 1e-6);
}

static double expected_at(const struct gate_rule *r, double reach)
{
    struct gate_sample samples[] = {{2, 1}, {2, 1}, {2, 1}};
    return gate_expected(r, samples, 3, reach);
}

TEST(test_expectation_follows_reach)
{
    const struct gate_rule sparse = {.learning_rate = 1, .sparse = true};
    assert_float_equal(expected_at(&rule, 9), 18, 1e-4);            /* at most in proportion */
    assert_float_equal(expected_at(&rule, 1.0 / 9), 2.0 / 3, 1e-4); /* at least the square root */
    assert_float_equal(expected_at(&sparse, 9), 18, 1e-4);
    assert_float_equal(expected_at(&sparse, 1.0 / 9), 2, 1e-4); /* its residual does not shrink */
}

static struct gate_rule rule_of(const char *const *settings)
{
    static struct config config;
    struct config_sources sources;
    struct err err = {0};
    config_defaults(&config, &sources);
    for (; *settings; settings++)
        if (config_set(&config, &sources, *settings, CONFIG_FLAG, &err) != STATUS_OK) fail_msg("%s", err.msg);
    if (config_resolve(&config, &sources, &err) != STATUS_OK) fail_msg("%s", err.msg);
    return gate_rule_of(&config);
}

TEST(test_reach_sums_warmup_but_no_decay)
{
    const char *settings[] = {"inner.warmup_steps=10", "inner.learning_rate=0.5", "train.max_steps=100", NULL};
    struct gate_rule r = rule_of(settings);
    assert_false(r.sparse);
    assert_float_equal(gate_reach(&r, 0.5, 0, 1, 10), 0.5 * 5.5, 1e-12);
    assert_float_equal(gate_reach(&r, 0.5, 0, 2, 2), 0.5 * 0.4, 1e-12);
    assert_float_equal(gate_reach(&r, 0.5, 90, 1, 10), 0.5 * 10, 1e-12);
    const char *sparse[] = {"train.method=async", "codec.up=topk:64/4096+sign", NULL};
    assert_true(rule_of(sparse).sparse);
}

TEST_MAIN(NULL, NULL)
