/* What a trainer says of its steps, and of those it skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "worker/train_impl.h"

static int lines;
static char last[256];

static void keep(void *ctx, enum log_level level, const char *line)
{
    (void)ctx;
    assert_int_equal(level, LOG_WARN);
    lines++;
    snprintf(last, sizeof last, "%s", line);
}

/* A run that diverges skips every step from some point on: that is one warning, then one now and then. */
static void test_skipped_steps(void **state)
{
    (void)state;
    struct skip_log skips = {0};
    const struct config config = {.train.method = METHOD_DILOCO, .outer.optimizer = OPTIMIZER_NESTEROV};
    uint64_t now = 5000000;
    log_set_sink(keep, NULL);
    train_note_skip(&skips, &config, 41, now);
    assert_int_equal(lines, 1);
    assert_non_null(strstr(last, "step 42: the gradient is not finite, step skipped; if this goes on lower inner.l"));
    assert_non_null(strstr(last, " or outer.learning_rate, or set inner.grad_clip"));
    for (int i = 1; i < 300; i++) train_note_skip(&skips, &config, 41 + i, now += 100000);
    assert_int_equal(lines, 1);
    train_note_skip(&skips, &config, 341, now += 100000);
    assert_int_equal(lines, 2);
    assert_non_null(strstr(last, "300 more steps up to step 342"));
    train_note_skip(&skips, &config, 342, now += 100000);
    assert_int_equal(lines, 2);
    train_end_skips(&skips);
    assert_int_equal(lines, 3);
    assert_non_null(strstr(last, "1 more step up to step 343 was"));
    train_end_skips(&skips);
    assert_int_equal(lines, 3);
    log_set_sink(NULL, NULL);
}

/* A step of more than 71 minutes has no time that 32 bits hold: none is told, not a shorter one. */
static void test_long_steps(void **state)
{
    (void)state;
    static struct trainer t;
    static const double seconds[] = {0.25, 4200, 4300, 1e9};
    static const uint32_t expected[] = {250000, 4200000000, 0, 0};
    const struct step_note note = {.lr = 0.1};
    t.config.log.every_steps = 1000;
    for (int i = 0; i < 4; i++) {
        train_note_step(&t, &note, &(struct step_result){.tokens = 10, .compute_s = seconds[i]});
        assert_int_equal(metrics_queue_waiting(&t.steps), i + 1);
        assert_int_equal(t.steps.records[i].step.step_us, expected[i]);
        assert_int_equal(t.steps.records[i].step.tokens, 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_skipped_steps),
        cmocka_unit_test(test_long_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
