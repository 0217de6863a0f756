/* A path that drops large packets is told from a slow one, from an outage and from an idle one. */

#include "tests/lib/test.h"
#include "wire/path_watch.h"

enum { S = 1000000 };

static struct path_watch watch;
static uint64_t now;

static void begin(void)
{
    memset(&watch, 0, sizeof watch);
    now = 1000 * (uint64_t)S;
}

/* One heartbeat a second, for `seconds`. Bytes move at `rate` a second. Returns the second in which the path was named
 * first, 0: never. */
static int beat(int seconds, bool waits, uint64_t *bytes, uint64_t rate)
{
    int named = 0;
    for (int i = 1; i <= seconds; i++) {
        now += S;
        *bytes += rate;
        if (path_watch(&watch, waits, *bytes, now) && !named) named = i;
    }
    return named;
}

TEST(test_stuck_transfer_is_named_after_30_s)
{
    uint64_t bytes = 1 << 20;
    begin();
    assert_int_equal(beat(5, true, &bytes, 100000), 0);
    assert_false(path_watch_unknown(&watch, now));
    assert_int_equal(beat(40, true, &bytes, 0), 30);
    assert_int_equal(beat(1, true, &bytes, 100000), 0); /* the path is whole again */
    assert_int_equal(beat(29, true, &bytes, 0), 0);
}

/* The kernel gives up a connection after 30 s. Then another one opens, and its handshake passes. */
TEST(test_new_connection_is_no_progress)
{
    uint64_t bytes = 1 << 20;
    begin();
    beat(1, true, &bytes, 100000);
    assert_int_equal(beat(15, true, &bytes, 0), 0);
    beat(3, false, &bytes, 0);
    bytes = 900;
    assert_int_equal(beat(20, true, &bytes, 0), 12);
    for (int i = 0; i < 20; i++) assert_true(path_watch_unknown(&watch, now += S)); /* it breaks again */
    bytes = 700;
    assert_int_equal(beat(3, false, &bytes, 0), 1);
    now += 2 * PATH_GAP_US;
    assert_int_equal(beat(3, true, &bytes, 0), 0);
    assert_false(path_watch_unknown(&watch, now));
}

TEST(test_slow_path_is_not_named)
{
    uint64_t bytes = 0;
    begin();
    assert_int_equal(beat(600, true, &bytes, 200), 0); /* 1.6 kbit/s */
}

/* A small model: a small message every 4 s, on its way when the heartbeat looks. */
TEST(test_small_messages_are_not_named)
{
    uint64_t bytes = 1 << 20;
    begin();
    for (int i = 0; i < 100; i++) {
        assert_int_equal(beat(1, true, &bytes, 0), 0);
        assert_int_equal(beat(3, false, &bytes, 100), 0);
    }
}

TEST(test_outage_is_not_named)
{
    uint64_t bytes = 1 << 20;
    begin();
    for (int i = 0; i < 5; i++) {
        assert_int_equal(beat(20, true, &bytes, 0), 0);
        now += 2 * PATH_GAP_US;
    }
}

TEST(test_idle_path_is_not_named)
{
    uint64_t bytes = 1 << 20;
    begin();
    assert_int_equal(beat(100, false, &bytes, 0), 0);
    assert_int_equal(beat(20, true, &bytes, 0), 0);  /* the time before does not count */
    assert_int_equal(beat(20, true, &bytes, 0), 11); /* the first of them may have left just now */
}

TEST_MAIN(NULL, NULL)
