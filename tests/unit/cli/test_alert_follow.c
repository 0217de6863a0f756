/* What `atoll alert` tells: starts, ends, at most one message a minute for each rule, a coordinator that is away, the
 * end of the run. */
#include <stdio.h>

#include "cli/alert/alert_follow.h"
#include "tests/lib/test.h"

static struct alert_follow f;
static uint64_t now_us;

static void begin(void)
{
    memset(&f, 0, sizeof f);
    f.away_after_us = 60000000;
    now_us = 1000000;
}

/* `alerts`: JSON of the list. NULL: nobody answers. */
static void answer(const char *state, const char *alerts, double eta_s)
{
    char text[1024];
    json_t *o = NULL;
    now_us += 5000000;
    if (alerts) {
        snprintf(text, sizeof text,
                 "{\"state\":\"%s\",\"run\":\"first\",\"round\":8,\"rounds\":9,\"eta_s\":%g,\"final_val_loss\":2.5,"
                 "\"alerts\":%s}",
                 state, eta_s, alerts);
        o = json_loads(text, 0, NULL);
        assert_non_null(o);
    }
    alert_follow_answer(&f, o, "no answer", now_us);
    json_decref(o);
}

/* The next message, "rule state worker: text (more)"; its command succeeds. "": none now. */
static const char *next(void)
{
    static char line[2048];
    struct alert_message m;
    line[0] = '\0';
    if (!alert_follow_next(&f, now_us, &m)) return line;
    snprintf(line, sizeof line, "%s %s %s: %s (%u)", m.rule, m.starts ? "start" : "end", m.worker, m.text, m.more);
    alert_follow_sent(&f, &m, true, now_us);
    return line;
}

static const char disk[] = "[{\"rule\":\"disk\",\"text\":\"full\"}]";

TEST(test_start_and_end)
{
    begin();
    answer("training", "[]", 1e6);
    assert_string_equal(next(), "");
    answer("training", disk, 1e6);
    assert_string_equal(next(), "disk start : full (0)");
    answer("training", disk, 1e6);
    assert_string_equal(next(), "");
    now_us += 60000000;
    answer("training", "[]", 1e6);
    assert_string_equal(next(), "disk end : over: full (0)");
}

/* A rule that flaps tells once a minute, the latest; another rule does not wait for it. */
TEST(test_one_message_a_minute)
{
    begin();
    answer("training", disk, 1e6);
    assert_string_equal(next(), "disk start : full (0)");
    for (int i = 0; i < 5; i++) answer("training", i % 2 ? disk : "[]", 1e6);
    assert_string_equal(next(), "");
    answer("training", "[{\"rule\":\"refused\",\"text\":\"two\"}]", 1e6);
    assert_string_equal(next(), "refused start : two (0)");
    now_us += 60000000;
    assert_string_equal(next(), "disk end : over: full (4)");
    assert_string_equal(next(), "");
}

TEST(test_workers_are_told_apart)
{
    begin();
    answer("training", "[{\"rule\":\"worker_missing\",\"worker\":\"a\",\"text\":\"a\"}]", 1e6);
    assert_string_equal(next(), "worker_missing start a: a (0)");
    now_us += 60000000;
    answer("training",
           "[{\"rule\":\"worker_missing\",\"worker\":\"a\",\"text\":\"a, longer\"},"
           "{\"rule\":\"worker_missing\",\"worker\":\"b\\u001b[2J;$(rm -rf /)\",\"text\":\"b\"}]",
           1e6);
    assert_string_equal(next(), "worker_missing start b?[2J;$(rm -rf /): b (0)");
    begin(); /* two limits of the budget */
    answer("training", "[{\"rule\":\"budget\",\"text\":\"hours\"}]", 1e6);
    (void)next();
    now_us += 60000000;
    answer("training", "[{\"rule\":\"budget\",\"text\":\"hours\"},{\"rule\":\"budget\",\"text\":\"GB\"}]", 1e6);
    assert_string_equal(next(), "budget start : GB (0)");
}

TEST(test_away)
{
    begin();
    answer("training", "[]", 1e6);
    for (int i = 0; i < 12; i++) answer(NULL, NULL, 0);
    assert_string_equal(next(), "");
    answer(NULL, NULL, 0);
    assert_string_equal(next(), "away start : no answer (0)");
    for (int i = 0; i < 50; i++) answer(NULL, NULL, 0);
    assert_string_equal(next(), "");
    answer("training", "[]", 1e6);
    assert_string_equal(next(), "away end : over: the coordinator answers again, after 5 min 15 s (0)");
    for (int i = 0; i < 13; i++) answer("stopped", "null", 0);
    now_us += 60000000;
    assert_string_equal(next(), "away start : no answer (0)");
    assert_false(f.done);
    begin(); /* it says why it goes */
    answer("training", "[]", 1e6);
    now_us += 5000000;
    for (int i = 0; i < 2; i++) alert_follow_refused(&f, "the budget is used up", now_us);
    for (int i = 0; i < 20; i++) answer(NULL, NULL, 0);
    assert_string_equal(next(), "away start : the budget is used up (0)");
    assert_string_equal(next(), "");
    begin(); /* a coordinator restarts within seconds */
    answer("training", "[]", 1e6);
    for (int i = 0; i < 3; i++) answer(NULL, NULL, 0);
    answer("training", "[]", 1e6);
    assert_false(alert_follow_waits(&f));
}

TEST(test_end_of_the_run)
{
    begin();
    answer("training", "[]", 10);
    answer("done", "[]", 0);
    assert_string_equal(next(), "done start : the run is done: 9 rounds, final validation loss 2.5000 (0)");
    assert_true(f.done);
    begin(); /* it ended between two looks */
    answer("training", "[]", 3);
    for (int i = 0; i < 13; i++) answer(NULL, NULL, 0);
    assert_true(f.done);
    assert_string_equal(next(), "done start : the coordinator is gone, as expected at the end of the run; its last "
                                "answer was at round 8 of 9, 3 s before the end (0)");
    begin(); /* the run was done before the follower began: no report */
    answer("done", "[]", 0);
    assert_true(f.done && !alert_follow_waits(&f));
}

TEST(test_failed_command_is_tried_again)
{
    struct alert_message m;
    int tries = 0;
    begin();
    answer("training", disk, 1e6);
    for (int minute = 0; minute < 20; minute++, now_us += 60000000) {
        if (!alert_follow_next(&f, now_us, &m)) continue;
        tries++;
        alert_follow_sent(&f, &m, false, now_us);
    }
    assert_int_equal(tries, ALERT_TRIES);
}

TEST_MAIN(NULL, NULL)
