/* The engine's reports: the values of a step's and a round's line, the status, and what a round waits for. */
#include <math.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/test.h"

static struct rig rig;

/* A diverged worker affects only its own round's values. */
TEST(test_diverged_round_affects_only_its_line)
{
    static const double sums[] = {1e38, 10, INFINITY, 10}; /* over 16 tokens */
    const char *const settings[] = {"train.max_steps=8", NULL};
    rig_open_with(&rig, settings, 1, false);
    for (int round = 0; round < 4; round++) {
        rig_assigned(&rig, 0); /* the line of a round is written with the next one */
        if (round) assert_true(rig_last(&rig, ENGINE_EVENT_ROUND, NULL)->round.loss == sums[round - 1] / 16);
        rig.loss_sum = sums[round];
        rig_deliver_all(&rig, 1, 1.0f);
    }
    rig_close(&rig);
}

static void answer_eval(int worker, double per_token)
{
    struct msg m, eval;
    rig_expect(&rig, worker, MSG_EVAL, &eval);
    rig_eval_result(&rig, worker, &eval, per_token, &m);
    rig_say(&rig, rig.workers[worker].control, &m);
}

/* A round whose parameters are evaluated has its line once the loss is known, and not before. */
TEST(test_line_waits_for_validation)
{
    const char *const settings[] = {"train.eval_every=1", NULL};
    rig_open_with(&rig, settings, 1, true);
    for (uint32_t f = 0; f < 2; f++) assert_int_equal(rig_deliver(&rig, 0, f, 1).type, MSG_CREDIT);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_ROUND), 0);
    rig_catch_up(&rig, 0);
    rig_beat(&rig, 0, WORKER_READY);
    answer_eval(0, 1.5);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_ROUND), 1);
    assert_true(rig_last(&rig, ENGINE_EVENT_ROUND, NULL)->round.val_loss == 1.5);
    rig_close(&rig);
}

/* Plays a run of one worker, whose evaluations are answered, and returns the evaluated rounds as bits. */
static unsigned evaluated_rounds(const char *const *settings, int n_rounds)
{
    unsigned rounds = 0;
    rig_open_with(&rig, settings, 1, false);
    for (int round = 1; round <= n_rounds; round++) {
        rig_assigned(&rig, 0);
        rig_deliver_all(&rig, 1, 1);
        struct msg eval, m;
        rig_beat(&rig, 0, WORKER_READY);
        while (rig_take(&rig, 0, MSG_EVAL, &eval)) {
            rounds |= 1u << round;
            rig_eval_result(&rig, 0, &eval, 1.5, &m);
            rig_say(&rig, rig.workers[0].control, &m);
        }
    }
    rig_close(&rig);
    return rounds;
}

/* train.eval_every in steps: after the first round that reaches a multiple, with any number of steps per round. */
TEST(test_evaluations_follow_steps)
{
    static const char *const local[] = {"train.max_steps=12", "train.eval_every=3 steps", NULL},
                             *const ddp[] = {"train.method=ddp", "train.max_steps=7", "train.eval_every=3 steps", NULL},
                             *const async[] = {"train.method=async", "train.max_steps=12", "train.eval_every=5 steps",
                                               NULL},
                             *const once[] = {"train.max_steps=6", "train.eval_every=90 steps", NULL};
    /* Rounds of two steps reach 3, 6, 9 and 12 after 4, 6, 10 and 12 steps. */
    assert_int_equal(evaluated_rounds(local, 6), 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6);
    assert_int_equal(evaluated_rounds(ddp, 7), 1 << 3 | 1 << 6 | 1 << 7); /* 7: the end of the run */
    assert_int_equal(evaluated_rounds(async, 6), 1 << 3 | 1 << 5 | 1 << 6);
    assert_int_equal(evaluated_rounds(once, 3), 1 << 3);
}

/* A process that ends between a round and its evaluation leaves the line to the next process, also with a due
 * checkpoint. No line is written twice. */
TEST(test_next_process_writes_missing_line)
{
    const char *const settings[] = {"train.eval_every=1", "checkpoint.every=1", NULL};
    rig_open(&rig, settings);
    for (int round = 1; round <= 2; round++) {
        rig_join(&rig, 0);
        rig_assigned(&rig, 0);
        rig.socket = 100;
        rig.others = 10;
        for (uint32_t f = 0; f < 2; f++) assert_int_equal(rig_deliver(&rig, 0, f, 1).type, MSG_CREDIT);
        rig_restart(&rig, false, 0);
        assert_int_equal(rig_events(&rig, ENGINE_EVENT_ROUND), 0);
        rig_catch_up(&rig, 0);
        rig_join(&rig, 0);
        rig.socket = 50;
        rig.others = 5;
        answer_eval(0, 1.5);
        assert_int_equal(rig_events(&rig, ENGINE_EVENT_ROUND), 1);
        const struct engine_event_round *event = &rig_last(&rig, ENGINE_EVENT_ROUND, NULL)->round;
        assert_int_equal(event->round, round);
        assert_int_equal(event->tokens, 16 * round);
        assert_int_equal(event->bytes_up, 150 * round); /* of all processes */
        assert_int_equal(event->bytes_down, 150 * round);
        assert_int_equal(event->other_up, 15 * round);
        assert_int_equal(event->other_down, 30 * round);
        assert_int_equal(event->workers, 1);
        assert_int_equal(event->delivered, 1);
        assert_true(event->loss == 10.0 / 16 && event->val_loss == 1.5);
        assert_string_equal(event->slowest, "worker-0");
        rig_restart(&rig, false, 0);
        assert_int_equal(rig_events(&rig, ENGINE_EVENT_ROUND), 0);
    }
    rig_close(&rig);
}

/* async: other versions arrive during the evaluation of one. The loss is reported with the tokens of its version. */
TEST(test_async_loss_keeps_tokens_of_its_version)
{
    const char *const settings[] = {"train.method=async", "train.eval_every=1", "coordinator.min_workers=2",
                                    "train.fragments=1",  "outer.grace=0",      NULL};
    rig_open_with(&rig, settings, 2, false);
    for (int i = 0; i < 2; i++) {
        rig_assigned(&rig, i);
        assert_int_equal(rig_deliver(&rig, i, 0, 1).type, MSG_CREDIT);
    }
    assert_int_equal(rig_last(&rig, ENGINE_EVENT_ROUND, NULL)->round.round, 1);
    rig_catch_up(&rig, 0);
    rig_beat(&rig, 0, WORKER_READY);
    rig_assigned(&rig, 0);
    assert_int_equal(rig_deliver(&rig, 0, 0, 1).type, MSG_CREDIT);
    assert_int_equal(rig_last(&rig, ENGINE_EVENT_UPDATE, NULL)->update.tokens, 48);
    answer_eval(1, 1.5);
    const struct engine_event_eval *event = &rig_last(&rig, ENGINE_EVENT_EVAL, NULL)->eval;
    assert_int_equal(event->round, 1);
    assert_int_equal(event->version, 2);
    assert_int_equal(event->tokens, 32);
    assert_true(isnan(rig_last(&rig, ENGINE_EVENT_ROUND, NULL)->round.val_loss));
    rig_close(&rig);
}

static bool waits_without_progress(const char *text)
{
    char line[WIRE_TEXT_MAX];
    return strstr(engine_waiting(rig.engine, line, sizeof line), text);
}

/* A worker that sends heartbeats while its step or upload makes no progress keeps its place and is named. */
TEST(test_worker_without_progress_is_named)
{
    struct msg m;
    rig_open_with(&rig, NULL, 1, true);
    const enum worker_state states[] = {WORKER_TRAINING, WORKER_SENDING};
    for (int i = 0; i < 2; i++) {
        rig_beat(&rig, 0, states[i]);
        for (int s = 0; s < 70; s++) {
            rig_wait(&rig, 1000000);
            rig_beat(&rig, 0, states[i]);
            assert_int_equal(waits_without_progress("no progress"), s >= 59);
        }
        assert_true(waits_without_progress(i ? "worker-0 (sending delta, no progress for 1 min 10 s)"
                                             : "worker-0 (training, step 0/2, no progress for 1 min 10 s)"));
    }
    rig_offer_message(&rig, 0, 0, 1, &m);
    rig_say(&rig, rig.workers[0].control, &m);
    uint8_t bytes[10] = {0};
    m = (struct msg){.type = MSG_CHUNK,
                     .chunk = {.kind = OBJECT_DELTA,
                               .total = m.offer.bytes,
                               .data = bytes,
                               .size = sizeof bytes,
                               .crc = crc32c(0, bytes, sizeof bytes)}};
    rig_say(&rig, rig.workers[0].bulk, &m);
    assert_false(waits_without_progress("no progress"));
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_EVICT), 0);
    rig_close(&rig);
}

static struct transport_path rig_path;

static bool path_of(void *ctx, uint64_t peer, struct transport_path *out)
{
    const struct rig *r = ctx;
    *out = rig_path;
    return peer == r->workers[0].bulk;
}

/* An update is on its way and no byte passes, while heartbeats do: the line and the worker's row name the path. */
TEST(test_path_that_drops_large_packets_is_named)
{
    static const struct rig_access access = {.path = path_of};
    static char json[1 << 16];
    rig_access = &access;
    rig_open_with(&rig, NULL, 1, true);
    rig_path = (struct transport_path){.acked = 5000, .unacked = true};
    for (int s = 0; s < 100; s++) {
        rig_wait(&rig, 1000000);
        if (s < 40) rig_path.acked += 5000; /* a slow path */
        rig_beat(&rig, 0, WORKER_WAITING);
        assert_int_equal(waits_without_progress(", the path probably drops large packets (MTU)"), s >= 69);
    }
    assert_true(engine_status_json(rig.engine, json, sizeof json) > 0);
    assert_non_null(strstr(json, ", the path probably drops large packets (MTU)\""));
    rig_path.acked += 5000;
    rig_wait(&rig, 1000000);
    rig_beat(&rig, 0, WORKER_WAITING);
    assert_false(waits_without_progress("large packets"));
    rig_close(&rig);
    rig_access = NULL;
}

/* A continued run names at once the workers that it waits for, and the timeout. */
TEST(test_restart_names_missing_workers)
{
    const char *const settings[] = {"coordinator.min_workers=2", "coordinator.evict_after_s=30", NULL};
    rig_open_with(&rig, settings, 2, true);
    rig_restart(&rig, false, 0);
    assert_int_equal(rig_last(&rig, ENGINE_EVENT_RESTART, NULL)->restart.round, 0);
    assert_string_equal(rig.event_text[rig.n_events - 1],
                        "continuing the run in this folder at round 1 of 3; waiting for worker-0, worker-1; after the "
                        "first of them is here, the others have 30 s (coordinator.evict_after_s)");
    rig_join(&rig, 0);
    rig_wait(&rig, 10000000);
    rig_beat(&rig, 0, WORKER_TRAINING);
    assert_string_equal(rig_waiting(&rig),
                        "round 1: 0 of 2 deltas are in, missing: worker-0 (training, step 0/2), "
                        "worker-1 (not connected, evicted in 20 s); eviction: coordinator.evict_after_s");
    rig_wait(&rig, 2000000);
    rig_beat(&rig, 0, WORKER_TRAINING);
    rig_wait(&rig, 4000000);
    assert_non_null(strstr(rig_waiting(&rig), "worker-0 (silent for 4 s, evicted in 26 s)"));
    rig_close(&rig);
}

/* Three rounds of a second are measured; then the run waits for worker-1 alone. */
static void measure_rounds(uint64_t round_us)
{
    const char *const settings[] = {"coordinator.min_workers=2", "train.max_steps=100", NULL};
    rig_open_with(&rig, settings, 2, false);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
        for (uint64_t us = 0; us < round_us; us += 1000000) {
            rig_wait(&rig, 1000000);
            for (int i = 0; i < 2; i++) rig_beat(&rig, i, WORKER_TRAINING);
        }
        rig_deliver_all(&rig, 2, 1.0f);
    }
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    for (int i = 0; i < 2; i++) rig_beat(&rig, i, WORKER_TRAINING);
    rig_forget(&rig);
}

/* worker-0 trains, worker-1 is silent, until an event of this kind; returns the tenths of seconds. */
static int wait_for_event(enum engine_event_kind kind)
{
    int tenths = 0;
    for (; !rig_events(&rig, kind) && tenths < 3000; tenths++) {
        rig_wait(&rig, 100000);
        if (tenths % 10 == 0) rig_beat(&rig, 0, WORKER_TRAINING);
    }
    return tenths;
}

static const char *last_text(void)
{
    return rig.event_text[rig.n_events - 1];
}

/* worker-1 is silent, or its connection is closed, after three rounds: when it is named and evicted, in tenths of
 * seconds, and what is said. */
TEST(test_silence_is_named_and_ends)
{
    static const struct {
        uint64_t round_us;
        bool closed, returns; /* returns: its place and its limit are as before */
        int named[2], evicted[2];
        const char *name_line, *evict_line;
    } cases[] = {
        {1000000,
         false,
         false,
         {30, 50},
         {50, 75},
         "worker-1 (silent for 3 s, evicted in 7 s); eviction: 4 median rounds, at least 10 s; "
         "coordinator.evict_after_s sets it",
         "no message for 10 s (limit 10 s: 4 median rounds, at least 10 s; coordinator.evict_after_s sets it); other "
         "workers get its samples"},
        {1000000,
         true,
         false,
         {15, 20},
         {25, 40},
         "worker-1 (connection closed, silent for 2 s, evicted in 4 s)",
         "no message for 5 s, connection closed (limit 5 s: 2 median rounds, at least 5 s; coordinator.evict_after_s "
         "sets it); other workers get its samples"},
        {1000000, true, true, {15, 20}, {95, 105}, "worker-1 (connection closed", "no message for 10 s (limit 10 s"},
        {60000000, false, false, {30, 50}, {2300, 2400}, "worker-1 (silent for 3 s", "4 median rounds"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        measure_rounds(cases[i].round_us);
        if (cases[i].closed) rig.closed_peer = rig.workers[1].control;
        assert_in_range(wait_for_event(ENGINE_EVENT_WAITING), cases[i].named[0], cases[i].named[1]);
        if (!strstr(last_text(), cases[i].name_line)) fail_msg("%s", last_text());
        if (cases[i].returns) {
            rig.closed_peer = UINT64_MAX;
            rig_beat(&rig, 1, WORKER_TRAINING);
            rig_forget(&rig);
        }
        assert_in_range(wait_for_event(ENGINE_EVENT_EVICT), cases[i].evicted[0], cases[i].evicted[1]);
        if (!strstr(last_text(), cases[i].evict_line)) fail_msg("%s", last_text());
        rig_close(&rig);
    }
}

/* No worker is left: the line does not count one that is gone as one that is waited for in a round. */
TEST(test_gone_worker_is_not_waited_for)
{
    rig_open_with(&rig, NULL, 1, true);
    rig_leave(&rig, 0);
    assert_string_equal(rig_waiting(&rig), "workers: 0 of 1 are ready");
    rig_close(&rig);
}

TEST(test_status_names_waiting_round)
{
    const char *settings[] = {"coordinator.min_workers=2", NULL};
    struct msg m = {.type = MSG_STATUS};
    rig_open(&rig, settings);
    assert_string_equal(rig_waiting(&rig), "the first worker to join");
    rig_join(&rig, 0);
    assert_string_equal(rig_waiting(&rig), "workers: 1 of 2 are ready");
    rig_join(&rig, 1);
    rig_assigned(&rig, 0);
    rig_assigned(&rig, 1);
    assert_int_equal(rig_deliver(&rig, 0, 0, 1).type, MSG_CREDIT);
    assert_int_equal(rig_deliver(&rig, 0, 1, 1).type, MSG_CREDIT);
    rig_beat(&rig, 0, WORKER_WAITING);
    rig_beat(&rig, 1, WORKER_TRAINING);
    assert_string_equal(rig_waiting(&rig), "round 1: 1 of 2 deltas are in, missing: worker-1 (training, step 0/2)");
    rig_forget(&rig);
    rig_say(&rig, rig.workers[0].control, &m);
    rig_expect(&rig, 0, MSG_STATUS_REPLY, &m);
    assert_non_null(strstr(m.status_reply.json, "\"waiting_for\":\"round 1: 1 of 2 deltas are in, missing: worker-1"));
    assert_non_null(strstr(m.status_reply.json, "\"state\":\"training\""));
    rig_wait(&rig, 15000000);
    assert_true(rig_events(&rig, ENGINE_EVENT_WAITING) >= 1); /* reported without a request */
    rig_close(&rig);
}

/* Workers that do not fit into an answer are omitted, left ones first; there is always an answer. */
TEST(test_status_omits_workers_that_do_not_fit)
{
    const char *settings[] = {"coordinator.min_workers=3", NULL};
    char json[8192];
    struct msg m;
    rig_open_with(&rig, settings, 3, true);
    rig_deliver_all(&rig, 3, 1);
    m = (struct msg){.type = MSG_LEAVE, .leave.session = rig.workers[2].session};
    rig_say(&rig, rig.workers[2].control, &m);
    size_t all = engine_status_json(rig.engine, json, sizeof json);
    assert_non_null(strstr(json, "worker-2"));
    assert_non_null(strstr(json, "\"workers_gone\":0"));
    size_t here = engine_status_json(rig.engine, json, all);
    assert_true(here > 0 && here < all);
    assert_null(strstr(json, "\"name\":\"worker-2\""));
    assert_non_null(strstr(json, "\"workers_gone\":1"));
    assert_non_null(strstr(json, "steps_merged"));
    size_t states = engine_status_json(rig.engine, json, here);
    assert_true(states > 0 && states < here);
    assert_null(strstr(json, "steps_merged"));
    assert_non_null(strstr(json, "\"name\":\"worker-1\""));
    size_t none = engine_status_json(rig.engine, json, states);
    assert_true(none > 0 && none < states);
    assert_null(strstr(json, "\"name\""));
    assert_non_null(strstr(json, "\"workers_gone\":1,\"workers_not_listed\":2"));
    assert_int_equal(engine_status_json(rig.engine, json, none), 0);
    rig_close(&rig);
}

static void count_refused(void *ctx, enum log_level level, const char *line)
{
    (void)level;
    *(int *)ctx += strstr(line, "refused worker-") != NULL;
}

/* Workers that are refused again and again get one line per minute each. */
TEST(test_repeated_refusals_are_logged_once_a_minute)
{
    int lines = 0;
    struct msg m = {.type = MSG_HELLO, .hello.run_id = {1}}; /* of another run */
    rig_open(&rig, NULL);
    log_set_sink(count_refused, &lines);
    for (int i = 0; i < 24; i++) {
        snprintf(m.hello.name, sizeof m.hello.name, "worker-%d", i % 2);
        rig_say(&rig, (uint64_t)i % 2, &m);
        rig.now += 5000000;
        if (i == 11) assert_int_equal(lines, 2);
    }
    assert_int_equal(lines, 4);
    rig_close(&rig);
}

/* `tokens` of a step: merged tokens plus those of this round's steps over all members. */
TEST(test_step_reports_tokens_of_all_members)
{
    static const uint64_t expected[] = {8, 16, 24, 32}; /* two workers, two steps each */
    size_t seen = 0;
    const char *const settings[] = {"coordinator.min_workers=2", NULL};
    rig_open_with(&rig, settings, 2, true);
    for (uint32_t step = 0; step < 2; step++) {
        for (int i = 0; i < 2; i++) {
            struct msg m = {.type = MSG_METRICS,
                            .metrics = {.session = rig.workers[i].session, .round = UINT64_MAX, .n_steps = 1}};
            m.metrics.steps[0] = (struct metrics_step){.round = 0, .step = step, .position = step, .tokens = 8};
            rig_say(&rig, rig.workers[i].control, &m);
        }
    }
    for (size_t i = 0; i < rig.n_events; i++) {
        const struct engine_event *event = &rig.events[i];
        if (event->kind != ENGINE_EVENT_STEP) continue;
        assert_int_equal(event->step.tokens, expected[seen]);
        assert_int_equal(event->step.step, 1 + seen / 2);
        assert_int_equal(event->step.round, 1);
        seen++;
    }
    assert_int_equal(seen, 4);
    rig_deliver_all(&rig, 2, 1.0f);
    struct engine_summary sum;
    engine_summary(rig.engine, &sum);
    rig_assigned(&rig, 0);
    struct msg m = {.type = MSG_METRICS,
                    .metrics = {.session = rig.workers[0].session, .round = UINT64_MAX, .n_steps = 1}};
    m.metrics.steps[0] = (struct metrics_step){.round = 1, .step = 0, .position = 2, .tokens = 8};
    rig_say(&rig, rig.workers[0].control, &m);
    assert_int_equal(rig.events[rig.n_events - 1].step.tokens, sum.tokens + 8);
    for (uint32_t step = 1; step < 3; step++) { /* step 1 arrives twice */
        m.metrics.steps[0].step = 1;
        rig_say(&rig, rig.workers[0].control, &m);
        assert_int_equal(rig.events[rig.n_events - 1].step.tokens, sum.tokens + 16);
    }
    rig_close(&rig);
}

static void report_step(uint64_t round, uint32_t step, float grad_norm)
{
    struct msg m = {.type = MSG_METRICS,
                    .metrics = {.session = rig.workers[0].session, .round = UINT64_MAX, .n_steps = 1}};
    m.metrics.steps[0] =
        (struct metrics_step){.round = round, .step = step, .position = step, .tokens = 8, .grad_norm = grad_norm};
    rig_say(&rig, rig.workers[0].control, &m);
}

/* Skipped steps are marked. Their count is reported when their round is trained, at intervals, and when the worker
 * leaves. */
TEST(test_skipped_steps_are_counted)
{
    const char *const settings[] = {"train.sync_every=3", "train.max_steps=9", NULL};
    rig_open_with(&rig, settings, 1, true);
    report_step(0, 0, NAN);
    assert_true(rig_last(&rig, ENGINE_EVENT_STEP, NULL)->step.skipped);
    report_step(0, 1, INFINITY);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_FAULT), 0);
    report_step(0, 2, 1);
    assert_false(rig_last(&rig, ENGINE_EVENT_STEP, NULL)->step.skipped);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_FAULT), 1);
    assert_non_null(strstr(rig.event_text[rig.n_events - 1],
                           "skipped 2 inner steps up to round 1: the gradient is "
                           "not finite; lower inner.learning_rate or outer.learning_rate"));
    rig_deliver_all(&rig, 1, 1.0f);
    rig_assigned(&rig, 0);
    for (uint32_t step = 0; step < 3; step++) report_step(1, step, NAN);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_FAULT), 1); /* reported a moment ago */
    rig_wait(&rig, 1000000);                                   /* repeated lines within a second become one */
    struct msg m = {.type = MSG_LEAVE, .leave = {.session = rig.workers[0].session}};
    rig_say(&rig, rig.workers[0].control, &m);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_FAULT), 2);
    assert_non_null(strstr(rig.event_text[rig.n_events - 2], "skipped 3 inner steps up to round 2:"));
    rig_close(&rig);
}

/* One update of two workers ends two rounds of a run that counts one: both have its loss. */
TEST(test_rounds_that_end_together_have_a_loss)
{
    const char *settings[] = {"train.method=async",  "coordinator.min_workers=1", "outer.grace=100",
                              "train.max_steps=100", "train.eval_every=0",        NULL};
    int rounds = 0;
    rig_open_with(&rig, settings, 1, true);
    rig_join(&rig, 1);
    rig_assigned(&rig, 1);
    for (int w = 0; w < 2; w++)
        for (uint32_t f = 0; f < 2; f++) assert_int_equal(rig_deliver(&rig, w, f, 1).type, MSG_CREDIT);
    rig_wait(&rig, 200000000);
    for (size_t i = 0; i < rig.n_events; i++) {
        const struct engine_event *event = &rig.events[i];
        if (event->kind != ENGINE_EVENT_ROUND) continue;
        assert_true(isfinite(event->round.loss));
        rounds++;
    }
    assert_int_equal(rounds, 2);
    rig_close(&rig);
}

TEST_MAIN(NULL, NULL)
