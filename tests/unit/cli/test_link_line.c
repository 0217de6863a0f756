/* The arithmetic of one direction of a link: rate, delay from arrival, jitter, and the bounds of its queue. */

#include "cli/link/link_line.h"
#include "tests/lib/test.h"

enum { SIZE = 12500 }; /* bytes: 1 ms at 100 Mbit/s */

TEST(test_bytes_leave_one_after_the_other)
{
    struct line line = {.rate_mbit = 100, .delay_ms = 25};
    assert_true(line_accept(&line, 1000, SIZE) == 1000 + 1000 + 25000);
    assert_true(line_accept(&line, 1000, SIZE) == 1000 + 2000 + 25000);
    assert_true(line_accept(&line, 9000, SIZE) == 9000 + 1000 + 25000); /* the line was idle */
    assert_int_equal(line.in_transit, 3 * SIZE);
}

/* A caller that reads late, or only when the queue has room, hands pieces over with their old arrival. */
TEST(test_wait_adds_nothing_to_the_delay)
{
    struct line prompt = {.rate_mbit = 100, .delay_ms = 25}, late = prompt;
    double due = 0;
    for (int i = 0; i < 100; i++) due = line_accept(&prompt, 1000, SIZE);
    uint64_t now = 1000;
    for (int i = 0; i < 100; i++) {
        while (line_wait_us(&late, now) > 0) now += 700;
        assert_true(line_accept(&late, 1000, SIZE) == 1000 + (i + 1) * 1000 + 25000);
    }
    assert_true(now > 40000); /* it did wait */
    assert_true(late.free_us == prompt.free_us && due == 1000 + 100 * 1000 + 25000);
    struct line unlimited = {.delay_ms = 25};
    assert_true(line_accept(&unlimited, 1000, SIZE) == 26000); /* whenever it is called */
}

TEST(test_queue_holds_a_round_trip)
{
    struct line near = {.rate_mbit = 100, .delay_ms = 1}, far = {.rate_mbit = 100, .delay_ms = 300};
    int near_ms = 0, far_ms = 0;
    for (; line_wait_us(&near, 0) <= 0; near_ms++) (void)line_accept(&near, 0, SIZE);
    for (; line_wait_us(&far, 0) <= 0; far_ms++) (void)line_accept(&far, 0, SIZE);
    assert_int_equal(near_ms, 51);
    assert_int_equal(far_ms, 601);
    assert_true(line_wait_us(&far, 500) == 500);
    far.in_transit = 1 << 30; /* the receiver does not read */
    assert_true(line_wait_us(&far, 10000000) > 0);
    /* 10 Gbit/s and a round trip of 1 s: more than a gigabyte under way does not slow it down */
    struct line large = {.rate_mbit = 1e4, .delay_ms = 500, .in_transit = 1250000000};
    assert_true(line_wait_us(&large, 0) <= 0);
}

TEST(test_jitter_stays_in_its_range)
{
    struct line line = {.delay_ms = 10, .jitter_ms = 5, .seed = 1}, other = {.delay_ms = 10, .jitter_ms = 5, .seed = 2};
    double least = 1e9, most = 0;
    int equal = 0;
    for (int i = 0; i < 1000; i++) {
        double due = line_accept(&line, 0, 1);
        equal += due == line_accept(&other, 0, 1);
        if (due < least) least = due;
        if (due > most) most = due;
    }
    assert_true(least >= 10000 && least < 10100 && most < 15000 && most > 14900);
    assert_true(equal < 10);
}

TEST_MAIN(NULL, NULL)
