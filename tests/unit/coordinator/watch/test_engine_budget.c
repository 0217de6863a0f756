/* run.max_hours and run.max_gb: the open round ends, no other one opens, the counters outlive the process, and a larger
 * limit continues the run. */
#include <math.h>

#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/test.h"

static struct rig rig;

static void start(const char *budget, const char *more)
{
    const char *settings[] = {"train.max_steps=40", "coordinator.min_workers=2", budget, more, NULL};
    rig_open_with(&rig, settings, 2, false);
}

static void deliver(int worker)
{
    for (uint32_t f = 0; f < 2; f++) (void)rig_deliver(&rig, worker, f, 1 + 9 * (float)worker);
}

static void play(void)
{
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    for (int i = 0; i < 2; i++) deliver(i);
    for (int i = 0; i < 2; i++) rig_catch_up(&rig, i);
}

static void pass(int s)
{
    for (int t = 0; t < s; t++) {
        rig_wait(&rig, 1000000);
        for (int i = 0; i < 2; i++) rig_beat(&rig, i, WORKER_TRAINING);
    }
}

static int alerts(const char *rule)
{
    int n = 0;
    for (size_t i = 0; i < rig.n_events; i++)
        n += rig.events[i].kind == ENGINE_EVENT_ALERT && !strcmp(rig.events[i].alert.rule, rule);
    return n;
}

TEST(test_hours_end_at_a_round)
{
    start("run.max_hours=0.01", NULL); /* 36 s */
    play();
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    pass(30);
    assert_int_equal(alerts("budget"), 1);
    assert_null(engine_spent(rig.engine));
    pass(10);
    assert_null(engine_spent(rig.engine)); /* the round is open */
    for (int i = 0; i < 2; i++) deliver(i);
    for (int i = 0; i < 2; i++) rig_catch_up(&rig, i);
    assert_non_null(engine_spent(rig.engine));
    assert_string_equal(engine_spent(rig.engine),
                        "run.max_hours is used up (0.01 of 0.01 h): continue with a larger one, such as "
                        "--run.max_hours=0.02");
    rig_expect_none(&rig, 0, MSG_ASSIGN);
    rig_forget(&rig);
    assert_true(engine_dismiss(rig.engine, "stopped"));
    for (int i = 0; i < 2; i++) rig_refused(&rig, i, REFUSE_SPENT, "stopped");
    rig_close(&rig);
}

/* A worker that never delivers does not keep the run alive: three usual rounds, at least a minute. */
TEST(test_open_round_has_a_time_limit)
{
    start("run.max_hours=0.01", "coordinator.evict_after_s=100000");
    for (int i = 0; i < 3; i++) play();
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    pass(90);
    assert_null(engine_spent(rig.engine));
    pass(10);
    assert_non_null(engine_spent(rig.engine));
    rig_close(&rig);
}

TEST(test_gigabytes_count_all_traffic)
{
    start("run.max_gb=1", NULL);
    play();
    rig.socket = 200000000; /* up and down */
    rig.others = 100000000; /* up; down twice as much */
    play();
    assert_null(engine_spent(rig.engine)); /* 0.7 GB */
    rig.others = 250000000;                /* 1.15 GB */
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    for (int i = 0; i < 2; i++) deliver(i);
    for (int i = 0; i < 2; i++) rig_catch_up(&rig, i);
    assert_non_null(engine_spent(rig.engine));
    rig_close(&rig);
}

/* Hours without a round count, too, also if the process is then killed. */
TEST(test_counters_survive_a_kill)
{
    start("run.max_hours=0.5", NULL);
    play();
    for (int i = 0; i < 2; i++) rig_leave(&rig, i);
    rig_wait(&rig, 1500000000); /* 25 min */
    rig_restart(&rig, false, 0);
    assert_null(engine_spent(rig.engine));
    rig_wait(&rig, 400000000); /* 31.6 min in all, perhaps without one of them */
    assert_non_null(engine_spent(rig.engine));
    rig_stop(&rig);
    struct err err = {0};
    assert_int_equal(rig_start(&rig, &err), STATUS_OK);
    assert_non_null(engine_spent(rig.engine)); /* at once */
    rig_stop(&rig);
    rig.config.run.max_hours = 1;
    assert_int_equal(rig_start(&rig, &err), STATUS_OK);
    assert_null(engine_spent(rig.engine));
    rig_close(&rig);
}

TEST(test_stop_keeps_the_clock)
{
    struct err err = {0};
    start("run.max_hours=0.01", NULL);
    play();
    for (int i = 0; i < 2; i++) rig_leave(&rig, i);
    rig_wait(&rig, 30000000);
    assert_int_equal(engine_stop(rig.engine, &err), STATUS_OK);
    rig_restart(&rig, true, 1);
    rig_wait(&rig, 7000000); /* 37 s in all: nothing is lost */
    assert_non_null(engine_spent(rig.engine));
    rig_close(&rig);
}

/* Only the last evaluation is missing: the run ends as a whole. */
TEST(test_last_round_ends_the_run)
{
    const char *settings[] = {"train.max_steps=4", "coordinator.min_workers=2", "run.max_hours=0.01", NULL};
    rig_open_with(&rig, settings, 2, false);
    play();
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    pass(40);
    for (int i = 0; i < 2; i++) deliver(i);
    for (int i = 0; i < 2; i++) rig_catch_up(&rig, i);
    assert_null(engine_spent(rig.engine));
    rig_answer_evals(&rig, 2, 1);
    assert_true(engine_done(rig.engine));
    assert_null(engine_spent(rig.engine));
    rig_close(&rig);
}

TEST_MAIN(NULL, NULL)
