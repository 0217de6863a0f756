/* A worker that joins while the others train, on a slow link: it never stops them. And an eviction clock runs only
 * while somebody is connected. */

#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/test.h"

enum { SLOW = 100, FAST = 1000000 }; /* bytes per second; the updates of a round have about 500 bytes */

static struct rig rig;
static uint8_t object[8192];

static void round_of_worker_0(void)
{
    rig_assigned(&rig, 0);
    for (uint32_t f = 0; f < rig.layout.n_fragments; f++) assert_int_equal(rig_deliver(&rig, 0, f, 1).type, MSG_CREDIT);
    rig_catch_up(&rig, 0);
    rig_answer_evals(&rig, 1, 2.0);
}

/* Time in which worker 0 is heard. */
static void pass(int seconds)
{
    for (int s = 0; s < seconds; s++) {
        rig_beat(&rig, 0, WORKER_TRAINING);
        rig_wait(&rig, 1000000);
    }
}

/* Worker 0 trains alone; worker 1 joined and loads its snapshot, while the log grows by `rounds`. */
static void begin(const char *const *settings, uint64_t rate, int rounds)
{
    rig_open_with(&rig, settings, 1, false);
    for (int i = 0; i < 3; i++) round_of_worker_0();
    rig_join(&rig, 1);
    rig.workers[1].rate = rate;
    rig_beat(&rig, 1, WORKER_CATCHING_UP);
    for (int i = 0; i < rounds; i++) round_of_worker_0();
}

static const char *const long_run[] = {"checkpoint.every=100", "train.max_steps=400", NULL};

/* What the coordinator's last answer says to worker 1. */
static void expect_told(const char *first, const char *then)
{
    struct msg ack;
    char last[WIRE_TEXT_MAX] = "no answer";
    while (rig_take(&rig, 1, MSG_HEARTBEAT_ACK, &ack)) memcpy(last, ack.heartbeat_ack.waiting_for, sizeof last);
    if (!strstr(last, first) || !strstr(last, then)) fail_msg("'%s' and '%s' are not in '%s'", first, then, last);
}

TEST(test_late_worker_gets_no_work)
{
    begin(long_run, SLOW, 2);
    rig_forget(&rig);
    rig_beat(&rig, 0, WORKER_READY); /* its assignment again */
    rig_beat(&rig, 1, WORKER_READY);
    expect_told("nobody: this worker is 2 updates behind, ", " s at 0.0008 Mbit/s");
    for (int i = 0; i < 4; i++) {
        round_of_worker_0();
        rig_beat(&rig, 1, WORKER_READY);
        rig_expect_none(&rig, 1, MSG_ASSIGN);
    }
    expect_told("nobody: this worker is 6 updates behind, ", ": this link cannot keep up");
    assert_null(strstr(rig_waiting(&rig), "worker-1"));
    /* Within reach at a better rate: it takes part in the next round. */
    rig.workers[1].rate = FAST;
    rig_beat(&rig, 1, WORKER_READY);
    round_of_worker_0();
    rig_assigned(&rig, 1);
    rig_close(&rig);
}

/* One update behind, before anything was measured: it takes part, as a worker of a fast network does. */
TEST(test_worker_one_update_behind_gets_work)
{
    for (int before = 0; before <= 1; before++) {
        begin(long_run, 0, before);
        rig_beat(&rig, 1, WORKER_READY);
        round_of_worker_0();
        struct msg m;
        assert_int_equal(rig_take(&rig, 1, MSG_ASSIGN, &m), before == 0);
        rig_close(&rig);
    }
}

/* Slow, but its last delta was merged: a member of the rounds, which the others wait for. */
TEST(test_member_on_slow_link_is_not_late)
{
    const char *settings[] = {"coordinator.min_workers=2", "train.max_steps=40", NULL};
    rig_open(&rig, settings);
    for (int i = 0; i < 2; i++) {
        rig.workers[i].rate = SLOW;
        rig_join(&rig, i);
    }
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
        rig_deliver_all(&rig, 2, 1);
    }
    rig_close(&rig);
}

static void expect_gone(bool gone)
{
    struct msg m;
    assert_int_equal(rig_get(&rig, 1, OBJECT_UPDATE, 0, rig.workers[1].versions[0] + 1, object, sizeof object), 0);
    assert_int_equal(rig_take(&rig, 1, MSG_REFUSE, &m), gone);
    if (gone) assert_int_equal(m.refuse.code, REFUSE_GONE);
}

/* Joins with the state that it has; returns what WELCOME says. */
static struct msg_welcome join_again(void)
{
    struct rig_worker *w = &rig.workers[1];
    struct msg m;
    rig_hello(&rig, 1);
    rig_expect(&rig, 1, MSG_CONFIG, &m);
    rig_join_message(&rig, 1, true, &m);
    rig_say(&rig, w->control, &m);
    rig_expect(&rig, 1, MSG_WELCOME, &m);
    w->session = m.welcome.session;
    if (!m.welcome.resume)
        for (uint32_t f = 0; f < rig.layout.n_fragments; f++) w->versions[f] = m.welcome.snapshot[f].version;
    struct msg bind = {.type = MSG_BIND, .bind.session = w->session};
    rig_say(&rig, w->bulk, &bind);
    rig_beat(&rig, 1, WORKER_CATCHING_UP);
    return m.welcome;
}

TEST(test_aged_snapshot_is_replaced)
{
    begin(long_run, SLOW, 4);
    expect_gone(true);
    struct msg_welcome w = join_again();
    assert_false(w.resume);
    assert_true(w.shorter); /* it keeps its residual: none of its deltas was merged meanwhile */
    assert_int_equal(w.snapshot[0].version, 7);
    assert_int_equal(w.current[0].version, 7);
    /* Out of reach again: its link cannot follow. It waits, four times as long as it loaded. */
    pass(1);
    for (int i = 0; i < 4; i++) round_of_worker_0();
    expect_gone(false);
    for (int s = 0; s < 5; s++) {
        pass(1);
        round_of_worker_0();
    }
    expect_gone(true);
    assert_int_equal(join_again().snapshot[0].version, 16);
    rig_close(&rig);
}

/* The others have stopped: a newer snapshot comes at once. */
TEST(test_run_at_rest_renews_at_once)
{
    begin(long_run, SLOW, 4);
    expect_gone(true);
    join_again();
    pass(4);
    for (int i = 0; i < 4; i++) round_of_worker_0();
    expect_gone(false);
    pass(3);
    expect_gone(true);
    rig_close(&rig);
}

/* A worker with the updates in reach keeps its state, and replays them. */
TEST(test_fast_worker_replays_updates)
{
    begin(long_run, FAST, 4);
    assert_true(rig_get(&rig, 1, OBJECT_UPDATE, 0, rig.workers[1].versions[0] + 1, object, sizeof object) > 0);
    rig_close(&rig);
}

/* Its delta was merged while it was away: only the updates tell it so, however many they are. */
TEST(test_worker_with_merged_delta_replays_updates)
{
    const char *settings[] = {"coordinator.min_workers=2", "coordinator.quorum=1", "train.max_steps=400",
                              "checkpoint.every=100", NULL};
    rig_open_with(&rig, settings, 2, true);
    for (uint32_t f = 0; f < rig.layout.n_fragments; f++)
        for (int i = 2; i-- > 0;) assert_int_equal(rig_deliver(&rig, i, f, 1).type, MSG_CREDIT);
    rig_catch_up(&rig, 0);
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < 4; i++) { /* the limit of a second */
            rig_beat(&rig, 0, WORKER_WAITING);
            rig_wait(&rig, 500000);
        }
        round_of_worker_0();
    }
    assert_true(join_again().resume);
    rig_close(&rig);
}

TEST(test_late_worker_evaluates_nothing)
{
    const char *settings[] = {"checkpoint.every=100", "train.max_steps=400", "train.eval_every=1", NULL};
    begin(settings, SLOW, 0);
    for (int i = 0; i < 3; i++) {
        rig_assigned(&rig, 0);
        for (uint32_t f = 0; f < rig.layout.n_fragments; f++)
            assert_int_equal(rig_deliver(&rig, 0, f, 1).type, MSG_CREDIT);
        rig_beat(&rig, 1, WORKER_READY);
        rig_catch_up(&rig, 0);
        rig_answer_evals(&rig, 1, 2.0);
        if (i > 0) rig_expect_none(&rig, 1, MSG_EVAL);
        rig_forget(&rig);
        rig_beat(&rig, 0, WORKER_READY);
    }
    rig_close(&rig);
}

/* The end of the run does not wait until it has loaded the last update. */
TEST(test_end_of_run_does_not_wait_for_it)
{
    const char *settings[] = {"checkpoint.every=100", "train.max_steps=12", NULL};
    begin(settings, SLOW, 3);
    rig_beat(&rig, 1, WORKER_CATCHING_UP);
    rig_beat(&rig, 0, WORKER_FINISHED);
    rig_leave(&rig, 0);
    rig_wait(&rig, 12000000);
    assert_true(engine_finished(rig.engine));
    rig_close(&rig);
}

/* --- the eviction clock ------------------------------------------------------------------------------------------- */

static const char *const two[] = {"coordinator.min_workers=2", "coordinator.evict_after_s=30", NULL};

TEST(test_no_clock_runs_while_nobody_is_here)
{
    rig_open_with(&rig, two, 2, true);
    rig_restart(&rig, false, 0); /* the coordinator stood still; its workers are gone, too */
    rig_wait(&rig, 3600000000);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_EVICT), 0);
    assert_null(strstr(rig_waiting(&rig), "evicted"));
    /* The first worker is back: from now on the other one has 30 s. */
    rig_join(&rig, 0);
    for (int s = 0; s < 28; s += 2) {
        rig_beat(&rig, 0, WORKER_TRAINING);
        rig_wait(&rig, 2000000);
        assert_int_equal(rig_events(&rig, ENGINE_EVENT_EVICT), 0);
    }
    rig_join(&rig, 1);
    rig_assigned(&rig, 1);
    assert_int_equal(rig.workers[1].task.round, 0); /* the round that it had */
    rig_close(&rig);
}

/* The same without a restart: all workers of the run were stopped for an hour. */
TEST(test_sleep_of_all_workers_costs_no_round)
{
    rig_open_with(&rig, two, 2, true);
    rig_wait(&rig, 3600000000);
    for (int i = 0; i < 2; i++) rig_join(&rig, i);
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_EVICT), 0);
    rig_close(&rig);
}

/* All places are taken by workers that never come back. A new worker asks for a place and waits. */
TEST(test_stranger_makes_the_clock_run)
{
    const char *settings[] = {"coordinator.min_workers=2", "coordinator.max_workers=2", "coordinator.evict_after_s=30",
                              NULL};
    struct msg m;
    rig_open_with(&rig, settings, 2, true);
    rig_wait(&rig, 3600000000);
    for (int s = 0; s < 40; s += 10) {
        rig_hello(&rig, 2);
        rig_wait(&rig, 10000000);
    }
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_EVICT), 2);
    const char *last = "";
    for (size_t i = 0; i < rig.n_events; i++)
        if (rig.events[i].kind == ENGINE_EVENT_EVICT) last = rig.event_text[i];
    assert_non_null(strstr(last, "; its samples wait for the next worker")); /* there are no others */
    rig_hello(&rig, 2);
    rig_expect(&rig, 2, MSG_CONFIG, &m);
    rig_close(&rig);
}

TEST_MAIN(NULL, NULL)
