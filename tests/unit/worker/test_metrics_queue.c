/* Step records until the coordinator has them: each one reaches it, whenever it is away. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "worker/link/heartbeat.h"
#include "worker/metrics_queue.h"

static struct metrics_queue steps;
static struct msg_metrics m;

static int empty(void **state)
{
    (void)state;
    memset(&steps, 0, sizeof steps);
    return 0;
}

/* Records of steps `from` to before `to`. */
static void add(uint32_t from, uint32_t to)
{
    for (; from < to; from++) metrics_queue_add(&steps, &(struct metrics_step){.round = 7, .step = from, .tokens = 16});
}

/* The next message holds steps `from` to before `to`, and is sent. */
static void take(uint32_t from, uint32_t to, uint64_t now_us)
{
    metrics_queue_batch(&steps, &m);
    assert_int_equal(m.n_steps, to - from);
    for (uint32_t i = 0; i < m.n_steps; i++) {
        assert_int_equal(m.steps[i].step, from + i);
        assert_int_equal(m.steps[i].tokens, 16);
    }
    metrics_queue_sent(&steps, m.n_steps, now_us);
}

static void test_each_is_sent_once(void **state)
{
    (void)state;
    add(0, 300);
    assert_int_equal(metrics_queue_waiting(&steps), 300);
    take(0, WIRE_METRICS_MAX, 1000);
    take(WIRE_METRICS_MAX, 300, 1000);
    assert_int_equal(metrics_queue_waiting(&steps), 0);
    add(300, 301);
    take(300, 301, 2000);
    assert_int_equal(m.round, UINT64_MAX);
}

/* What was sent long enough before an answered heartbeat is there; the rest is sent again, in order. */
static void test_again_what_may_not_be_there(void **state)
{
    (void)state;
    add(0, 10);
    take(0, 10, 1000);
    add(10, 20);
    take(10, 20, 2000);
    add(20, 25); /* nobody to send them to */
    metrics_queue_acked(&steps, 1000 + METRICS_QUEUE_SAFE_US - 1);
    metrics_queue_again(&steps);
    assert_int_equal(metrics_queue_waiting(&steps), 25);
    metrics_queue_acked(&steps, UINT64_MAX); /* an answer from before: it says nothing of what is to be sent again */
    assert_int_equal(metrics_queue_waiting(&steps), 25);
    take(0, 25, 9000000);
    metrics_queue_acked(&steps, 9000000 + METRICS_QUEUE_SAFE_US - 1);
    metrics_queue_again(&steps);
    take(0, 25, 20000000);
    add(25, 30);
    metrics_queue_acked(&steps, 20000000 + METRICS_QUEUE_SAFE_US);
    metrics_queue_again(&steps);
    take(25, 30, 21000000);
}

/* Times go with a record that nobody has, and end the message: they are told with its last step. Sent again, they stand
 * with the same record. */
static void test_times(void **state)
{
    (void)state;
    const struct step_times times = {
        .round = 6, .compute_s = 1, .compress_s = 2, .send_s = 3, .wait_s = 4, .apply_s = 5};
    assert_false(metrics_queue_times(&steps, &times));
    add(0, 4);
    assert_true(metrics_queue_times(&steps, &times));
    add(4, 6);
    take(0, 4, 1000);
    assert_int_equal(m.round, 6);
    assert_true(m.compute_s == 1 && m.compress_s == 2 && m.send_s == 3 && m.wait_s == 4 && m.apply_s == 5);
    take(4, 6, 1000);
    assert_int_equal(m.round, UINT64_MAX);
    assert_true(m.compute_s == 0 && m.apply_s == 0);
    assert_false(metrics_queue_times(&steps, &times));
    metrics_queue_again(&steps);
    assert_false(metrics_queue_times(&steps, &times));
    take(0, 4, 2000);
    assert_int_equal(m.round, 6);
    take(4, 6, 2000);
}

/* A coordinator that is away for long: the newest records are kept; those that it may never have got are counted. */
static void test_no_room(void **state)
{
    (void)state;
    add(0, 10);
    take(0, 10, 1000);
    add(10, METRICS_QUEUE_MAX + 10);
    assert_int_equal(steps.lost, 0);
    assert_int_equal(metrics_queue_waiting(&steps), METRICS_QUEUE_MAX);
    add(METRICS_QUEUE_MAX + 10, METRICS_QUEUE_MAX + 13);
    assert_int_equal(steps.lost, 3);
    metrics_queue_again(&steps);
    assert_int_equal(steps.lost, 13); /* what was sent was not sure */
    for (uint32_t at = 13; at < METRICS_QUEUE_MAX + 13; at += WIRE_METRICS_MAX) take(at, at + WIRE_METRICS_MAX, 2000);
    assert_int_equal(metrics_queue_waiting(&steps), 0);
    add(METRICS_QUEUE_MAX + 13, METRICS_QUEUE_MAX + 14); /* over one that was sent */
    assert_int_equal(steps.lost, 13);
    take(METRICS_QUEUE_MAX + 13, METRICS_QUEUE_MAX + 14, 3000);
    metrics_queue_acked(&steps, 2000 + METRICS_QUEUE_SAFE_US); /* and is there */
    metrics_queue_again(&steps);
    assert_int_equal(steps.lost, 13);
    add(METRICS_QUEUE_MAX + 14, 2 * METRICS_QUEUE_MAX + 13);
    assert_int_equal(steps.lost, 13);
    add(2 * METRICS_QUEUE_MAX + 13,
        2 * METRICS_QUEUE_MAX + 15); /* over one that was to be sent again, and one that never was */
    assert_int_equal(steps.lost, 15);
}

static void answer(struct heartbeat *p, uint64_t sent_us)
{
    heartbeat_on_message(p, &(struct msg){.type = MSG_HEARTBEAT_ACK, .heartbeat_ack.sent_us = sent_us}, sent_us + 1000);
}

/* The newest heartbeat that was answered; of a session that begins, none yet. */
static void test_answers(void **state)
{
    (void)state;
    struct heartbeat p;
    heartbeat_init(&p);
    heartbeat_join(&p, 1, 1000);
    assert_int_equal(heartbeat_acked_us(&p), 0);
    for (uint64_t s = 50; s < 60; s++) answer(&p, s * 1000000);
    answer(&p, 51000000); /* that took another way */
    assert_int_equal(heartbeat_acked_us(&p), 59000000);
    heartbeat_join(&p, 2, 1000);
    assert_int_equal(heartbeat_acked_us(&p), 0);
    answer(&p, 90000000);
    assert_int_equal(heartbeat_acked_us(&p), 90000000);
    heartbeat_finish(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_each_is_sent_once, empty),
        cmocka_unit_test_setup(test_again_what_may_not_be_there, empty),
        cmocka_unit_test_setup(test_times, empty),
        cmocka_unit_test_setup(test_no_room, empty),
        cmocka_unit_test_setup(test_answers, empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
