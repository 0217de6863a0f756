/* Learning-rate schedules at points with known values. */
#include <math.h>

#include "common/config/schedule.h"
#include "tests/lib/test.h"

static void check(const struct lr_schedule *s, double step, double lr)
{
    double got = lr_schedule_at(s, step);
    if (fabs(got - lr) > 1e-12) fail_msg("kind %d at step %g: %.15g, expected %.15g", (int)s->kind, step, got, lr);
}

static struct lr_schedule schedule(enum schedule kind)
{
    return (struct lr_schedule){.kind = kind, .base = 2.0, .min_fraction = 0.1, .warmup_steps = 10, .total_steps = 110};
}

TEST(test_warmup_rises_linearly)
{
    for (int kind = SCHEDULE_CONSTANT; kind <= SCHEDULE_WSD; kind++) {
        struct lr_schedule s = schedule((enum schedule)kind);
        check(&s, 0, 0.2);
        check(&s, -3, 0.2);
        check(&s, 4, 1.0);
        check(&s, 9, 2.0);
        check(&s, 9.5, 2.0); /* between the last warm-up step and the first step after it: never above base */
        check(&s, 10, 2.0);
        s.warmup_steps = 0;
        check(&s, 0, 2.0);
    }
}

TEST(test_shapes_follow_their_formulas)
{
    struct lr_schedule s = schedule(SCHEDULE_CONSTANT);
    check(&s, 60, 2.0);
    check(&s, 1e9, 2.0);
    s = schedule(SCHEDULE_LINEAR);
    check(&s, 60, 1.1); /* half of the way from 2 to 0.2 */
    check(&s, 85, 0.65);
    s = schedule(SCHEDULE_COSINE);
    check(&s, 60, 1.1);
    check(&s, 35, 0.2 + 1.8 * 0.5 * (1 + sqrt(0.5)));
    s = schedule(SCHEDULE_WSD); /* decays from step 88 to 110 */
    check(&s, 88, 2.0);
    check(&s, 50, 2.0);
    check(&s, 93.5, 0.2 + 1.8 * 0.5); /* a quarter of the decay: 1 - sqrt(1/4) */
}

TEST(test_rate_is_constant_after_last_step)
{
    for (int kind = SCHEDULE_LINEAR; kind <= SCHEDULE_WSD; kind++) {
        struct lr_schedule s = schedule((enum schedule)kind);
        check(&s, 110, 0.2);
        check(&s, 1e12, 0.2);
        s.warmup_steps = 200; /* a warm-up longer than the run continues to its end */
        check(&s, 110, 2.0 * 111 / 200);
        check(&s, 200, 0.2);
        check(&s, NAN, 2.0 / 200);
    }
}

TEST(test_rate_never_rises_after_warmup)
{
    for (int kind = SCHEDULE_LINEAR; kind <= SCHEDULE_WSD; kind++) {
        struct lr_schedule s = schedule((enum schedule)kind);
        for (double step = 10; step < 120; step += 0.25)
            assert_true(lr_schedule_at(&s, step + 0.25) <= lr_schedule_at(&s, step));
    }
}

TEST(test_inner_rate_is_scaled)
{
    static const struct {
        const char *text;
        double factor;
    } cases[] = {{"none", 1}, {"sqrt:9", 3}, {"linear:9", 9}};
    struct config c = {
        .inner = {.learning_rate = 0.5, .warmup_steps = 10, .min_lr_fraction = 0.1, .schedule = SCHEDULE_LINEAR},
        .train.max_steps = 110};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(c.inner.scaling, sizeof c.inner.scaling, "%s", cases[i].text);
        struct lr_schedule s = lr_inner_schedule(&c);
        assert_true(lr_inner_peak(&c) == 0.5 * cases[i].factor);
        check(&s, 9, 0.5 * cases[i].factor);
        check(&s, 110, 0.05 * cases[i].factor);
    }
}

TEST(test_scaling_is_parsed_or_refused)
{
    static const char *const bad[] = {"", "root", "sqrt:", "sqrt:0", "linear:2001", "linear:3x", "none:2", "sqrt:-1"};
    enum scaling scaling;
    uint32_t workers;
    assert_true(scaling_parse("linear", &scaling, &workers) && scaling == SCALING_LINEAR && !workers);
    assert_true(scaling_parse("sqrt:2000", &scaling, &workers) && scaling == SCALING_SQRT && workers == 2000);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(scaling_parse(bad[i], &scaling, &workers));
}

TEST_MAIN(NULL, NULL)
