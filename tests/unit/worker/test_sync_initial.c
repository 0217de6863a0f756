/* The upload of the initial model while a worker joins: losses, restarts, and waiting for another worker. */

#include "common/base/rng.h"
#include "tests/lib/rigs/sync_rig.h"
#include "tests/lib/test.h"

enum { TOTAL = 11000000, WINDOW = 4 << 20 };

static void start_joining(void)
{
    sync_rig.now = 1000000;
    sync_init(&sync_rig.s, 42, sync_rig.now);
    sync_rig_expect(SYNC_SEND_HELLO);
    assert_true(sync_on_config(&sync_rig.s, sync_rig.now));
    sync_configured(&sync_rig.s, false, 2, NULL, sync_rig.now);
    sync_rig_expect(SYNC_SEND_JOIN);
    sync_rig_expect_none();
}

static void upload(uint64_t id, uint64_t have)
{
    struct msg_upload m = {.upload = id, .have = have, .upto = have + WINDOW < TOTAL ? have + WINDOW : TOTAL};
    sync_on_upload(&sync_rig.s, &m, TOTAL, sync_rig.now);
}

TEST(test_bytes_follow_the_window)
{
    struct sync_action a;
    char waits[200];
    uint64_t have = 0;
    start_joining();
    upload(5, 0);
    while (have < TOTAL) {
        uint64_t end = have + WINDOW < TOTAL ? have + WINDOW : TOTAL, at = have;
        while (sync_rig_poll_one(&a)) {
            assert_true(a.type == SYNC_SEND_INITIAL && a.version == 5 && a.offset == at && a.length <= SYNC_CHUNK);
            at += a.length;
        }
        assert_int_equal(at, end);
        sync_waits_for(&sync_rig.s, waits, sizeof waits);
        assert_non_null(strstr(waits, "the upload of the initial model ("));
        sync_rig.now += 500000;
        upload(5, have = end);
    }
    sync_rig_expect_none();
    sync_rig_sleep_until_due(); /* WELCOME is lost: JOIN is repeated */
    sync_rig_expect(SYNC_SEND_JOIN);
    struct msg_welcome w = sync_rig_welcome(7, false, 0, 0);
    assert_true(sync_on_welcome(&sync_rig.s, &w, sync_rig.now));
    upload(5, 0); /* late */
    assert_int_equal(sync_rig.s.phase, SYNC_JOINED);
}

/* The coordinator takes bytes in order; chunks and UPLOADs are lost. A full queue of the transport gives a chunk back.
 */
TEST(test_losses_are_sent_again)
{
    int joins = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct sync_action a;
        uint64_t have = 0, draw = 0;
        start_joining();
        upload(9, 0);
        for (int turn = 0; have < TOTAL; turn++) {
            assert_true(turn < 100000);
            if (!sync_rig_poll_one(&a)) {
                sync_rig_sleep_until_due();
                continue;
            }
            uint64_t luck = rng_u64(seed, RNG_TEST, draw++) % 16;
            if (a.type == SYNC_SEND_JOIN) {
                joins++;
                if (luck > 1) upload(9, have);
            } else if (luck == 0) {
                sync_blocked(&sync_rig.s, &a, sync_rig.now);
            } else if (luck > 1 && a.offset == have) {
                have += a.length;
                if (luck > 3) upload(9, have);
            }
            assert_true(sync_rig.s.initial.held <= have);
        }
    }
    assert_in_range(joins, 20, 400); /* each one repairs a loss */
}

TEST(test_restarted_coordinator_begins_at_0)
{
    start_joining();
    upload(5, 0);
    sync_rig_drain_all();
    upload(5, 3000000);
    upload(6, 0);
    struct sync_action a = sync_rig_expect(SYNC_SEND_INITIAL);
    assert_true(a.version == 6 && a.offset == 0);
}

/* A new connection in the middle of a window: JOIN follows at once. The rest of the window would put it off by the
 * timeout of a link whose rate is not known. */
TEST(test_reconnect_asks_before_it_sends)
{
    start_joining();
    upload(5, 0);
    sync_rig_expect(SYNC_SEND_INITIAL);
    sync_rig.now += 20000;
    sync_reconnected(&sync_rig.s, sync_rig.now);
    sync_rig_expect(SYNC_SEND_JOIN);
    sync_rig_expect_none();
    upload(5, 0); /* the coordinator is the same: the bytes after `have` are sent again */
    assert_int_equal(sync_rig_expect(SYNC_SEND_INITIAL).offset, 0);
    sync_rig_drain_all();
    assert_int_equal(sync_rig.s.initial.sent, WINDOW);
}

TEST(test_other_uploader_is_waited_for)
{
    char waits[200];
    struct msg_upload m = {.text = "the initial model, which w0 uploads (1 MB of 2 MB)"};
    start_joining();
    for (int i = 0; i < 3; i++) {
        sync_on_upload(&sync_rig.s, &m, 0, sync_rig.now);
        sync_rig_expect_none();
        sync_waits_for(&sync_rig.s, waits, sizeof waits);
        assert_string_equal(waits, m.text);
        uint64_t before = sync_rig.now;
        sync_rig_sleep_until_due();
        assert_in_range(sync_rig.now - before, 1000000, 4000000);
        sync_rig_expect(SYNC_SEND_JOIN);
    }
    upload(8, 0); /* it takes over */
    assert_int_equal(sync_rig_expect(SYNC_SEND_INITIAL).offset, 0);
    m.text[0] = 0;
    sync_on_upload(&sync_rig.s, &m, 0, sync_rig.now); /* and loses it again */
    sync_rig_expect_none();
}

/* Numbers that no coordinator sends change nothing. */
TEST(test_false_offsets_are_ignored)
{
    static const struct msg_upload bad[] = {{.upload = 5, .have = TOTAL + 1, .upto = TOTAL + 1},
                                            {.upload = 5, .have = 10, .upto = 9},
                                            {.upload = 5, .have = UINT64_MAX, .upto = UINT64_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        start_joining();
        sync_on_upload(&sync_rig.s, &bad[i], TOTAL, sync_rig.now);
        sync_rig_expect_none();
    }
    start_joining();
    struct msg_upload far = {.upload = 5, .have = 0, .upto = UINT64_MAX};
    sync_on_upload(&sync_rig.s, &far, TOTAL, sync_rig.now);
    sync_rig_drain_all();
    assert_int_equal(sync_rig.s.initial.sent, SYNC_WINDOW_LEAST); /* a window, whatever the credit */
}

TEST_MAIN(NULL, NULL)
