/* Limits on messages: honest rates pass, floods do not, and a sender far above its limits is closed. */

#include "coordinator/limits/rate.h"
#include "tests/lib/test.h"
#include "wire/msg.h"

static struct rate_table table;

static const struct rate_needs needs = {.n_fragments = 2, .chunks = 3, .gets = 2, .steps = 30};

static int setup(void **state)
{
    (void)state;
    table = (struct rate_table){.report_us = 0};
    rate_limits(table.limits, &needs);
    return 0;
}

/* Sends n messages, evenly over `us`; returns the number of allowed ones. */
static int send(uint64_t who, enum rate_class class, int n, uint64_t from_us, uint64_t us)
{
    int allowed = 0;
    for (int i = 0; i < n; i++)
        allowed += rate_admit(&table, who, who, class, 64, from_us + us * (uint64_t)i / (uint64_t)n) == RATE_ALLOW;
    return allowed;
}

/* The needs that the table of limits names, for a worker of 100 rounds a second, for a minute. */
TEST_WITH(test_honest_worker_is_never_limited, setup, NULL)
{
    uint64_t now = 1000000;
    for (int round = 0; round < 6000; round++, now += 10000) {
        table.updates += needs.n_fragments;
        assert_int_equal(send(1, RATE_HEARTBEAT, 5, now, 9000), 5);
        assert_int_equal(send(1, RATE_OBJECT, 6, now, 9000), 6);
        assert_int_equal(send(1, RATE_CHUNK, 6, now, 9000), 6);
        assert_int_equal(send(1, RATE_METRICS, 1, now, 9000), 1);
        if (round % 50 == 0) assert_int_equal(send(1, RATE_STATUS, 1, now, 1), 1);
        if (round % 250 == 0) assert_int_equal(send(1, RATE_ENTER, 2, now, 1), 2); /* refused: the run is full */
    }
    size_t at = 0;
    assert_null(rate_report(&table, &at));
}

/* At most the burst and the rate pass, whatever the speed of the flood, and other senders notice nothing. */
TEST_WITH(test_flood_is_cut_to_its_limit, setup, NULL)
{
    for (int class = 0; class < RATE_CLASSES; class ++) {
        setup(NULL);
        const struct rate_limit *limit = &table.limits[class];
        uint64_t now = 1000000;
        int allowed = 0;
        for (int i = 0; i < 10000; i++) { /* 1000 a second, for ten seconds */
            enum rate_verdict verdict = rate_admit(&table, 7, 7, (enum rate_class) class, 64, now);
            allowed += verdict == RATE_ALLOW;
            if (verdict == RATE_CLOSE) break;
            now += 1000;
            if (i % 1000 == 0) assert_int_equal(send(8, RATE_HEARTBEAT, 1, now, 1), 1);
        }
        assert_in_range(allowed, limit->burst, limit->burst + limit->per_s * (double)(now - 1000000) * 1e-6 + 1);
    }
}

TEST_WITH(test_sender_far_above_its_limit_is_refused_for_a_minute, setup, NULL)
{
    uint64_t now = 1000000;
    int n = 0;
    enum rate_verdict verdict;
    while ((verdict = rate_admit(&table, 7, 7, RATE_STATUS, 16, now)) != RATE_CLOSE) n++;
    assert_int_equal(n, (int)table.limits[RATE_STATUS].burst + RATE_EXCESS_MAX);
    for (int s = 0; s < 60; s++)
        assert_int_equal(rate_admit(&table, 7, 9, RATE_HEARTBEAT, 16, now + (uint64_t)s * 1000000), RATE_REFUSED);
    assert_int_equal(rate_admit(&table, 7, 9, RATE_HEARTBEAT, 16, now + 60000000), RATE_ALLOW);
    /* large messages count more: 4 MiB each */
    for (n = 0; rate_admit(&table, 8, 8, RATE_CHUNK, 4 << 20, now) != RATE_CLOSE; n++) continue;
    assert_int_equal(n, (int)table.limits[RATE_CHUNK].burst); /* at once */
}

/* Twenty messages a second above a limit of five are ignored for ever, but the connection stays. */
TEST_WITH(test_small_excess_is_ignored_only, setup, NULL)
{
    uint64_t now = 1000000;
    for (int i = 0; i < 100000; i++, now += 50000)
        assert_int_not_equal(rate_admit(&table, 7, 7, RATE_STATUS, 16, now), RATE_CLOSE);
}

TEST_WITH(test_granted_messages_pass, setup, NULL)
{
    double burst = table.limits[RATE_OBJECT].burst;
    assert_int_equal(send(7, RATE_OBJECT, 1, 1000000, 1), 1);
    rate_grant(&table, 7, RATE_OBJECT, 500);
    assert_int_equal(send(7, RATE_OBJECT, 2000, 1000001, 1000), (int)burst + 499);
}

TEST_WITH(test_ignored_messages_are_reported_once_a_second, setup, NULL)
{
    send(7, RATE_STATUS, 100, 5000000, 1000);
    send(3, RATE_STATUS, 2, 5000000, 1000);
    assert_in_range(table.report_us, 6000000, 6001000);
    size_t at = 0;
    struct rate_sender *s = rate_report(&table, &at);
    assert_non_null(s);
    assert_int_equal(s->peer, 7);
    assert_int_equal(s->ignored[RATE_STATUS], 90);
    memset(s->ignored, 0, sizeof s->ignored);
    assert_null(rate_report(&table, &at));
    assert_int_equal(table.report_us, 0);
}

/* A hundred thousand senders do not push out one that is refused. */
TEST_WITH(test_refused_sender_stays_refused, setup, NULL)
{
    uint64_t now = 1000000;
    while (rate_admit(&table, 7, 7, RATE_STATUS, 16, now) != RATE_CLOSE) continue;
    for (uint64_t who = 100; who < 100100; who++)
        assert_int_equal(rate_admit(&table, who, who, RATE_STATUS, 16, now + who), RATE_ALLOW);
    assert_int_equal(rate_admit(&table, 7, 8, RATE_STATUS, 16, now + 200000), RATE_REFUSED);
}

TEST_WITH(test_every_message_has_a_class, setup, NULL)
{
    for (int type = 0; type < 256; type++) {
        assert_int_equal(rate_class_of((uint8_t)type, WIRE_BULK), type == MSG_BIND    ? RATE_OBJECT
                                                                  : type == MSG_CHUNK ? RATE_CHUNK
                                                                  : type == MSG_PROBE ? RATE_PROBE
                                                                  : type == MSG_FETCH ? RATE_PROBE
                                                                                      : RATE_INVALID);
        bool known = type == MSG_HELLO || type == MSG_JOIN || type == MSG_LEAVE || type == MSG_HEARTBEAT ||
                     type == MSG_OFFER || type == MSG_GET || type == MSG_METRICS || type == MSG_EVAL_RESULT ||
                     type == MSG_STATUS || type == MSG_ENROL || type == MSG_MODEL || type == MSG_SAVES;
        assert_int_equal(rate_class_of((uint8_t)type, WIRE_CONTROL) != RATE_INVALID, known);
    }
}

TEST_MAIN(NULL, NULL)
