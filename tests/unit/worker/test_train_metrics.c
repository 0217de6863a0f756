/* A trainer's reports of its steps and of skipped steps. */

#include "common/base/log.h"
#include "tests/lib/test.h"
#include "worker/session/session_impl.h"
#include "worker/train_impl.h"

static int lines;
static char last[256];

static void keep(void *ctx, enum log_level level, const char *line)
{
    (void)ctx;
    assert_int_equal(level, LOG_WARN);
    lines++;
    snprintf(last, sizeof last, "%s", line);
}

/* A diverged run skips every later step: one warning, then one at intervals. */
TEST(test_skipped_steps_give_few_warnings)
{
    struct skip_log skips = {0};
    const struct config config = {.train.method = METHOD_DILOCO, .outer.optimizer = OPTIMIZER_NESTEROV};
    uint64_t now = 5000000;
    log_set_sink(keep, NULL);
    train_note_skip(&skips, &config, 41, now);
    assert_int_equal(lines, 1);
    assert_non_null(strstr(last, "skipped step 42: the gradient is not finite; if this continues, lower inner.l"));
    assert_non_null(strstr(last, " or outer.learning_rate, or set inner.grad_clip"));
    for (int i = 1; i < 300; i++) train_note_skip(&skips, &config, 41 + i, now += 100000);
    assert_int_equal(lines, 1);
    train_note_skip(&skips, &config, 341, now += 100000);
    assert_int_equal(lines, 2);
    assert_non_null(strstr(last, "skipped 300 more steps up to step 342"));
    train_note_skip(&skips, &config, 342, now += 100000);
    assert_int_equal(lines, 2);
    train_end_skips(&skips);
    assert_int_equal(lines, 3);
    assert_non_null(strstr(last, "skipped 1 more step up to step 343:"));
    train_end_skips(&skips);
    assert_int_equal(lines, 3);
    log_set_sink(NULL, NULL);
}

/* A step of more than 71 minutes exceeds 32 bits of microseconds: it is reported without a time. */
TEST(test_too_long_step_has_no_time)
{
    static struct worker_session session;
    static struct trainer t = {.session = &session};
    static const double seconds[] = {0.25, 4200, 4300, 1e9};
    static const uint32_t expected[] = {250000, 4200000000, 0, 0};
    const struct step_note note = {.lr = 0.1};
    for (int i = 0; i < 4; i++) {
        train_note_step(&t, &note, &(struct step_result){.tokens = 10, .compute_s = seconds[i]});
        assert_int_equal(session.steps.end, i + 1);
        assert_int_equal(session.steps.records[i].step.step_us, expected[i]);
        assert_int_equal(session.steps.records[i].step.tokens, 10);
    }
}

static struct step_queue queue;
static struct msg_metrics m;

static int empty(void **state)
{
    (void)state;
    memset(&queue, 0, sizeof queue);
    return 0;
}

/* Adds the records of steps [from, to). */
static void add(uint32_t from, uint32_t to)
{
    for (; from < to; from++)
        step_queue_add(&queue, &(struct metrics_step){.round = 7, .step = from, .tokens = 16}, from);
}

/* Checks that the next message holds steps [from, to), and sends it. */
static void take(uint32_t from, uint32_t to, uint64_t now_us)
{
    step_queue_batch(&queue, &m, STEP_QUEUE_MAX + now_us);
    assert_int_equal(m.n_steps, to - from);
    for (uint32_t i = 0; i < m.n_steps; i++) {
        assert_int_equal(m.steps[i].step, from + i);
        assert_int_equal(m.steps[i].round, 7);
        assert_int_equal(m.steps[i].tokens, 16);
        assert_int_equal(m.steps[i].age_us, STEP_QUEUE_MAX + now_us - (from + i)); /* also when it is sent again */
    }
    step_queue_sent(&queue, m.n_steps, now_us);
}

TEST_WITH(test_each_step_is_sent_once, empty, NULL)
{
    add(0, 300);
    take(0, WIRE_METRICS_MAX, 1000);
    take(WIRE_METRICS_MAX, 300, 1000);
    take(300, 300, 1000);
    add(300, 301);
    take(300, 301, 2000);
}

/* The answer to a heartbeat acknowledges messages sent before the heartbeat; the others are sent again, in order. */
TEST_WITH(test_unacknowledged_steps_are_sent_again, empty, NULL)
{
    add(0, 10);
    take(0, 10, 1000);
    add(10, 20); /* not sent: the coordinator is away */
    step_queue_acked(&queue, 1000);
    step_queue_resend(&queue);
    step_queue_acked(&queue, 1001); /* the record of a lost message stays */
    assert_int_equal(queue.end - queue.first, 20);
    take(0, 20, 3000);
    step_queue_acked(&queue, 3001);
    add(20, 25);
    take(20, 25, 4000);
    step_queue_resend(&queue);
    take(20, 25, 5000);
}

/* A full queue drops the oldest record, and counts it if it was never sent. */
TEST_WITH(test_full_queue_drops_oldest_step, empty, NULL)
{
    add(0, 10);
    take(0, 10, 1000);
    add(10, STEP_QUEUE_MAX + 10);
    assert_int_equal(queue.lost, 0);
    add(STEP_QUEUE_MAX + 10, STEP_QUEUE_MAX + 13);
    assert_int_equal(queue.lost, 3);
    step_queue_resend(&queue);
    for (uint32_t at = 13; at < STEP_QUEUE_MAX + 13; at += WIRE_METRICS_MAX) take(at, at + WIRE_METRICS_MAX, 2000);
    take(0, 0, 2000);
    assert_int_equal(queue.lost, 3);
}

static void answer(struct heartbeat *p, uint64_t sent_us)
{
    heartbeat_on_message(p, &(struct msg){.type = MSG_HEARTBEAT_ACK, .heartbeat_ack.sent_us = sent_us}, sent_us + 1000);
}

/* The newest answered heartbeat; 0 at the start of a session. */
TEST(test_newest_answer_counts)
{
    struct heartbeat p;
    heartbeat_init(&p);
    heartbeat_join(&p, 1, 1000);
    assert_int_equal(heartbeat_acked_us(&p), 0);
    for (uint64_t s = 50; s < 60; s++) answer(&p, s * 1000000);
    answer(&p, 51000000); /* over the other lane */
    assert_int_equal(heartbeat_acked_us(&p), 59000000);
    heartbeat_join(&p, 2, 1000);
    assert_int_equal(heartbeat_acked_us(&p), 0);
    answer(&p, 90000000);
    assert_int_equal(heartbeat_acked_us(&p), 90000000);
    heartbeat_finish(&p);
}

TEST_MAIN(NULL, NULL)
