/* Alerts of a run, in virtual time: a cause starts one, its end ends it, the status and the events say so. */
#include <jansson.h>
#include <math.h>

#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/store/store_mem.h"
#include "tests/lib/test.h"

static struct rig rig;

static void start(int workers, const char *more, const char *more2)
{
    static char least[40];
    snprintf(least, sizeof least, "coordinator.min_workers=%d", workers);
    const char *settings[] = {"train.max_steps=200",
                              "outer.momentum=0",
                              least,
                              "coordinator.evict_after_s=100000",
                              more,
                              more ? more2 : NULL,
                              NULL};
    rig_open_with(&rig, settings, workers, false);
}

/* The text of an alert that fires; "": none of this rule. */
static const char *firing(const char *rule)
{
    static char text[512];
    size_t i;
    json_t *o = json_loads(rig_status(&rig), 0, NULL), *alert;
    text[0] = '\0';
    assert_non_null(o);
    json_array_foreach(json_object_get(o, "alerts"), i, alert)
    {
        const char *name, *words;
        assert_int_equal(json_unpack(alert, "{s:s, s:s}", "rule", &name, "text", &words), 0);
        if (!strcmp(name, rule)) snprintf(text, sizeof text, "%s", words);
    }
    json_decref(o);
    return text;
}

static long long total(const char *rule)
{
    json_int_t n = -1;
    json_t *o = json_loads(rig_status(&rig), 0, NULL);
    assert_int_equal(json_unpack(o, "{s:{s:I}}", "alerts_total", rule, &n), 0);
    json_decref(o);
    return n;
}

/* Starts and ends of a rule. */
static int events(const char *rule)
{
    int n = 0;
    for (size_t i = 0; i < rig.n_events; i++)
        n += rig.events[i].kind == ENGINE_EVENT_ALERT && !strcmp(rig.events[i].alert.rule, rule);
    return n;
}

/* One round of two steps takes s seconds. Workers below `missing` of all deliver. */
static void play(int workers, int missing, int s, float level, float apart)
{
    for (int i = 0; i < workers - missing; i++) rig_assigned(&rig, i);
    for (int t = 0; t < s; t++) {
        rig_wait(&rig, 1000000);
        for (int i = 0; i < workers - missing; i++) rig_beat(&rig, i, WORKER_TRAINING);
    }
    for (int i = 0; i < workers - missing; i++)
        for (uint32_t f = 0; f < 2; f++)
            assert_int_equal(rig_deliver(&rig, i, f, level + apart * (float)i).type, MSG_CREDIT);
    for (int i = 0; i < workers - missing; i++) rig_catch_up(&rig, i);
}

static void pause(int s)
{
    for (int t = 0; t < s; t++) {
        rig_wait(&rig, 1000000);
        for (int i = 0; i < 2; i++) rig_beat(&rig, i, WORKER_TRAINING);
    }
}

TEST(test_no_round_starts_and_ends)
{
    start(2, NULL, NULL);
    for (int i = 0; i < 4; i++) play(2, 0, 20, 1, 9);
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    pause(98);
    assert_string_equal(firing("no_round"), "");
    pause(4);
    assert_non_null(strstr(firing("no_round"), "no round for 1 min 42 s"));
    assert_non_null(
        strstr(firing("no_round"), "(usually 20.1 s): waiting for round 5: 0 of 2 deltas are in, missing: "));
    assert_int_equal(events("no_round"), 1);
    pause(500);
    assert_int_equal(events("no_round"), 1);
    for (int i = 0; i < 2; i++)
        for (uint32_t f = 0; f < 2; f++) (void)rig_deliver(&rig, i, f, 1 + 9 * (float)i);
    rig_wait(&rig, 1100000);
    assert_string_equal(firing("no_round"), "");
    const struct engine_event *end = rig_last(&rig, ENGINE_EVENT_ALERT, NULL);
    assert_false(end->alert.starts);
    assert_true(end->alert.for_s > 499 && end->alert.for_s < 510);
    assert_int_equal(total("no_round"), 1);
    rig_close(&rig);
}

/* Before the first round the machines are being started. Later nobody may be left. */
TEST(test_waiting_for_workers)
{
    start(2, "coordinator.min_workers=2", NULL);
    rig_leave(&rig, 1);
    rig_leave(&rig, 0);
    rig_wait(&rig, 7200000000);
    assert_string_equal(firing("no_round"), "");
    rig_close(&rig);
    start(2, NULL, NULL);
    for (int i = 0; i < 3; i++) play(2, 0, 2, 1, 9);
    for (int i = 0; i < 2; i++) rig_leave(&rig, i);
    rig_wait(&rig, 58000000);
    assert_string_equal(firing("no_round"), "");
    rig_wait(&rig, 5000000);
    assert_non_null(strstr(firing("no_round"), "waiting for workers: 0 of 2 are ready"));
    rig_close(&rig);
}

/* A machine that slept for hours did not wait. */
TEST(test_pause_of_the_coordinator)
{
    start(2, NULL, NULL);
    for (int i = 0; i < 4; i++) play(2, 0, 20, 1, 9);
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    pause(10);
    rig.now += 7200000000;
    for (int i = 0; i < 2; i++) rig_beat(&rig, i, WORKER_TRAINING);
    pause(10);
    assert_string_equal(firing("no_round"), "");
    rig_close(&rig);
}

TEST(test_missing_worker)
{
    start(3, "coordinator.quorum=2", NULL);
    for (int i = 0; i < 6; i++) play(3, 0, 4, 1, 9);
    assert_string_equal(firing("worker_missing"), "");
    for (int i = 0; i < 2; i++) {
        play(3, 1, 4, 1, 9);
        pause(30);
        assert_int_equal(firing("worker_missing")[0] != 0, i == 1);
    }
    assert_string_equal(firing("worker_missing"), "worker-2 had no part in 2 of the last 5 rounds");
    assert_int_equal(events("worker_missing"), 1);
    rig_leave(&rig, 2); /* it goes on purpose */
    play(2, 0, 4, 1, 9);
    assert_string_equal(firing("worker_missing"), "");
    assert_int_equal(events("worker_missing"), 2);
    rig_close(&rig);
}

/* What a checkpoint says of a worker is no part in a round of this process. */
TEST(test_worker_that_left_before_the_restart_is_not_missing)
{
    start(3, "coordinator.quorum=2", "checkpoint.every=1");
    for (int i = 0; i < 4; i++) play(3, 0, 4, 1, 9);
    rig_leave(&rig, 2);
    for (int i = 0; i < 2; i++) play(2, 0, 4, 1, 9);
    rig_restart(&rig, false, 0);
    for (int i = 0; i < 2; i++) rig_join(&rig, i);
    for (int i = 0; i < 5; i++) play(2, 0, 4, 1, 9);
    pause(10);
    assert_string_equal(firing("worker_missing"), "");
    assert_int_equal(events("worker_missing"), 0);
    rig_close(&rig);
}

TEST(test_agreement_follows_the_note)
{
    start(2, NULL, NULL);
    for (int i = 0; i < 3; i++) play(2, 0, 2, (float)(i + 1), 0);
    rig_wait(&rig, 1100000);
    assert_non_null(strstr(firing("agreement"), "nearly the same delta"));
    assert_true(rig_last(&rig, ENGINE_EVENT_ALERT, NULL)->alert.told); /* the note is in the log */
    play(2, 0, 2, 40, 300);
    rig_wait(&rig, 1100000);
    assert_string_equal(firing("agreement"), "");
    rig_close(&rig);
}

TEST(test_disk)
{
    start(2, NULL, NULL);
    play(2, 0, 2, 1, 9);
    store_mem_set_free(rig.store, UINT64_C(100) << 30);
    rig_wait(&rig, 11000000);
    assert_non_null(strstr(firing("disk"), "the disk of the run folder has 107 GB left, 10 % of it; a checkpoint takes "
                                           "2.3"));     /* kB, with the settings' text */
    store_mem_set_free(rig.store, UINT64_C(110) << 30); /* 10.7 % */
    rig_wait(&rig, 11000000);
    assert_int_equal(firing("disk")[0] != 0, 1);
    store_mem_set_free(rig.store, UINT64_C(200) << 30);
    rig_wait(&rig, 11000000);
    assert_string_equal(firing("disk"), "");
    assert_int_equal(events("disk"), 2);
    rig_close(&rig);
}

TEST(test_refused_deltas)
{
    start(2, "codec.up=bf16", NULL);
    for (int i = 0; i < 3; i++) play(2, 0, 2, 1, 9);
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    for (uint32_t f = 0; f < 2; f++) {
        assert_int_equal(rig_deliver(&rig, 0, f, 1).type, MSG_CREDIT);
        rig_wait(&rig, 1100000);
        assert_string_equal(firing("refused"), "");
        assert_int_equal(rig_deliver(&rig, 1, f, 0x1p100f).type, MSG_REJECT);
    }
    rig_wait(&rig, 1100000);
    assert_string_equal(firing("refused"),
                        "2 deltas were refused within 5 rounds, the last one from worker-1: see the faults in the log");
    for (int i = 0; i < 2; i++) rig_catch_up(&rig, i);
    for (int i = 0; i < 4; i++) play(2, 0, 2, 1, 9);
    rig_wait(&rig, 1100000);
    assert_int_equal(firing("refused")[0] != 0, 1);
    for (int i = 0; i < 2; i++) play(2, 0, 2, 1, 9);
    rig_wait(&rig, 1100000);
    assert_string_equal(firing("refused"), "");
    rig_close(&rig);
}

TEST_MAIN(NULL, NULL)
