/* What the engine keeps instead of computing it for each message, and answers during long work. */
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/test.h"

static struct rig rig;

/* --- answers ------------------------------------------------------------------------------------------------------ */

static void answer_of(int worker, char text[WIRE_TEXT_MAX])
{
    static struct msg m;
    rig_expect(&rig, worker, MSG_HEARTBEAT_ACK, &m);
    snprintf(text, WIRE_TEXT_MAX, "%s", m.heartbeat_ack.waiting_for);
}

TEST(test_answers_share_a_text_for_a_tenth_of_a_second)
{
    char before[WIRE_TEXT_MAX], text[WIRE_TEXT_MAX];
    const char *const settings[] = {"coordinator.min_workers=2", NULL};
    rig_open_with(&rig, settings, 2, true);
    rig_wait(&rig, 1000000);
    rig_forget(&rig);
    rig_beat(&rig, 0, WORKER_TRAINING);
    answer_of(0, before);
    assert_non_null(strstr(before, "round 1: 0 of 2 deltas are in"));
    for (uint32_t f = 0; f < 2; f++) assert_int_equal(rig_deliver(&rig, 0, f, 1).type, MSG_CREDIT);
    rig_beat(&rig, 1, WORKER_TRAINING);
    answer_of(1, text);
    assert_string_equal(text, before);
    rig_wait(&rig, 100000);
    rig_beat(&rig, 1, WORKER_TRAINING);
    answer_of(1, text);
    assert_non_null(strstr(text, "round 1: 1 of 2 deltas are in"));
    rig_close(&rig);
}

/* --- long work ---------------------------------------------------------------------------------------------------- */

static unsigned works;

/* As the server: answers before, and while the work would run. */
static void answer_twice(void *ctx, uint64_t bytes, void (*work)(void *arg), void *arg)
{
    struct rig *r = ctx;
    works++;
    (void)bytes;
    if (r->engine) engine_reassure(r->engine);
    work(arg);
    if (r->engine) engine_reassure(r->engine);
}

static uint64_t play(void (*meanwhile)(void *ctx, uint64_t bytes, void (*work)(void *arg), void *arg))
{
    const char *const settings[] = {"coordinator.min_workers=2", "checkpoint.every=1", NULL};
    rig_meanwhile = meanwhile;
    rig_open_with(&rig, settings, 2, false);
    rig_play(&rig, NULL);
    uint64_t hash = rig_theta_hash(&rig);
    rig_close(&rig);
    rig_meanwhile = NULL;
    return hash;
}

TEST(test_long_work_changes_no_result)
{
    works = 0;
    assert_int_equal(play(answer_twice), play(NULL));
    assert_true(works >= 4 + 3 * 2); /* checkpoints of rounds 0 to 3; merges of two fragments in three rounds */
}

/* The first JOIN makes the model and the first checkpoint. */
TEST(test_first_worker_is_answered_before_it_has_a_session)
{
    struct msg m;
    int n = 0;
    rig_meanwhile = answer_twice;
    rig_open(&rig, NULL);
    rig_say_join(&rig, 0);
    while (rig_take(&rig, 0, MSG_UPLOAD, &m)) n += !m.upload.upload && m.upload.text[0];
    assert_true(n >= 2 * 2);
    rig_expect(&rig, 0, MSG_WELCOME, &m);
    engine_reassure(rig.engine);
    rig_expect_none(&rig, 0, MSG_UPLOAD);
    rig_close(&rig);
    rig_meanwhile = NULL;
}

TEST(test_every_worker_is_answered_during_long_work)
{
    static struct msg m;
    const char *const settings[] = {"coordinator.min_workers=2", NULL};
    rig_open_with(&rig, settings, 2, true);
    rig_wait(&rig, 1000000);
    rig_forget(&rig);
    engine_reassure(rig.engine);
    for (int i = 0; i < 2; i++) {
        rig_expect(&rig, i, MSG_HEARTBEAT_ACK, &m);
        assert_int_equal(m.heartbeat_ack.sent_us, 0); /* no heartbeat was read */
        rig_expect_none(&rig, i, MSG_HEARTBEAT_ACK);
    }
    rig_close(&rig);
}

/* --- time limits -------------------------------------------------------------------------------------------------- */

/* The time of the next look at all sessions is kept, and a silent worker is still found in time. */
TEST(test_silence_is_found_in_time)
{
    const char *const settings[] = {"coordinator.min_workers=2", "coordinator.evict_after_s=5", NULL};
    rig_open_with(&rig, settings, 2, true);
    uint64_t heard = rig.now;
    rig_beat(&rig, 0, WORKER_TRAINING);
    rig_beat(&rig, 1, WORKER_TRAINING);
    while (!rig_events(&rig, ENGINE_EVENT_EVICT)) {
        struct err err = {0};
        rig.now += 100000; /* the other one speaks all the time; ticks come only when they are due */
        rig_beat(&rig, 0, WORKER_TRAINING);
        if (rig.now < engine_next_deadline_us(rig.engine)) continue;
        assert_int_equal(engine_tick(rig.engine, rig.now, &err), STATUS_OK);
        assert_true(rig.now < heard + 6000000);
    }
    assert_in_range(rig.now - heard, 5000000, 5200000);
    rig_close(&rig);
}

TEST_MAIN(NULL, NULL)
