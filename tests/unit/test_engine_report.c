/* What the engine tells people: the figures of a round's line, whom it waits for. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

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

/* Killed before anybody joined: how many rounds there will be is not known yet. */
static void test_restart_before_the_first_worker(void **state)
{
    (void)state;
    const char *const settings[] = {NULL};
    rig_open(&rig, settings);
    rig_restart(&rig, false, 0);
    assert_int_equal(last_event(ENGINE_EVENT_RESTART)->round, 0);
    rig_join(&rig, 0);
    rig_assigned(&rig, 0);
    rig_close(&rig);
}

/* A run that is continued says at once whom it waits for and how long. */
static void test_restart_names_the_missing(void **state)
{
    (void)state;
    char text[WIRE_TEXT_MAX];
    const char *const settings[] = {"coordinator.min_workers=2", "coordinator.evict_after_s=30", NULL};
    rig_open(&rig, settings);
    for (int i = 0; i < 2; i++) rig_join(&rig, i);
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    rig_restart(&rig, false, 0);
    assert_int_equal(last_event(ENGINE_EVENT_RESTART)->round, 0);
    assert_string_equal(rig.event_text[rig.n_events - 1],
                        "continuing the run found in its folder at round 1 of 3; whoever is not back within 30 s "
                        "(coordinator.evict_after_s) is left out: worker-0, worker-1");
    rig_join(&rig, 0);
    rig_wait(&rig, 10000000);
    rig_beat(&rig, 0, WORKER_TRAINING);
    engine_waiting(rig.engine, text, sizeof text);
    assert_string_equal(text, "round 1: worker-0 (training, step 0/2), worker-1 (not connected, left out in 20 s)");
    rig_wait(&rig, 2000000);
    rig_beat(&rig, 0, WORKER_TRAINING);
    rig_wait(&rig, 4000000);
    engine_waiting(rig.engine, text, sizeof text);
    assert_non_null(strstr(text, "worker-0 (silent for 4 s, left out in 26 s)"));
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_after_divergence),
        cmocka_unit_test(test_restart_before_the_first_worker),
        cmocka_unit_test(test_restart_names_the_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
