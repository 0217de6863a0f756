/* A worker that lies with its deltas: the engine refuses them, the others go on as if they had never arrived, and the
 * liar is put aside until it is readmitted. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "coordinator/ledger/store.h"
#include "coordinator/round/gate.h"
#include "tests/lib/rigs/engine_rig.h"

enum { HONEST_ROUNDS = 4, NOTHING = -1 };

static struct rig rig;
static uint64_t open_id[RIG_WORKERS], delivered[RIG_WORKERS]; /* assignments; heartbeats repeat them */

static void start(const char *method, int workers, const char *more)
{
    char least[40];
    bool ddp = !strcmp(method, "train.method=ddp");
    snprintf(least, sizeof least, "coordinator.min_workers=%d", workers);
    const char *settings[] = {"train.fragments=1",
                              "codec.up=bf16",
                              "codec.down=fp32",
                              "train.max_steps=400",
                              ddp ? "run.seed=1" : "outer.momentum=0",
                              method,
                              least,
                              more,
                              NULL};
    memset(delivered, 0, sizeof delivered);
    memset(open_id, 0, sizeof open_id);
    rig_open(&rig, settings);
    for (int i = 0; i < workers; i++) rig_join(&rig, i);
}

/* Takes the newest assignment of a worker. False: none that it has not delivered. */
static bool assigned(int worker)
{
    struct msg m;
    while (rig_take(&rig, worker, MSG_ASSIGN, &m)) {
        rig.workers[worker].task = m.assign;
        rig.workers[worker].id = m.assign.worker_id;
        open_id[worker] = m.assign.ranges[0].start + (m.assign.round << 32) + 1;
    }
    return open_id[worker] && open_id[worker] != delivered[worker];
}

/* Delivers a delta of this level; returns the code of its refusal, or 0. */
static int deliver(int worker, float level)
{
    delivered[worker] = open_id[worker];
    struct msg m = rig_deliver(&rig, worker, 0, level);
    if (m.type != MSG_REJECT) return 0;
    delivered[worker] = open_id[worker] = 0; /* the same samples may be assigned again */
    return m.reject.code;
}

static void catch_up(int workers)
{
    for (int i = 0; i < workers; i++) rig_catch_up(&rig, i);
}

/* A round of honest workers, each with a slightly different delta; `liar` (or -1) sends `lie` last. Returns the code of
 * its refusal; 0: merged; NOTHING: it has no assignment. */
static int play_round(int workers, int liar, float lie)
{
    struct msg m;
    int code = NOTHING;
    bool has[RIG_WORKERS];
    for (int i = 0; i < workers; i++) has[i] = assigned(i);
    for (int i = 0; i < workers; i++)
        if (i != liar && has[i]) assert_int_equal(deliver(i, 1 + 0.1f * (float)i), 0);
    if (liar >= 0 && has[liar]) code = deliver(liar, lie);
    if (liar >= 0 && rig_take(&rig, liar, MSG_REJECT, &m)) code = m.reject.code;
    if (code > 0) delivered[liar] = open_id[liar] = 0;
    for (int i = 0; i < workers; i++)
        if (i != liar) rig_expect_none(&rig, i, MSG_REJECT);
    catch_up(workers);
    return code;
}

static bool logged(const char *text)
{
    for (size_t i = 0; i < rig.n_events; i++)
        if (strstr(rig.event_text[i], text)) return true;
    return false;
}

/* The theta after HONEST_ROUNDS rounds and one in which the delta of worker 2 never arrives. */
static uint64_t theta_without_liar(void)
{
    start("train.method=diloco", 3, "coordinator.quorum=2");
    for (int r = 0; r < HONEST_ROUNDS; r++) play_round(3, -1, 0);
    for (int i = 0; i < 2; i++) assert_true(assigned(i) && !deliver(i, 1 + 0.1f * (float)i));
    rig_wait(&rig, 30000000); /* the quorum's time limit */
    assert_int_equal(engine_version(rig.engine, 0), HONEST_ROUNDS + 1);
    uint64_t hash = rig_theta_hash(&rig);
    rig_close(&rig);
    return hash;
}

static void test_large_delta_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    static const float lies[] = {20, 1e3f, 1e6f, -1e6f, 1e16f, 1.7e20f /* largest value: 1.8e19 */};
    uint64_t expected = theta_without_liar();
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        start("train.method=diloco", 3, "coordinator.quorum=2");
        for (int r = 0; r < HONEST_ROUNDS; r++) assert_int_equal(play_round(3, -1, 0), NOTHING);
        if (play_round(3, 2, lies[i]) != REJECT_OUTLIER) fail_msg("level %g was merged", (double)lies[i]);
        assert_int_equal(engine_version(rig.engine, 0), HONEST_ROUNDS + 1);
        assert_true(rig_theta_hash(&rig) == expected);
        assert_true(logged("times the median") && logged("the limit is"));
        char status[4096];
        assert_true(engine_status_json(rig.engine, status, sizeof status) > 0);
        assert_non_null(strstr(status, "\"refused_for\":{\"outlier\":1}"));
        rig_close(&rig);
    }
}

/* No delta of anybody is possible: without the reason the line would call them ready, and the run would look idle. */
static void test_waiting_line_says_that_all_deltas_are_refused(void **state)
{
    (void)state;
    char text[WIRE_TEXT_MAX];
    start("train.method=diloco", 2, "inner.optimizer=adamw");
    assert_true(assigned(0) && assigned(1));
    for (int i = 0; i < 2; i++) assert_int_equal(deliver(i, 1e6f), REJECT_OUTLIER);
    for (int i = 0; i < 2; i++) rig_beat(&rig, i, WORKER_READY);
    engine_waiting(rig.engine, text, sizeof text);
    if (!strstr(text, "; all deltas refused: its norm ")) fail_msg("waiting for %s", text);
    /* A delta is merged: the line says no more of it. */
    for (int i = 0; i < 2; i++) assert_true(assigned(i) && !deliver(i, 1e-3f));
    catch_up(2);
    engine_waiting(rig.engine, text, sizeof text);
    assert_null(strstr(text, "refused"));
    rig_close(&rig);
}

/* Statistics such as those of BatchNorm may jump: the gate does not judge mean tensors, neither norm nor direction. */
static void test_mean_tensors_are_not_judged(void **state)
{
    (void)state;
    for (int mean = 0; mean < 2; mean++) {
        rig_layout_flags = mean ? LAYOUT_MEAN : 0;
        start("train.method=diloco", 3, "run.seed=1");
        for (int r = 0; r < HONEST_ROUNDS; r++) play_round(3, -1, 0);
        assert_int_equal(play_round(3, 2, 1000), mean ? 0 : REJECT_OUTLIER);
        rig_close(&rig);
    }
    rig_layout_flags = 0;
}

static void test_liar_in_first_round_is_refused_by_majority(void **state)
{
    (void)state;
    start("train.method=diloco", 3, NULL);
    assert_int_equal(play_round(3, 1, 1e3f), REJECT_OUTLIER);
    assert_int_equal(engine_version(rig.engine, 0), 1);
    rig_close(&rig);
}

/* The bound of the optimizer works without any other delta. */
static void test_liar_in_first_round_exceeds_bound(void **state)
{
    (void)state;
    start("train.method=diloco", 2, "inner.grad_clip=100");
    assert_int_equal(play_round(2, 1, 1e3f), REJECT_OUTLIER);
    assert_true(logged("the most that inner.optimizer can make in 2 steps"));
    rig_close(&rig);
}

/* Two workers: the liar sends back the last update, three times as large. */
static void test_update_sent_back_does_not_grow(void **state)
{
    (void)state;
    start("train.method=diloco", 2, "outer.learning_rate=1");
    float update = 1;
    bool refused = false;
    for (int r = 0; r < 40; r++) {
        float lie = 3 * update;
        int code = play_round(2, 1, lie);
        refused = refused || code == REJECT_OUTLIER;
        update = code ? 1 : (1 + lie) / 2;
        assert_true(update < 100);
    }
    assert_true(refused);
    rig_close(&rig);
}

static void test_opposing_worker_is_put_aside(void **state)
{
    (void)state;
    char text[WIRE_TEXT_MAX];
    start("train.method=diloco", 4, NULL);
    int taken = 0, refused = 0, none = 0;
    for (int r = 0; r < 30; r++) {
        int code = play_round(4, 3, -1);
        taken += !code;
        refused += code == REJECT_OUTLIER;
        none += code == NOTHING;
    }
    assert_int_equal(taken, GATE_COSINES - 1);
    assert_int_equal(refused, GATE_STRIKES);
    assert_int_equal(none, 30 - taken - refused);
    assert_true(logged("its direction opposed the other deltas"));
    assert_true(logged("put aside for 1 h after 3 refused deltas in a row"));
    char status[8192];
    assert_true(engine_status_json(rig.engine, status, sizeof status) > 0);
    assert_non_null(strstr(status, "\"state\":\"aside\""));
    assert_non_null(strstr(status, "\"cosine\":-0.99"));
    engine_waiting(rig.engine, text, sizeof text);
    assert_null(strstr(text, "worker-3")); /* no round waits for it */
    rig_close(&rig);
}

/* Beats of all workers, so that none is silent. */
static void wait_alive(int workers, uint64_t seconds)
{
    for (uint64_t i = 0; i < seconds; i++) {
        rig_wait(&rig, 1000000);
        for (int w = 0; w < workers; w++) rig_beat(&rig, w, WORKER_READY);
    }
}

static void lie_until_aside(void)
{
    for (int r = 0; r < HONEST_ROUNDS; r++) play_round(3, -1, 0);
    for (int r = 0; r < GATE_STRIKES; r++) assert_int_equal(play_round(3, 2, 1e3f), REJECT_OUTLIER);
    assert_int_equal(play_round(3, 2, 1), NOTHING);
}

/* The member is part of the next round, or of the one after it if that is open already. */
static int back_with(float level)
{
    int code = play_round(3, 2, level);
    return code == NOTHING ? play_round(3, 2, level) : code;
}

static void test_time_lets_member_back(void **state)
{
    (void)state;
    start("train.method=diloco", 3, "coordinator.readmit_s=40");
    lie_until_aside();
    wait_alive(3, 41);
    assert_int_equal(back_with(1e3f), REJECT_OUTLIER); /* on probation: one lie is enough */
    assert_int_equal(play_round(3, 2, 1), NOTHING);
    wait_alive(3, 41);
    assert_int_equal(back_with(1), 0);
    for (int r = 0; r < 2; r++) assert_int_equal(play_round(3, 2, 1e3f), REJECT_OUTLIER);
    assert_int_equal(play_round(3, 2, 1), 0); /* a merged delta ended the row */
    rig_close(&rig);
}

/* `atoll workers RUN --readmit NAME` reaches the engine as the listed key with its age. */
static enum status readmit(int worker, uint64_t ago_us)
{
    struct err err = {0};
    struct engine_worker listed = {.readmitted_us = ago_us};
    memcpy(listed.key, rig.workers[worker].uuid, WIRE_UUID);
    return engine_on_worker_listed(rig.engine, &listed, rig.now, &err);
}

static void test_operator_lets_member_back(void **state)
{
    (void)state;
    start("train.method=diloco", 3, "coordinator.readmit_s=0");
    lie_until_aside();
    wait_alive(3, 10);
    assert_int_equal(play_round(3, 2, 1), NOTHING);
    assert_int_equal(readmit(1, 0), STATUS_OK);
    assert_int_equal(readmit(2, 3600000000u), STATUS_OK); /* before the lies */
    assert_int_equal(readmit(2, UINT64_MAX), STATUS_OK);
    assert_int_equal(play_round(3, 2, 1), NOTHING);
    assert_int_equal(readmit(2, 2000000), STATUS_OK);
    assert_int_equal(back_with(1), 0);
    rig_restart(&rig, false, 0); /* the journal knows that it is back */
    for (int i = 0; i < 3; i++) rig_join(&rig, i);
    assert_int_equal(play_round(3, 2, 1), 0);
    rig_close(&rig);
}

/* With a restart before every round, all decisions and the theta are the same. */
static void test_restarts_change_no_decision(void **state)
{
    (void)state;
    int codes[2][10];
    uint64_t hash[2];
    for (int restarts = 0; restarts < 2; restarts++) {
        start("train.method=diloco", 3, "checkpoint.every=2");
        for (int r = 0; r < 10; r++) {
            if (restarts && r) {
                rig_restart(&rig, false, 0);
                for (int i = 0; i < 3; i++) rig_join(&rig, i);
            }
            codes[restarts][r] = play_round(3, 2, r >= 5 ? 30 : 1.2f);
        }
        hash[restarts] = rig_theta_hash(&rig);
        rig_close(&rig);
    }
    for (int r = 0; r < 10; r++) assert_int_equal(codes[0][r], codes[1][r]);
    assert_int_equal(codes[0][5], REJECT_OUTLIER);
    assert_int_equal(codes[0][9], NOTHING); /* put aside, also after the restart */
    assert_true(hash[0] == hash[1]);
}

/* A change that all workers share is no lie: a jump of the norms, or of a worker alone, which insists. */
static void test_common_change_is_accepted(void **state)
{
    (void)state;
    start("train.method=diloco", 2, NULL);
    for (int r = 0; r < 6; r++) play_round(2, -1, 0);
    for (int i = 0; i < 2; i++) assert_true(assigned(i));
    for (int i = 0; i < 2; i++) assert_int_equal(deliver(i, 30), 0);
    for (int i = 0; i < 2; i++) rig_expect_none(&rig, i, MSG_REJECT);
    assert_int_equal(engine_version(rig.engine, 0), 7);
    rig_close(&rig);
    start("train.method=diloco", 1, NULL);
    for (int r = 0; r < 10; r++) play_round(1, -1, 0);
    assert_true(assigned(0));
    assert_int_equal(deliver(0, 100), REJECT_OUTLIER);
    rig_catch_up(&rig, 0);
    assert_true(assigned(0));
    assert_int_equal(deliver(0, 100), 0);
    rig_expect_none(&rig, 0, MSG_REJECT);
    rig_close(&rig);
}

/* async merges a delta when it arrives, and ddp merges all fragments of a gradient together. */
static void test_all_methods_refuse(void **state)
{
    (void)state;
    start("train.method=async", 2, "train.dynamic_steps=off");
    for (int r = 0; r < 6; r++) play_round(2, -1, 0);
    for (int r = 0; r < GATE_STRIKES; r++) assert_int_equal(play_round(2, 1, 1e3f), REJECT_OUTLIER);
    for (int r = 0; r < 6; r++) assert_int_equal(play_round(2, 1, 1), NOTHING);
    rig_close(&rig);
    start("train.method=ddp", 3, "train.fragments=2");
    struct msg m;
    for (int r = 0; r < 9; r++) {
        bool lies = r == 8;
        for (int i = 0; i < 3; i++) {
            rig_assigned(&rig, i);
            for (uint32_t f = 0; f < 2; f++) rig_deliver(&rig, i, f, lies && i == 1 && f ? 1e3f : 1 + 0.1f * (float)i);
        }
        for (uint32_t f = 0; f < 2; f++) assert_int_equal(engine_version(rig.engine, f), r + 1);
        assert_int_equal(rig_take(&rig, 1, MSG_REJECT, &m), lies);
        catch_up(3);
    }
    assert_int_equal(m.reject.code, REJECT_OUTLIER);
    rig_close(&rig);
}

/* --- a jump of the loss ------------------------------------------------------------------------------------------- */

static uint64_t kept, let_go;

static enum status keep(struct store *s, uint64_t round, struct err *err)
{
    kept = round;
    return rig.store->ops->checkpoint_remove(s, round, err);
}

static enum status keep_end(struct store *s, uint64_t round, struct err *err)
{
    (void)s;
    (void)err;
    let_go = round;
    return STATUS_OK;
}

/* One round of a worker alone, with its evaluation. */
static void play_evaluated(double loss)
{
    struct msg m;
    play_round(1, -1, 0);
    rig_expect(&rig, 0, MSG_EVAL, &m);
    while (rig_take(&rig, 0, MSG_EVAL, &m)) continue; /* repeated */
    struct msg result;
    rig_eval_result(&rig, 0, &m, loss, &result);
    rig_say(&rig, rig.workers[0].control, &result);
    rig_catch_up(&rig, 0);
}

static void test_model_before_jump_is_kept(void **state)
{
    (void)state;
    const char *settings[] = {"train.fragments=1",  "codec.up=bf16",       "train.max_steps=60",
                              "checkpoint.every=1", "checkpoint.keep=1",   "train.eval_every=1",
                              "outer.momentum=0",   "train.method=diloco", NULL};
    memset(delivered, 0, sizeof delivered);
    memset(open_id, 0, sizeof open_id);
    kept = let_go = 0;
    rig_open(&rig, settings);
    const struct store_ops *ops = rig.store->ops;
    struct store_ops keeping = *ops;
    keeping.checkpoint_keep = keep;
    keeping.checkpoint_keep_end = keep_end;
    rig.store->ops = &keeping;
    rig_join(&rig, 0);
    for (int r = 0; r < 6; r++) play_evaluated(2.5 - 0.02 * r);
    assert_false(logged("jumped"));
    play_evaluated(4);
    assert_true(logged("the validation loss jumped to 4 after round 7"));
    assert_true(logged("keeping the model of round 6 (checkpoints/round_000006, later before_jump_000006)"));
    for (int r = 0; r < 4; r++) play_evaluated(r % 2 ? 4 : INFINITY);
    assert_int_equal(kept, 6); /* collected with the other old ones, but kept apart */
    assert_int_equal(let_go, 0);
    play_evaluated(2.4);
    assert_int_equal(let_go, 6);
    rig.store->ops = ops;
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_large_delta_is_refused_and_changes_nothing),
        cmocka_unit_test(test_waiting_line_says_that_all_deltas_are_refused),
        cmocka_unit_test(test_mean_tensors_are_not_judged),
        cmocka_unit_test(test_liar_in_first_round_is_refused_by_majority),
        cmocka_unit_test(test_liar_in_first_round_exceeds_bound),
        cmocka_unit_test(test_update_sent_back_does_not_grow),
        cmocka_unit_test(test_opposing_worker_is_put_aside),
        cmocka_unit_test(test_time_lets_member_back),
        cmocka_unit_test(test_operator_lets_member_back),
        cmocka_unit_test(test_restarts_change_no_decision),
        cmocka_unit_test(test_common_change_is_accepted),
        cmocka_unit_test(test_all_methods_refuse),
        cmocka_unit_test(test_model_before_jump_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
