/* What the engine tells people: the figures of a round's line. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/engine_rig.h"

static struct rig rig;

static const struct engine_event *last_event(enum engine_event_kind kind)
{
    for (size_t i = rig.n_events; i > 0; i--)
        if (rig.events[i - 1].kind == kind) return &rig.events[i - 1];
    fail_msg("no such event");
    return NULL;
}

/* A worker that diverged spoils the figures of its own round only. */
static void test_loss_after_divergence(void **state)
{
    (void)state;
    static const double sums[] = {1e38, 10, INFINITY, 10}; /* over 16 tokens */
    const char *const settings[] = {"train.max_steps=8", NULL};
    rig_open(&rig, settings);
    rig_join(&rig, 0);
    for (int round = 0; round < 4; round++) {
        rig_assigned(&rig, 0); /* the line of a round comes with the next one */
        if (round) assert_true(last_event(ENGINE_EVENT_ROUND)->loss == sums[round - 1] / 16);
        rig.loss_sum = sums[round];
        rig_deliver_all(&rig, 1, 1.0f);
    }
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_after_divergence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
