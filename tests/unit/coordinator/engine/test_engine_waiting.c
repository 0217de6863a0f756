/* Waiting lines about transfers, the verdict about the link, and the time left. */
#include <math.h>

#include "common/base/hash.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/test.h"

static struct rig rig;

static void beat_received(int worker, uint64_t received, uint64_t expected)
{
    const struct rig_worker *w = &rig.workers[worker];
    struct msg m = {.type = MSG_HEARTBEAT,
                    .heartbeat = {.session = w->session,
                                  .state = WORKER_WAITING,
                                  .n_fragments = 2,
                                  .received = received,
                                  .expected = expected}};
    memcpy(m.heartbeat.versions, w->versions, sizeof m.heartbeat.versions);
    rig_say(&rig, w->control, &m);
}

/* The update exists, and the workers have not received it yet. */
TEST(test_line_says_receiving_update)
{
    const char *const settings[] = {"coordinator.min_workers=2", NULL};
    rig_open_with(&rig, settings, 2, true);
    for (int i = 0; i < 2; i++)
        for (uint32_t f = 0; f < 2; f++) assert_int_equal(rig_deliver(&rig, i, f, 1).type, MSG_CREDIT);
    for (int i = 0; i < 2; i++) beat_received(i, 0, i ? 0 : 4000000);
    assert_string_equal(rig_waiting(&rig), "round 2: 0 of 2 deltas are in, missing: worker-0 (receiving update, 0 %), "
                                           "worker-1 (receiving update)");
    for (uint64_t s = 1; s <= 2; s++) {
        rig_wait(&rig, 1000000);
        beat_received(0, s * 1225000, 4000000);
        beat_received(1, 0, 0);
    }
    assert_non_null(strstr(rig_waiting(&rig), "worker-0 (receiving update, 61 % at 9.8 Mbit/s)"));
    assert_non_null(strstr(rig_status(&rig), "\"doing\":\"receiving update, 61 % at 9.8 Mbit/s\""));
    rig_catch_up(&rig, 1);
    beat_received(1, 0, 0);
    assert_non_null(strstr(rig_waiting(&rig), "worker-1 (waiting)"));
    rig_close(&rig);
}

TEST(test_line_says_sending_delta)
{
    struct msg m;
    uint8_t bytes[64] = {0};
    rig_open_with(&rig, NULL, 1, true);
    rig_beat(&rig, 0, WORKER_SENDING);
    assert_string_equal(rig_waiting(&rig), "round 1: 0 of 1 deltas are in, missing: worker-0 (sending delta)");
    rig_offer_message(&rig, 0, 0, 1, &m);
    uint64_t total = m.offer.bytes;
    rig_say(&rig, rig.workers[0].control, &m);
    rig_wait(&rig, 1000000);
    m = (struct msg){.type = MSG_CHUNK,
                     .chunk = {.kind = OBJECT_DELTA,
                               .total = total,
                               .data = bytes,
                               .size = sizeof bytes,
                               .crc = crc32c(0, bytes, sizeof bytes)}};
    rig_say(&rig, rig.workers[0].bulk, &m);
    char expected[96];
    snprintf(expected, sizeof expected, "worker-0 (sending delta, %u %% at 0.00051 Mbit/s)", (unsigned)(6400 / total));
    assert_non_null(strstr(rig_waiting(&rig), expected));
    rig_close(&rig);
}

/* One round of a worker that trains for train_us and sends for send_us. */
static void play_round(uint64_t train_us, uint64_t send_us)
{
    struct msg m;
    rig_assigned(&rig, 0);
    for (uint64_t us = 0; us < train_us; us += 500000) {
        rig_wait(&rig, 500000);
        rig_beat(&rig, 0, WORKER_TRAINING);
    }
    rig_offer_message(&rig, 0, 0, 1, &m);
    rig_say(&rig, rig.workers[0].control, &m);
    for (uint64_t us = 0; us < send_us; us += 500000) {
        rig_wait(&rig, 500000);
        rig_beat(&rig, 0, WORKER_SENDING);
    }
    rig_deliver_all(&rig, 1, 1.0f);
}

/* The verdict is said once when it changes, with the settings that help. */
TEST(test_slow_link_is_said_once)
{
    const char *text, *const settings[] = {"train.max_steps=100", "codec.up=int8:16", NULL};
    rig_open_with(&rig, settings, 1, false);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rig_events(&rig, ENGINE_EVENT_LINK), 0);
        play_round(1000000, 3000000);
    }
    for (int i = 0; i < 5; i++) play_round(1000000, 3000000);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_LINK), 1);
    assert_string_equal(rig_last(&rig, ENGINE_EVENT_LINK, &text)->line.worker, "worker-0");
    assert_string_equal(text, "transfers take 75 % of a round (sending 3.01 s, receiving 4 ms of 4.02 s): raise "
                              "train.sync_every, or use fewer bits in codec.up (int8:16) and codec.down (fp32)");
    assert_true(rig_last(&rig, ENGINE_EVENT_ROUND, NULL)->round.link_s > 2.9);
    assert_non_null(strstr(rig_status(&rig), "\"bottleneck\":\"transfers take 75 %"));
    for (int i = 0; i < 5; i++) play_round(3000000, 1000000);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_LINK), 2);
    rig_last(&rig, ENGINE_EVENT_LINK, &text);
    assert_string_equal(text, "transfers no longer take half of a round");
    assert_non_null(strstr(rig_status(&rig), "\"bottleneck\":null"));
    rig_close(&rig);
}

static void answer_eval(int worker)
{
    struct msg m;
    rig_expect(&rig, worker, MSG_EVAL, &m);
    m = (struct msg){.type = MSG_EVAL_RESULT,
                     .eval_result = {.session = rig.workers[worker].session,
                                     .eval_id = m.eval.eval_id,
                                     .start = m.eval.start,
                                     .count = m.eval.count,
                                     .tokens = 8,
                                     .loss_sum = 12}};
    rig_say(&rig, rig.workers[worker].control, &m);
}

/* The line of a round follows its evaluation. The worker that delivered last may have left by then. */
TEST(test_slow_link_of_worker_that_left)
{
    const char *text, *const settings[] = {"train.max_steps=100", "train.eval_every=3", "train.eval_tokens=8", NULL};
    rig_open_with(&rig, settings, 1, false);
    for (int i = 0; i < 3; i++) play_round(1000000, 3000000);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_LINK), 0);
    rig_leave(&rig, 0);
    rig_join(&rig, 1);
    rig_catch_up(&rig, 1);
    answer_eval(1);
    assert_string_equal(rig_last(&rig, ENGINE_EVENT_LINK, &text)->line.worker, "worker-0");
    assert_non_null(strstr(text, "(sending 3.02 s, receiving 6 ms of 4.02 s)"));
    rig_close(&rig);
}

/* A round that waited for a minute, and evaluations, do not count as the time of a round. */
TEST(test_time_left_ignores_pauses)
{
    const char *const settings[] = {"train.max_steps=100", NULL}; /* 50 rounds */
    rig_open_with(&rig, settings, 1, false);
    for (int i = 0; i < 6; i++) play_round(1000000, 0);
    play_round(1000000, 48000000); /* rounds are reported when the next one opens */
    play_round(1000000, 0);
    const struct engine_event_round *event = &rig_last(&rig, ENGINE_EVENT_ROUND, NULL)->round;
    assert_int_equal(event->round, 8);
    assert_true(fabs(event->eta_s - 42) < 2); /* messages of the rig take a little time */
    assert_non_null(strstr(rig_status(&rig), "\"eta_s\":4"));
    rig_close(&rig);
}

/* Before train.start_step the later rounds are estimated; when one has ended, the short ones no longer count. */
TEST(test_time_left_knows_longer_rounds)
{
    const char *const settings[] = {"train.start_step=4", "train.max_steps=84", "train.sync_every=20", NULL};
    rig_open(&rig, settings);
    rig.compute_us = 1000000;
    rig_join(&rig, 0);
    const struct engine_event_round *event = NULL;
    for (int i = 0; i < 5; i++) {
        play_round(i < 4 ? 1000000 : 8000000, 0);
        event = &rig_last(&rig, ENGINE_EVENT_ROUND, NULL)->round;
        assert_int_equal(event->rounds, 8);
        if (event->round <= 4) assert_true(fabs(event->eta_s - (4 - (double)event->round + 4 * (1 + 19 * 1))) < 2);
    }
    assert_int_equal(event->round, 5);
    assert_true(fabs(event->eta_s - 3 * 8) < 1);
    rig_close(&rig);
}

TEST(test_evaluations_count_apart)
{
    const char *const settings[] = {"train.max_steps=20", "train.eval_every=2", "train.eval_tokens=8", NULL};
    rig_open_with(&rig, settings, 1, false);
    for (int i = 0; i < 2; i++) play_round(1000000, 0);
    for (int s = 0; s < 5; s++) {
        rig_wait(&rig, 1000000);
        rig_beat(&rig, 0, WORKER_EVALUATING);
    }
    answer_eval(0);
    const struct engine_event_round *event = &rig_last(&rig, ENGINE_EVENT_ROUND, NULL)->round;
    assert_int_equal(event->round, 2);
    assert_true(fabs(event->eval_s - 5) < 0.1 && fabs(event->round_s - 1) < 0.1);
    assert_true(event->eta_s > 8 + 3 * 5); /* 8 rounds, 3 evaluations, and the last one over all windows */
    rig_close(&rig);
}

TEST_MAIN(NULL, NULL)
