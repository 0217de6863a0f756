/* Requests of one worker: parking, windows, and the bytes that the coordinator skips because the worker has them. */

#include "coordinator/round/download.h"
#include "tests/lib/test.h"

enum { TOTAL = 1000, ALL = 1 << 20 };

static bool ask(struct download *s, uint64_t offset, uint64_t length, uint64_t total)
{
    struct msg_get get = {.kind = OBJECT_UPDATE, .fragment = 1, .version = 7, .offset = offset, .length = length};
    return download_add(s, &get, total);
}

/* Checks that the next chunk is [from, to). */
static void sends(struct download *s, uint64_t from, uint64_t to)
{
    struct download_item item;
    uint64_t size;
    assert_true(download_next(s, &item, &size));
    assert_int_equal(item.at, from);
    assert_int_equal(size, to - from);
    download_sent(s, &item, size);
}

static void sends_nothing(struct download *s)
{
    struct download_item item;
    uint64_t size;
    assert_false(download_next(s, &item, &size));
}

TEST(test_parked_request_waits_for_its_object)
{
    struct download s = {0};
    assert_true(ask(&s, 0, TOTAL, 0));
    sends_nothing(&s);
    download_wake(&s, 1, 6, 300); /* another version */
    sends_nothing(&s);
    download_wake(&s, 1, 7, 300);
    sends(&s, 0, 300);
    sends_nothing(&s);
}

TEST(test_next_window_continues_request)
{
    struct download s = {0};
    assert_true(ask(&s, 0, 2 * DOWNLOAD_CHUNK, 4 * DOWNLOAD_CHUNK));
    sends(&s, 0, DOWNLOAD_CHUNK);
    assert_true(ask(&s, 2 * DOWNLOAD_CHUNK, DOWNLOAD_CHUNK, 4 * DOWNLOAD_CHUNK)); /* continues the first request */
    sends(&s, DOWNLOAD_CHUNK, 2 * DOWNLOAD_CHUNK);
    sends(&s, 2 * DOWNLOAD_CHUNK, 3 * DOWNLOAD_CHUNK);
    sends_nothing(&s);
    assert_true(ask(&s, 3 * DOWNLOAD_CHUNK, ALL, 4 * DOWNLOAD_CHUNK));
    assert_true(ask(&s, 100, 50, 4 * DOWNLOAD_CHUNK)); /* replaces the request */
    sends(&s, 100, 150);
    sends_nothing(&s);
    assert_false(ask(&s, 4 * DOWNLOAD_CHUNK, ALL, 4 * DOWNLOAD_CHUNK)); /* past the end */
    sends_nothing(&s);
}

TEST(test_own_bytes_are_skipped)
{
    struct download s = {0};
    ask(&s, 0, ALL, 0);
    download_leave_out(&s, 1, 7, 100, 200); /* parked: the object is not known yet */
    download_wake(&s, 1, 7, TOTAL);
    download_leave_out(&s, 1, 7, 100, 200);
    sends(&s, 0, 100);
    sends(&s, 200, TOTAL);
    sends_nothing(&s);
    ask(&s, 50, ALL, TOTAL); /* lost: the worker requests again from its position */
    download_leave_out(&s, 1, 7, 100, 200);
    sends(&s, 50, 100);
    sends(&s, 200, TOTAL);
    ask(&s, 150, ALL, TOTAL);
    download_leave_out(&s, 1, 7, 100, 200);
    sends(&s, 150, TOTAL);
    sends_nothing(&s);
}

/* A request that begins with the skipped bytes: the worker does not have them. */
TEST(test_request_for_skipped_bytes_sends_them)
{
    struct download s = {0};
    ask(&s, 100, ALL, TOTAL);
    download_leave_out(&s, 1, 7, 100, 200);
    sends(&s, 100, TOTAL);
    sends_nothing(&s);
    ask(&s, 100, 50, TOTAL);
    download_leave_out(&s, 1, 7, 100, 200);
    sends(&s, 100, 150);
    sends_nothing(&s);
}

/* A request for no bytes, and one more than the limit. */
TEST(test_excess_requests_are_refused)
{
    struct download s = {0};
    struct msg_get get = {.kind = OBJECT_UPDATE, .version = 1, .length = ALL};
    assert_false(ask(&s, 0, 0, TOTAL));
    sends_nothing(&s);
    for (; get.fragment < DOWNLOAD_MAX; get.fragment++) assert_true(download_add(&s, &get, TOTAL));
    assert_false(download_add(&s, &get, TOTAL));
    get.fragment--;
    assert_true(download_add(&s, &get, TOTAL)); /* replaces the request of the same object */
}

TEST(test_own_bytes_are_skipped_across_windows)
{
    struct download s = {0};
    ask(&s, 0, 150, TOTAL); /* the window ends inside the skipped bytes */
    download_leave_out(&s, 1, 7, 100, 400);
    sends(&s, 0, 100);
    sends_nothing(&s);
    ask(&s, 400, 600, TOTAL);
    download_leave_out(&s, 1, 7, 100, 400);
    sends(&s, 400, TOTAL);
    sends_nothing(&s);
    ask(&s, 0, 150, TOTAL);
    download_leave_out(&s, 1, 7, 100, 400);
    ask(&s, 400, 300, TOTAL); /* before the first was sent */
    download_leave_out(&s, 1, 7, 100, 400);
    sends(&s, 0, 100);
    sends(&s, 400, 700);
    sends_nothing(&s);
    ask(&s, 0, 100, TOTAL); /* the window ends where the skipped bytes begin */
    download_leave_out(&s, 1, 7, 100, 400);
    sends(&s, 0, 100);
    sends_nothing(&s);
    ask(&s, 0, 150, TOTAL); /* the worker has these bytes, but nothing is skipped here: no byte before them may be
                             * lost */
    ask(&s, 400, 300, TOTAL);
    sends(&s, 0, 700);
    sends_nothing(&s);
}

TEST(test_skip_of_other_object_has_no_effect)
{
    struct download s = {0};
    download_leave_out(&s, 1, 7, 100, 200); /* no request */
    sends_nothing(&s);
    ask(&s, 0, ALL, TOTAL);
    download_leave_out(&s, 1, 6, 100, 200); /* another object */
    download_leave_out(&s, 0, 7, 100, 200);
    download_leave_out(&s, 1, 7, 100, 100); /* no bytes */
    sends(&s, 0, TOTAL);
    sends_nothing(&s);
}

/* Waits longer after each refusal of a full lane, and less after each chunk that the lane accepts. */
TEST(test_full_lane_backs_off)
{
    struct download s = {0};
    uint64_t now = 1000000, begun = now, tries = 0;
    assert_true(ask(&s, 0, 2 * DOWNLOAD_CHUNK, 4 * DOWNLOAD_CHUNK));
    while (now < begun + 1000000) {
        uint64_t full_for = now - begun;
        download_full(&s, now);
        assert_true(s.again_us > now && s.again_us - now <= full_for + DOWNLOAD_WAIT_US);
        now = s.again_us;
        tries++;
    }
    assert_in_range(tries, 5, 12);
    assert_int_equal(s.wait_us, DOWNLOAD_WAIT_MAX_US);
    sends(&s, 0, DOWNLOAD_CHUNK);
    sends(&s, DOWNLOAD_CHUNK, 2 * DOWNLOAD_CHUNK);
    download_full(&s, now);
    assert_int_equal(s.again_us, now + DOWNLOAD_WAIT_MAX_US / 2);
    download_resume(&s);
    download_full(&s, now);
    assert_int_equal(s.again_us, now + DOWNLOAD_WAIT_US);
}

TEST_MAIN(NULL, NULL)
