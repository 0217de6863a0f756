/* An enrolled worker that sends too much or nonsense: metrics, log and memory stay small, numbers stay right, and the
 * run continues. Floods of every message are in tests/attack/floods.py. */

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "coordinator/engine/engine_impl.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/store/store_mem.h"
#include "tests/lib/test.h"
#include <math.h>

static struct rig rig;

struct lines {
    int n;
    char last[512];
};

static void count_lines(void *ctx, enum log_level level, const char *line)
{
    struct lines *lines = ctx;
    if (level == LOG_DEBUG) return;
    lines->n++;
    snprintf(lines->last, sizeof lines->last, "%s", line);
}

/* Two workers, in a round. */
static void open_rig(void)
{
    const char *settings[] = {"coordinator.min_workers=2", "train.max_steps=40", NULL};
    rig_open_with(&rig, settings, 2, true);
    rig_forget(&rig);
}

/* --- METRICS ------------------------------------------------------------------------------------------------------ */

static struct msg metrics_of(int worker, uint64_t round, uint32_t first, uint32_t n)
{
    struct msg m = {.type = MSG_METRICS,
                    .metrics = {.session = rig.workers[worker].session, .round = UINT64_MAX, .n_steps = n}};
    for (uint32_t i = 0; i < n; i++)
        m.metrics.steps[i] =
            (struct metrics_step){.round = round, .step = first + i, .position = first + i, .tokens = 8};
    return m;
}

/* A round has two steps. Its records may arrive four times; others are ignored and counted. */
TEST(test_metrics_are_bounded_by_round)
{
    int steps = 0;
    open_rig();
    for (int i = 0; i < 1000; i++) {
        struct msg m = metrics_of(0, 0, 0, 2);
        rig_say(&rig, rig.workers[0].control, &m);
        steps += rig_events(&rig, ENGINE_EVENT_STEP);
        rig_forget(&rig);
    }
    assert_int_equal(steps, 4 * 2);
    struct msg m = metrics_of(0, 0, 2, 254); /* steps beyond the assignment */
    rig_say(&rig, rig.workers[0].control, &m);
    m = metrics_of(1, 1, 0, 2); /* a round that is not open for this worker */
    rig_say(&rig, rig.workers[1].control, &m);
    m = metrics_of(1, UINT64_MAX, 0, 1);
    rig_say(&rig, rig.workers[1].control, &m);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_STEP), 0);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_FAULT), 1);
    assert_non_null(strstr(rig.event_text[0], "ignored 2 step records: no assignment explains them"));
    m = metrics_of(1, 0, 0, 2);
    rig_say(&rig, rig.workers[1].control, &m);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_STEP), 2);
    rig_close(&rig);
}

/* Thirty-two workers write every fourth step, the last one of a message, and one without a finite gradient. */
TEST(test_many_workers_write_fewer_steps)
{
    const char *settings[] = {"coordinator.min_workers=1", "train.max_steps=40", "train.sync_every=16", NULL};
    rig_open_with(&rig, settings, 1, true);
    rig_forget(&rig);
    struct msg m = metrics_of(0, 0, 0, 16);
    m.metrics.steps[5].grad_norm = NAN;
    rig_say(&rig, rig.workers[0].control, &m);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_STEP), 16);
    rig_forget(&rig);
    rig.engine->ledger.round.members.n_active = 32;
    engine_on_metrics(rig.engine, session_by_member(&rig.engine->sessions, 0), &m.metrics);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_STEP), 4 + 1 + 1);
    rig.engine->ledger.round.members.n_active = 1;
    rig_close(&rig);
}

TEST(test_false_numbers_are_ignored)
{
    open_rig();
    for (int i = 0; i < 8; i++) {
        struct msg m = metrics_of(0, 0, 0, 1);
        struct metrics_step *step = &m.metrics.steps[0];
        switch (i) {
        case 0: step->tokens = UINT64_MAX; break;
        case 1: step->tokens = 9; break;
        case 2: step->position = -1; break;
        case 3: step->position = 1e300; break;
        case 4: step->lr = -2; break; /* -1: not known */
        case 5: step->loss = -1; break;
        case 6: step->grad_norm = -0.5f; break;
        case 7: step->step = UINT32_MAX; break;
        }
        rig_say(&rig, rig.workers[0].control, &m);
    }
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_STEP), 0);
    struct msg m = metrics_of(0, 0, 0, 1);
    m.metrics.round = 0;
    m.metrics.compute_s = -5;
    m.metrics.bytes_up = UINT64_MAX;
    rig_forget(&rig);
    rig_say(&rig, rig.workers[0].control, &m);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_STEP), 1);
    assert_int_equal(rig.events[0].step.tokens, 8);
    assert_false(rig.events[0].step.counted || rig.events[0].step.measured);
    rig_close(&rig);
}

/* --- uploads ------------------------------------------------------------------------------------------------------ */

/* Offers a delta and returns its size. */
static uint64_t offer(int worker, uint32_t fragment)
{
    struct msg m;
    rig_offer_message(&rig, worker, fragment, 1, &m);
    uint64_t total = m.offer.bytes;
    rig_say(&rig, rig.workers[worker].control, &m);
    rig_forget(&rig);
    return total;
}

/* Sends the first bytes of a delta, which need not be valid. */
static void send_first_bytes(int worker, uint32_t fragment, uint64_t total)
{
    static const uint8_t bytes[16];
    struct msg m = {.type = MSG_CHUNK,
                    .chunk = {.kind = OBJECT_DELTA,
                              .fragment = fragment,
                              .total = total,
                              .crc = crc32c(0, bytes, sizeof bytes),
                              .data = bytes,
                              .size = sizeof bytes}};
    rig_say(&rig, rig.workers[worker].bulk, &m);
    rig_forget(&rig);
}

/* Incomplete deltas lie in the spool, with any number of uploads. */
TEST(test_incomplete_deltas_take_no_memory)
{
    uint64_t total[2][2];
    open_rig();
    send_first_bytes(0, 0, offer(0, 0));
    size_t before = mem_live_bytes();
    uint64_t spooled = store_mem_counts(rig.store).spooled;
    for (int i = 0; i < 2; i++)
        for (uint32_t f = 0; f < 2; f++) total[i][f] = i || f ? offer(i, f) : 0;
    assert_int_equal(mem_live_bytes(), before);
    for (int i = 0; i < 2; i++)
        for (uint32_t f = 0; f < 2; f++)
            if (i || f) send_first_bytes(i, f, total[i][f]);
    assert_int_equal(store_mem_counts(rig.store).spooled, spooled + 3 * 16);
    rig_close(&rig);
}

/* While the coordinator pauses, the messages of a worker queue up: 2 a second are no flood. */
TEST(test_messages_of_a_pause_are_no_flood)
{
    static const enum msg_type types[] = {MSG_HEARTBEAT, MSG_METRICS};
    enum { PAUSE_S = 600 };
    uint8_t encoded[8192];
    size_t size;
    open_rig();
    rig_beat(&rig, 0, WORKER_TRAINING);
    rig.now += PAUSE_S * UINT64_C(1000000);
    for (int i = 0; i < 2 * PAUSE_S; i++) {
        struct msg m = {.type = (uint8_t)types[i % 2]};
        if (m.type == MSG_HEARTBEAT) m.heartbeat.workers = 1;
        assert_int_equal(msg_encode(&m, encoded, sizeof encoded, &size), STATUS_OK);
        if (admission_message(rig.engine, 5, rig.workers[0].control, WIRE_CONTROL, encoded, size, rig.now) !=
            ADMISSION_ADMIT)
            fail_msg("message %d of a pause of %d s is over the limit", i, PAUSE_S);
        if (!i) rig_beat(&rig, 0, WORKER_TRAINING); /* the engine notices the pause */
    }
    rig_close(&rig);
}

TEST(test_ignored_messages_are_logged)
{
    struct lines lines = {0};
    open_rig();
    log_set_sink(count_lines, &lines);
    rig_wait(&rig, 1000);
    rig_forget(&rig);
    struct msg m = {.type = MSG_STATUS};
    uint8_t encoded[64];
    size_t size;
    int answers = 0;
    assert_int_equal(msg_encode(&m, encoded, sizeof encoded, &size), STATUS_OK);
    for (int i = 0; i < 100; i++) {
        if (admission_message(rig.engine, 5, rig.workers[0].control, WIRE_CONTROL, encoded, size, rig.now) !=
            ADMISSION_ADMIT)
            continue;
        answers++;
        rig_say(&rig, rig.workers[0].control, &m);
    }
    assert_int_equal(answers, 10);
    assert_int_equal(lines.n, 0);
    rig_wait(&rig, 1100000);
    assert_int_equal(lines.n, 1);
    if (!strstr(lines.last, "worker-0: ignored 90 STATUS messages in 1 s, above the limit of 5 per second"))
        fail_msg("%s", lines.last);
    rig_close(&rig);
}

/* Five hundred malformed messages: ten answers, one line, then the connection is closed. The round does not wait for
 * that worker until its eviction time. */
TEST(test_malformed_messages_are_limited)
{
    struct lines lines = {0};
    struct err why = {.code = STATUS_CORRUPT, .msg = "the checksum differs"};
    uint8_t noise[40] = {0};
    int closed = 0;
    open_rig();
    log_set_sink(count_lines, &lines);
    for (int i = 0; i < 2000 && !closed; i++) {
        enum admission_verdict verdict =
            admission_message(rig.engine, 5, rig.workers[0].control, WIRE_CONTROL, noise, sizeof noise, rig.now);
        if (verdict == ADMISSION_ADMIT)
            verdict = admission_malformed(rig.engine, rig.workers[0].control, WIRE_CONTROL, &why, rig.now);
        closed = verdict == ADMISSION_CLOSE ? i : 0;
    }
    assert_in_range(closed, 400, 600);
    assert_in_range(rig.n_out, 5, 10);
    assert_int_equal(lines.n, 1);
    assert_non_null(strstr(lines.last, "refused a malformed message of worker-0: the checksum differs"));
    rig_forget(&rig);
    rig_wait(&rig, 1000);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_EVICT), 1);
    for (uint32_t f = 0; f < rig.layout.n_fragments; f++) rig_deliver(&rig, 1, f, 1);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_ROUND), 1);
    rig_close(&rig);
}

TEST_MAIN(NULL, NULL)
