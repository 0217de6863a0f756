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

static struct config outer_config(enum outer_schedule schedule, double momentum)
{
    struct config c = {.train = {.max_steps = 79, .sync_every = 10},
                       .outer = {.learning_rate = 0.7, .momentum = momentum, .schedule = schedule}};
    return c; /* 8 rounds */
}

static void check_outer(const struct config *c, uint64_t version, double rate)
{
    double got = outer_rate_of_version(c, version);
    if (fabs(got - rate) > 1e-12) fail_msg("version %d: %.15g, expected %.15g", (int)version, got, rate);
}

TEST(test_outer_rate_follows_its_formula)
{
    struct config c = outer_config(OUTER_CONSTANT, 0.9);
    assert_true(outer_rate_of_version(&c, 1) == 0.7 && outer_rate_of_version(&c, 1000) == 0.7);
    c = outer_config(OUTER_COSINE, 0.9);
    check_outer(&c, 1, 0.7);
    check_outer(&c, 3, 0.7 * (0.1 + 0.45 * (1 + sqrt(0.5))));
    check_outer(&c, 5, 0.7 * 0.55);
    check_outer(&c, 7, 0.7 * (0.1 + 0.45 * (1 - sqrt(0.5))));
    check_outer(&c, 9, 0.07); /* after the planned rounds */
    check_outer(&c, 100, 0.07);
    for (uint64_t v = 1; v < 8; v++) assert_true(outer_rate_of_version(&c, v + 1) < outer_rate_of_version(&c, v));
    c = outer_config(OUTER_TRANSIENT, 0.5);
    check_outer(&c, 1, 1.4);
    check_outer(&c, 2, 0.7 / 0.75);
    check_outer(&c, 3, 0.8);
    check_outer(&c, 1000, 0.7);
}

TEST(test_inner_rate_is_scaled)
{
    static const double factors[] = {[SCALING_NONE] = 1, [SCALING_SQRT] = 3, [SCALING_LINEAR] = 9};
    struct config c = {.inner = {.learning_rate = 0.5,
                                 .warmup_steps = 10,
                                 .min_lr_fraction = 0.1,
                                 .schedule = SCHEDULE_LINEAR,
                                 .scaling_workers = 9},
                       .train.max_steps = 110};
    for (int kind = SCALING_NONE; kind <= SCALING_LINEAR; kind++) {
        c.inner.scaling = (enum scaling)kind;
        struct lr_schedule s = lr_inner_schedule(&c);
        assert_true(lr_inner_peak(&c) == 0.5 * factors[kind]);
        check(&s, 9, 0.5 * factors[kind]);
        check(&s, 110, 0.05 * factors[kind]);
    }
}

TEST_MAIN(NULL, NULL)
