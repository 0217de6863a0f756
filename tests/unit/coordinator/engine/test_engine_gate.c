/* A worker that lies with its deltas: finite ones count as much as the others allow. Deltas that are not finite are
 * refused, the others go on as if they had never arrived, and the worker is put aside until it is readmitted. */
#include <math.h>

#include "common/base/mem.h"
#include "coordinator/ledger/store.h"
#include "coordinator/round/gate.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/test.h"

enum { HONEST_ROUNDS = 4, NOTHING = -1 };

static const float TOO_LARGE = 0x1p70f; /* the largest value is above 2^64 */
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
    rig_open_with(&rig, settings, workers, false);
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

static float noted[RIG_PARAMS];

static void note_theta(void)
{
    memcpy(noted, engine_theta(rig.engine), sizeof noted);
}

/* The norm of the change of theta since note_theta, in norms of a delta of level 1. */
static double step_norm(void)
{
    float one[RIG_PARAMS];
    double sum = 0, unit = 0;
    rig_values(&rig, 0, 1, one);
    for (uint64_t i = 0; i < RIG_PARAMS; i++) {
        double d = (double)engine_theta(rig.engine)[i] - (double)noted[i];
        sum += d * d;
        unit += (double)one[i] * (double)one[i];
    }
    return sqrt(sum / unit);
}

TEST(test_clipped_worker_is_named)
{
    char status[8192];
    start("train.method=diloco", 3, NULL);
    for (int r = 0; r < 7; r++) assert_int_equal(play_round(3, 2, 1e3f), 0);
    assert_false(logged("is clipped"));
    assert_int_equal(play_round(3, 2, 1e3f), 0);
    assert_true(logged("its delta is clipped, 8 rounds in a row: its norm is 9"));
    assert_true(engine_status_json(rig.engine, status, sizeof status) > 0);
    assert_non_null(strstr(status, "\"norm_ratio\":9"));
    assert_non_null(strstr(status, "\"deltas_refused\":0"));
    rig_close(&rig);
}

/* No delta of anybody is possible: without the reason the line would call them ready, and the run would look idle. */
TEST(test_waiting_line_says_that_all_deltas_are_refused)
{
    char text[WIRE_TEXT_MAX];
    start("train.method=diloco", 2, NULL);
    assert_true(assigned(0) && assigned(1));
    for (int i = 0; i < 2; i++) assert_int_equal(deliver(i, TOO_LARGE), REJECT_NONFINITE);
    for (int i = 0; i < 2; i++) rig_beat(&rig, i, WORKER_READY);
    engine_waiting(rig.engine, text, sizeof text);
    if (!strstr(text, "; all deltas refused: it contains values of 2^64")) fail_msg("waiting for %s", text);
    /* A delta is merged: the line says no more of it. */
    for (int i = 0; i < 2; i++) assert_true(assigned(i) && !deliver(i, 1e-3f));
    catch_up(2);
    assert_null(strstr(rig_waiting(&rig), "refused"));
    rig_close(&rig);
}

/* A worker whose delta was refused is part of the next round, whenever it hears of the refusal. */
TEST(test_refused_worker_stays_in_step)
{
    uint64_t hash[2];
    for (int slow = 0; slow < 2; slow++) {
        start("train.method=diloco", 3, NULL);
        for (int r = 0; r < HONEST_ROUNDS; r++) play_round(3, -1, 0);
        for (int i = 0; i < 3; i++) assert_true(assigned(i));
        assert_int_equal(deliver(2, TOO_LARGE), REJECT_NONFINITE);
        if (!slow) rig_beat(&rig, 2, WORKER_READY);
        for (int i = 0; i < 2; i++) assert_int_equal(deliver(i, 1), 0);
        assert_int_equal(engine_version(rig.engine, 0), HONEST_ROUNDS + 1);
        for (int i = 0; i < 2; i++) rig_catch_up(&rig, i);
        for (int i = 0; i < 3; i++) assert_true(assigned(i)); /* no READY of worker 2 was needed */
        rig_catch_up(&rig, 2);
        for (int i = 0; i < 3; i++) assert_int_equal(deliver(i, 1), 0);
        assert_int_equal(engine_version(rig.engine, 0), HONEST_ROUNDS + 2);
        hash[slow] = rig_theta_hash(&rig);
        rig_close(&rig);
    }
    assert_true(hash[0] == hash[1]);
}

/* Beats of all workers, so that none is silent. */
static void wait_alive(int workers, uint64_t seconds)
{
    for (uint64_t i = 0; i < seconds; i++) {
        rig_wait(&rig, 1000000);
        if (i % 100 == 99) rig_forget(&rig); /* the outbox does not hold the answers of an hour */
        for (int w = 0; w < workers; w++) rig_beat(&rig, w, WORKER_READY);
    }
}

static void lie_until_aside(void)
{
    for (int r = 0; r < HONEST_ROUNDS; r++) play_round(3, -1, 0);
    for (int r = 0; r < GATE_STRIKES; r++) assert_int_equal(play_round(3, 2, TOO_LARGE), REJECT_NONFINITE);
    assert_int_equal(play_round(3, 2, 1), NOTHING);
}

/* The member is part of the next round, or of the one after it if that is open already. */
static int back_with(float level)
{
    int code = play_round(3, 2, level);
    return code == NOTHING ? play_round(3, 2, level) : code;
}

TEST(test_time_lets_member_back)
{
    start("train.method=diloco", 3, NULL);
    lie_until_aside();
    wait_alive(3, 3601);
    assert_int_equal(back_with(TOO_LARGE), REJECT_NONFINITE); /* on probation: one is enough */
    assert_int_equal(play_round(3, 2, 1), NOTHING);
    wait_alive(3, 3601);
    assert_int_equal(back_with(1), 0);
    for (int r = 0; r < 2; r++) assert_int_equal(play_round(3, 2, TOO_LARGE), REJECT_NONFINITE);
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

TEST(test_operator_lets_member_back)
{
    start("train.method=diloco", 3, NULL);
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
TEST(test_restarts_change_no_decision)
{
    int codes[2][10];
    uint64_t hash[2];
    for (int restarts = 0; restarts < 2; restarts++) {
        start("train.method=diloco", 3, "checkpoint.every=2");
        for (int r = 0; r < 10; r++) {
            if (restarts && r) {
                rig_restart(&rig, false, 0);
                for (int i = 0; i < 3; i++) rig_join(&rig, i);
            }
            codes[restarts][r] = play_round(3, 2, r >= 5 ? TOO_LARGE : r == 3 ? 30 : 1.2f);
        }
        hash[restarts] = rig_theta_hash(&rig);
        rig_close(&rig);
    }
    for (int r = 0; r < 10; r++) assert_int_equal(codes[0][r], codes[1][r]);
    assert_int_equal(codes[0][3], 0);
    assert_int_equal(codes[0][5], REJECT_NONFINITE);
    assert_int_equal(codes[0][9], NOTHING); /* put aside, also after the restart */
    assert_true(hash[0] == hash[1]);
}

/* async merges a delta when it arrives: the last deltas of the others bound it, also after a restart. */
TEST(test_async_delta_is_bounded_by_the_last_of_the_others)
{
    for (int restart = 0; restart < 2; restart++) {
        start("train.method=async", 3, "outer.grace=0");
        for (int r = 0; r < 6; r++) play_round(3, -1, 0);
        if (restart) {
            rig_restart(&rig, false, 0);
            for (int i = 0; i < 3; i++) rig_join(&rig, i);
        }
        note_theta();
        assert_int_equal(play_round(3, 0, 1), 0);
        double honest = step_norm();
        note_theta();
        assert_int_equal(play_round(3, 2, 0x1p40f), 0);
        if (step_norm() > 1.5 * honest) fail_msg("%g, honest %g", step_norm(), honest);
        rig_close(&rig);
    }
}

/* A delta that is one update older than the other one of its merge counts 1 / sqrt(2). Outer rate 0.7. */
TEST(test_older_delta_counts_less)
{
    start("train.method=async", 2, "outer.grace=1");
    for (int i = 0; i < 2; i++) assert_true(assigned(i));
    assert_int_equal(deliver(0, 1), 0);
    rig_wait(&rig, 1500000);
    assert_int_equal(engine_version(rig.engine, 0), 1);
    rig_catch_up(&rig, 0);
    rig_beat(&rig, 0, WORKER_READY);
    assert_true(assigned(0));
    note_theta();
    assert_int_equal(deliver(0, 1), 0);
    assert_int_equal(deliver(1, 1), 0);
    rig_wait(&rig, 1500000);
    assert_int_equal(engine_version(rig.engine, 0), 2);
    double expect = 0.7 * (1 + sqrt(0.5)) / 2;
    if (fabs(step_norm() - expect) > 0.01) fail_msg("%g, expected %g", step_norm(), expect);
    rig_close(&rig);
}

/* The first deltas of an async run wait until three workers can be compared, or no third one trains. */
TEST(test_first_async_deltas_wait_for_a_majority)
{
    start("train.method=async", 3, "outer.grace=0");
    for (int i = 0; i < 3; i++) assert_true(assigned(i));
    note_theta();
    assert_int_equal(deliver(2, 0x1p40f), 0);
    assert_int_equal(deliver(0, 1), 0);
    rig_wait(&rig, 1000000);
    assert_int_equal(engine_version(rig.engine, 0), 0);
    assert_int_equal(deliver(1, 1), 0);
    assert_int_equal(engine_version(rig.engine, 0), 3);
    if (step_norm() > 2) fail_msg("%g", step_norm());
    rig_close(&rig);
    start("train.method=async", 3, "outer.grace=0"); /* at most a minute; two are compared with each other */
    for (int i = 0; i < 3; i++) assert_true(assigned(i));
    note_theta();
    assert_int_equal(deliver(2, 0x1p40f), 0);
    assert_int_equal(deliver(0, 1), 0);
    for (int i = 0; i < 62; i++) {
        if (i < 58) assert_int_equal(engine_version(rig.engine, 0), 0);
        rig_wait(&rig, 1000000);
        for (int w = 0; w < 3; w++) rig_beat(&rig, w, w == 1 ? WORKER_TRAINING : WORKER_READY);
    }
    assert_int_equal(engine_version(rig.engine, 0), 2);
    if (step_norm() > 2) fail_msg("%g", step_norm());
    rig_close(&rig);
    start("train.method=async", 2, "outer.grace=0");
    for (int i = 0; i < 2; i++) assert_true(assigned(i));
    assert_int_equal(deliver(0, 1), 0);
    assert_int_equal(engine_version(rig.engine, 0), 1);
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

TEST(test_model_before_jump_is_kept)
{
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
    rig_wait(&rig, 1100000);
    assert_non_null(strstr(rig_status(&rig), "\"rule\":\"loss\""));
    for (int r = 0; r < 4; r++) play_evaluated(r % 2 ? 4 : INFINITY);
    assert_int_equal(kept, 6); /* collected with the other old ones, but kept apart */
    assert_int_equal(let_go, 0);
    play_evaluated(2.4);
    assert_int_equal(let_go, 6);
    rig_wait(&rig, 1100000);
    assert_null(strstr(rig_status(&rig), "\"rule\":\"loss\""));
    rig.store->ops = ops;
    rig_close(&rig);
}

TEST_MAIN(NULL, NULL)
