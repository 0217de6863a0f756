/* The limits of the gate: medians of earlier deltas, their scaling with the reach, and the optimizer's bound. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/config/config.h"
#include "coordinator/round/gate.h"

static const struct gate_rule rule = {.factor = 4};

static void add(struct gate *g, int n, double norm, double reach)
{
    for (int i = 0; i < n; i++) gate_add(g, norm * (1 + 0.01 * (i % 5)), reach);
}

static void test_history_needs_samples(void **state)
{
    (void)state;
    struct gate g = {0};
    add(&g, GATE_SAMPLES_MIN - 1, 2, 1);
    assert_true(isinf(gate_history(&rule, &g, 1).limit));
    gate_add(&g, 0, 1); /* says nothing */
    assert_true(isinf(gate_history(&rule, &g, 1).limit));
    gate_add(&g, 2, 1);
    struct gate_limit limit = gate_history(&rule, &g, 1);
    assert_int_equal(limit.n, GATE_SAMPLES_MIN);
    assert_true(limit.median > 1.99 && limit.median < 2.1);
    assert_true(limit.limit > 3 * limit.median && limit.limit < 10 * limit.median);
}

static void test_limit_follows_reach(void **state)
{
    (void)state;
    struct gate g = {0};
    add(&g, 20, 1, 1);
    double same = gate_history(&rule, &g, 1).median;
    assert_float_equal(gate_history(&rule, &g, 9).median / same, 9, 1e-4);             /* at most in proportion */
    assert_float_equal(gate_history(&rule, &g, 1.0 / 9).median / same, 1.0 / 3, 1e-4); /* at least the square root */
    assert_true(isinf(gate_history(&rule, &g, 0).limit));                              /* a rate of 0 */
}

/* The limit grows with the spread of the norms, up to a maximum. */
static void test_limit_follows_spread(void **state)
{
    (void)state;
    struct gate narrow = {0}, wide = {0}, wild = {0};
    for (int i = 0; i < GATE_SAMPLES; i++) {
        gate_add(&narrow, exp(0.05 * (i % 3)), 1);
        gate_add(&wide, exp(0.4 * (i % 3)), 1);
        gate_add(&wild, exp(3.0 * (i % 3)), 1);
    }
    struct gate_limit a = gate_history(&rule, &narrow, 1), b = gate_history(&rule, &wide, 1),
                      c = gate_history(&rule, &wild, 1);
    assert_true(b.limit / b.median > 1.5 * (a.limit / a.median));
    assert_true(c.limit / c.median < 20);
}

/* A liar that always sends the largest accepted delta never moves the limit far from the honest norms. */
static void test_liar_does_not_raise_limit(void **state)
{
    (void)state;
    for (int honest = 1; honest <= 3; honest++) {
        struct gate g = {0};
        add(&g, GATE_SAMPLES, 1, 1);
        for (int round = 0; round < 1000; round++) {
            gate_add(&g, gate_history(&rule, &g, 1).limit * 0.999, 1);
            add(&g, honest, 1, 1);
        }
        assert_true(gate_history(&rule, &g, 1).limit < 20);
    }
}

static void test_majority_of_round_decides(void **state)
{
    (void)state;
    struct gate_sample three[] = {gate_sample_of(1e6, 1), gate_sample_of(1, 1), gate_sample_of(1.2, 1)};
    assert_true(gate_limit_of(&rule, three, 3, 1).limit < 100);
    struct gate_sample two[] = {gate_sample_of(1e6, 1), gate_sample_of(1, 1)};
    assert_true(gate_limit_of(&rule, two, 2, 1).limit < 100); /* the lower one is the median */
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

static void test_reach_sums_warmup_but_no_decay(void **state)
{
    (void)state;
    const char *settings[] = {"inner.warmup_steps=10", "inner.learning_rate=0.5", "train.max_steps=100", NULL};
    struct gate_rule r = rule_of(settings);
    assert_float_equal(gate_reach(&r, 0.5, 0, 1, 10), 0.5 * 5.5, 1e-12);
    assert_float_equal(gate_reach(&r, 0.5, 0, 2, 2), 0.5 * 0.4, 1e-12);
    assert_float_equal(gate_reach(&r, 0.5, 90, 1, 10), 0.5 * 10, 1e-12);
    const char *ddp[] = {"train.method=ddp", NULL};
    r = rule_of(ddp);
    assert_true(gate_reach(&r, 0.5, 0, 1, 1) == 1 && isinf(gate_bound(&r, 1, 100, 0)));
}

static void test_bound_follows_inner_optimizer(void **state)
{
    (void)state;
    const char *adamw[] = {"codec.up=fp32", "inner.beta1=0.9", "inner.beta2=0.95", NULL};
    struct gate_rule r = rule_of(adamw);
    double most = gate_bound(&r, 0.01, 10000, 0) / (0.01 * 100); /* 0.1 / sqrt(0.05 (1 - 0.81 / 0.95)) = 1.165 */
    assert_float_equal(most, 4 * 1.165, 0.01);
    assert_float_equal(gate_bound(&r, 0.01, 10000, 3000) - most, 2 * 0.01 * 0.1 * 3000, 1e-9); /* weight decay 0.1 */
    const char *slow[] = {"codec.up=fp32", "inner.beta1=0.9", "inner.beta2=0.999", NULL};
    r = rule_of(slow);
    assert_true(gate_bound(&r, 0.01, 10000, 0) > 6 * most * 0.01 * 100 * 0.9);
    const char *lossy[] = {"codec.up=topk:64/4096+sign", NULL};
    r = rule_of(lossy);
    assert_true(gate_bound(&r, 0.01, 10000, 0) > 2 * most);
    const char *sgd[] = {"inner.optimizer=sgd", "codec.up=fp32", "inner.grad_clip=2", NULL};
    r = rule_of(sgd);
    assert_float_equal(gate_bound(&r, 0.01, 10000, 0), 4 * 2 * 0.01, 1e-9); /* for any number of parameters */
    const char *free_sgd[] = {"inner.optimizer=sgd", "inner.grad_clip=0", NULL};
    r = rule_of(free_sgd);
    assert_true(isinf(gate_bound(&r, 1, 100, 0)));
}

static bool opposes(double even, double odd, int n)
{
    struct gate_cosines c = {0};
    double mean;
    for (int i = 0; i < n; i++) gate_add_cosine(&c, i % 2 ? odd : even);
    return gate_opposes(&c, &mean);
}

static void test_only_lasting_opposition_counts(void **state)
{
    (void)state;
    assert_true(opposes(-0.4, -0.3, GATE_COSINES));
    assert_false(opposes(-0.4, -0.3, GATE_COSINES - 1)); /* too few rounds */
    assert_false(opposes(-0.05, -0.04, 100));            /* hardly against the others */
    assert_false(opposes(-0.7, 0.3, 100));               /* noise: the mean is -0.2 */
    struct gate_cosines c = {0};
    double mean;
    for (int i = 0; i < 100; i++) gate_add_cosine(&c, -1);
    for (int i = 0; i < GATE_COSINES; i++) gate_add_cosine(&c, NAN); /* says nothing */
    assert_true(gate_opposes(&c, &mean) && mean < -0.99);
    for (int i = 0; i < GATE_COSINES; i++) gate_add_cosine(&c, 0.5);
    assert_false(gate_opposes(&c, &mean));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_history_needs_samples),         cmocka_unit_test(test_limit_follows_reach),
        cmocka_unit_test(test_limit_follows_spread),          cmocka_unit_test(test_liar_does_not_raise_limit),
        cmocka_unit_test(test_majority_of_round_decides),     cmocka_unit_test(test_reach_sums_warmup_but_no_decay),
        cmocka_unit_test(test_bound_follows_inner_optimizer), cmocka_unit_test(test_only_lasting_opposition_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
