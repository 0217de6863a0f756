/* Each rule of coordinator/limits/alerts.h: where it starts, where it ends, and that a measure at its limit does not
 * make it flap. */
#include <math.h>

#include "coordinator/limits/alerts.h"
#include "tests/lib/test.h"

/* Feeds a measure that swings by `swing` around `at`; returns how often the rule changed its mind. */
static int changes(bool (*rule)(bool fires, double value), double at, double swing)
{
    bool fires = false;
    int n = 0;
    for (int i = 0; i < 100; i++) {
        bool now = rule(fires, at + (i % 2 ? swing : -swing));
        n += now != fires;
        fires = now;
    }
    return n;
}

TEST(test_no_round)
{
    assert_false(alert_no_round(false, 199, 40));
    assert_true(alert_no_round(false, 200, 40));
    assert_false(alert_no_round(false, 29, 1)); /* short rounds vary more */
    assert_true(alert_no_round(false, 30, 1));
    assert_false(alert_no_round(false, 1e6, NAN)); /* nothing is measured yet */
    assert_true(alert_no_round(true, 1, 40));      /* it ends with the round only */
    assert_false(alert_no_round(true, 0, 40));
    assert_false(alert_no_workers(false, 59, 1));
    assert_true(alert_no_workers(false, 60, 1));
    assert_true(alert_no_workers(false, 60, NAN));
    assert_false(alert_no_workers(false, 60, 13));
}

TEST(test_worker_missing)
{
    assert_false(alert_worker_missing(false, 0x01)); /* one of five */
    assert_true(alert_worker_missing(false, 0x11));  /* the last one and the fifth last */
    assert_false(alert_worker_missing(false, 0x21)); /* the sixth last does not count */
    uint32_t rounds = 0x3;
    bool fires = true;
    for (int i = 0; i < 5; i++) {
        assert_true(fires);
        rounds <<= 1; /* it took part again */
        fires = alert_worker_missing(fires, rounds);
    }
    assert_false(fires);
    assert_true(alert_worker_missing(true, 0x10)); /* one of five does not start it, and keeps it */
}

static bool disk_part(bool fires, double part)
{
    return alert_disk(fires, (uint64_t)(part * 1e12), 1000000000000, UINT64_MAX);
}

static bool disk_checkpoints(bool fires, double checkpoints)
{
    return alert_disk(fires, (uint64_t)(checkpoints * 1e6), 10000000, 1000000);
}

TEST(test_disk)
{
    assert_false(disk_part(false, 0.101));
    assert_true(disk_part(false, 0.099));
    assert_true(disk_part(true, 0.119));
    assert_false(disk_part(true, 0.121));
    assert_int_equal(changes(disk_part, 0.1, 0.005), 1);
    assert_int_equal(changes(disk_checkpoints, 2, 0.2), 1);
    assert_int_equal(changes(disk_checkpoints, 2.7, 0.1), 0);
    assert_true(alert_disk(false, 199, 1000, 100)); /* less than two checkpoints, although 19 % */
    assert_false(alert_disk(true, UINT64_MAX, 1000, 100));
    assert_false(alert_disk(false, 5000, UINT64_MAX, UINT64_MAX));
}

TEST(test_refused_and_budget)
{
    assert_false(alert_refused(false, 1));
    assert_true(alert_refused(false, 2));
    assert_true(alert_refused(true, 1));
    assert_false(alert_refused(true, 0));
    assert_false(alert_budget(79.9, 100));
    assert_true(alert_budget(80, 100));
    assert_false(alert_budget(1e9, 0)); /* no limit */
}

TEST(test_loss)
{
    struct alert_losses l = {.n = 0};
    bool fires = false;
    for (int i = 0; i < 20; i++) {
        fires = alert_loss(&l, fires, 3 - 0.02 * i + (i % 2 ? 0.01 : -0.01));
        assert_false(fires);
    }
    assert_false(alert_loss(&l, false, 5)); /* one round may be odd data */
    assert_false(alert_loss(&l, false, 2.6));
    assert_false(alert_loss(&l, false, 5));
    assert_true(alert_loss(&l, false, 4.8));
    assert_true(alert_loss(&l, true, 2.6)); /* back for one round */
    assert_true(alert_loss(&l, true, 4));
    assert_true(alert_loss(&l, true, 2.6));
    assert_false(alert_loss(&l, true, 2.6));
    assert_true(alert_loss(&l, false, NAN));
    assert_true(alert_loss(&l, false, INFINITY));
    struct alert_losses first = {.n = 0};
    for (int i = 0; i < 3; i++) assert_false(alert_loss(&first, false, 1 + i)); /* nothing to compare with */
}

TEST(test_list_of_alerts)
{
    struct alerts a = {.n = 0};
    struct alert ended;
    assert_int_equal(alerts_set(&a, ALERT_DISK, ALERT_NO_SUBJECT, false, NULL, "x", 1, NULL), ALERT_SAME);
    assert_int_equal(alerts_set(&a, ALERT_WORKER_MISSING, 3, true, "kitchen", "three", 5, NULL), ALERT_STARTS);
    assert_int_equal(alerts_set(&a, ALERT_WORKER_MISSING, 4, true,
                                "of\x1b"
                                "fice",
                                "four\n", 6, NULL),
                     ALERT_STARTS);
    assert_int_equal(alerts_set(&a, ALERT_WORKER_MISSING, 3, true, "kitchen", "still three", 7, NULL), ALERT_SAME);
    assert_string_equal(alerts_find(&a, ALERT_WORKER_MISSING, 3)->text, "still three");
    assert_int_equal(alerts_find(&a, ALERT_WORKER_MISSING, 3)->since_us, 5);
    assert_null(strchr(alerts_find(&a, ALERT_WORKER_MISSING, 4)->text, '\n'));
    assert_int_equal(a.total[ALERT_WORKER_MISSING], 2);
    assert_int_equal(alerts_set(&a, ALERT_WORKER_MISSING, 3, false, NULL, "", 9, &ended), ALERT_ENDS);
    assert_string_equal(ended.text, "still three");
    assert_int_equal(a.n, 1);
    assert_int_equal(a.firing[0].subject, 4);
    for (int i = 10; i < 10 + 2 * ALERTS_MAX; i++)
        (void)alerts_set(&a, ALERT_WORKER_MISSING, i, true, "w", "t", 10, NULL);
    assert_int_equal(a.n, ALERTS_MAX);
}

TEST_MAIN(NULL, NULL)
