/* The worker's protocol machine: every transition, and what lost, doubled, late and reordered messages do to it.
 * Transfers, evaluation and the end of a run are in test_sync_flow.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/rigs/syncrig.h"

enum { S = 1000000, BYTES = 1 << 20 };

/* ---- joining ------------------------------------------------------------------------------------------------------
 */

static void test_handshake_retries_until_answered(void **state)
{
    (void)state;
    uint64_t last = 0, gap = 0;
    syncrig.now = 5 * S;
    sync_init(&syncrig.s, 1, syncrig.now);
    for (int i = 0; i < 12; i++) {
        syncrig_sleep_until_due();
        syncrig_expect(SYNC_SEND_HELLO);
        syncrig_expect_none();
        if (i > 1) assert_true(syncrig.now - last >= gap * 7 / 10); /* grows, up to jitter */
        gap = syncrig.now - last;
        last = syncrig.now;
    }
    assert_in_range(gap, 8 * S, 12 * S);
    assert_true(sync_on_config(&syncrig.s, syncrig.now));
    assert_false(sync_on_config(&syncrig.s, syncrig.now));
    syncrig_expect_none(); /* the owner is at work */
    sync_configured(&syncrig.s, false, 2, NULL, syncrig.now);
    syncrig_expect(SYNC_SEND_JOIN);
    syncrig_expect_none();
    syncrig_sleep_until_due();
    syncrig_expect(SYNC_SEND_JOIN);
    assert_false(sync_on_config(&syncrig.s, syncrig.now)); /* a late duplicate */
    struct msg_welcome w = syncrig_welcome(9, false, 0, 0);
    assert_true(sync_on_welcome(&syncrig.s, &w, syncrig.now));
    assert_int_equal(syncrig.s.phase, SYNC_JOINED);
    syncrig_expect(SYNC_SEND_BIND);
}

static void test_two_workers_do_not_retry_together(void **state)
{
    (void)state;
    uint64_t due[2];
    for (int i = 0; i < 2; i++) {
        sync_init(&syncrig.s, 1000u + 77u * (unsigned)i, S);
        syncrig.now = S;
        syncrig_expect(SYNC_SEND_HELLO);
        due[i] = sync_deadline_us(&syncrig.s);
    }
    assert_int_not_equal(due[0], due[1]);
}

static void test_fresh_worker_loads_snapshot_then_replays(void **state)
{
    (void)state;
    syncrig.now = S;
    sync_init(&syncrig.s, 1, syncrig.now);
    syncrig_drain_all();
    sync_on_config(&syncrig.s, syncrig.now);
    sync_configured(&syncrig.s, false, 2, NULL, syncrig.now);
    syncrig_drain_all();
    struct msg_welcome w = syncrig_welcome(9, false, 12, 10);
    sync_on_welcome(&syncrig.s, &w, syncrig.now);
    assert_int_equal(syncrig.s.state, WORKER_CATCHING_UP);
    syncrig_expect(SYNC_SEND_BIND);
    for (uint32_t i = 0; i < 2; i++) {
        struct sync_action a = syncrig_expect(SYNC_SEND_GET);
        assert_int_equal(a.kind, OBJECT_SNAPSHOT);
        assert_int_equal(a.version, 10);
        assert_int_equal(a.offset, 0);
    }
    assert_true(sync_expects(&syncrig.s, OBJECT_SNAPSHOT, 0, 10));
    assert_false(sync_expects(&syncrig.s, OBJECT_UPDATE, 0, 11));
    sync_on_progress(&syncrig.s, 0, 500, 500, syncrig.now);
    uint32_t f;
    assert_true(sync_apply(&syncrig.s, &f));
    sync_loaded(&syncrig.s, 0, 10, syncrig.now);
    syncrig_expect_none(); /* no replay before all of it is loaded */
    sync_loaded(&syncrig.s, 1, 10, syncrig.now);
    assert_true(syncrig.s.holds);
    assert_int_equal(syncrig.s.state, WORKER_CATCHING_UP);
    for (uint64_t v = 11; v <= 12; v++)
        for (uint32_t i = 0; i < 2; i++) assert_int_equal(syncrig_update(i, v - 1, SYNC_NO_ROUND), SYNC_NOT_MINE);
    assert_int_equal(syncrig.s.state, WORKER_READY);
}

static void test_refusals(void **state)
{
    (void)state;
    syncrig.now = S;
    sync_init(&syncrig.s, 1, syncrig.now);
    syncrig_drain_all();
    syncrig_refuse(REFUSE_FULL);
    assert_int_equal(syncrig.s.phase, SYNC_HELLO);
    assert_true(sync_deadline_us(&syncrig.s) >= syncrig.now + 5 * S);
    char text[WIRE_TEXT_MAX];
    sync_waits_for(&syncrig.s, text, sizeof text);
    assert_non_null(strstr(text, "because"));
    syncrig_refuse(REFUSE_UNKNOWN_SESSION); /* of an earlier life: no effect */
    assert_int_equal(syncrig.s.phase, SYNC_HELLO);
    syncrig_refuse(REFUSE_LAYOUT);
    assert_int_equal(syncrig.s.phase, SYNC_STOPPED);
    assert_int_equal(syncrig.s.refused, REFUSE_LAYOUT);
    syncrig.now += 100 * S;
    syncrig_expect_none();
}

/* A name that is taken may be one's own, of a machine that was restarted: asked for again, less and less, not for
 * ever. */
static void test_taken_name(void **state)
{
    (void)state;
    syncrig.now = S;
    sync_init(&syncrig.s, 1, syncrig.now);
    int asked = 0;
    uint64_t began = 0, gap = 0, last = 0;
    while (syncrig.s.phase != SYNC_STOPPED && asked < 100) {
        syncrig_expect(SYNC_SEND_HELLO);
        if (last) assert_true(syncrig.now - last >= 5 * S && syncrig.now - last >= gap);
        if (last) gap = syncrig.now - last;
        last = syncrig.now;
        if (!asked++) began = syncrig.now;
        syncrig_refuse(REFUSE_NAME);
        if (syncrig.s.phase != SYNC_STOPPED) syncrig.now = sync_deadline_us(&syncrig.s);
    }
    assert_int_equal(syncrig.s.phase, SYNC_STOPPED);
    assert_int_equal(syncrig.s.refused, REFUSE_NAME);
    assert_in_range(syncrig.now - began, SYNC_NAME_US, SYNC_NAME_US + 15 * S);
    assert_in_range(asked, 7, 12);
    assert_non_null(strstr(syncrig.s.text, "because"));
}

static void test_bad_welcome_stops(void **state)
{
    (void)state;
    syncrig_start(false, 2, 4);
    sync_rejoin(&syncrig.s, syncrig.now);
    syncrig_expect_none(); /* not within a second of joining: no two sides may chase each other */
    syncrig.now += S;
    syncrig_drain_all();
    sync_on_config(&syncrig.s, syncrig.now);
    sync_configured(&syncrig.s, false, 2, NULL, syncrig.now);
    struct msg_welcome w = syncrig_welcome(8, true, 4, 0);
    w.n_fragments = 3;
    assert_false(sync_on_welcome(&syncrig.s, &w, syncrig.now));
    assert_int_equal(syncrig.s.phase, SYNC_STOPPED);
    assert_true(syncrig.s.refused);
}

/* ---- a round ------------------------------------------------------------------------------------------------------
 */

static void test_round_from_assignment_to_update(void **state)
{
    (void)state;
    int n[8];
    syncrig_start(false, 2, 4);
    syncrig_train(4, 4, BYTES);
    assert_int_equal(syncrig_expect(SYNC_SEND_OFFER).fragment, 0);
    assert_int_equal(syncrig_expect(SYNC_SEND_OFFER).fragment, 1);
    syncrig_drain(n);
    assert_int_equal(n[SYNC_SEND_CHUNK], 0); /* nothing without credit */
    syncrig_credit(4, 0, 0, 3 * SYNC_CHUNK / 2);
    struct sync_action a = syncrig_expect(SYNC_SEND_CHUNK);
    assert_int_equal(a.offset, 0);
    assert_int_equal(a.length, SYNC_CHUNK);
    a = syncrig_expect(SYNC_SEND_CHUNK);
    assert_int_equal(a.offset, SYNC_CHUNK);
    assert_int_equal(a.length, SYNC_CHUNK / 2); /* not past the credit */
    syncrig_expect_none();
    syncrig_credit(4, 0, SYNC_CHUNK, BYTES);
    syncrig_drain(n);
    assert_int_equal(n[SYNC_SEND_CHUNK], 3);
    syncrig_credit(4, 0, BYTES, BYTES);
    assert_int_equal(syncrig.s.state, WORKER_SENDING);
    syncrig_credit(4, 1, BYTES, BYTES);
    assert_int_equal(syncrig.s.state, WORKER_WAITING);
    assert_int_equal(syncrig_update(0, 4, 4), SYNC_NAMED);
    assert_int_equal(syncrig.s.state, WORKER_WAITING);
    assert_int_equal(syncrig_update(1, 4, 4), SYNC_NAMED);
    assert_int_equal(syncrig.s.state, WORKER_READY);
    assert_int_equal(syncrig.s.last_round, 4);
    assert_int_equal(syncrig.s.f[0].version, 5);
}

static void test_full_queue_sends_the_chunk_again(void **state)
{
    (void)state;
    syncrig_start(false, 1, 0);
    syncrig_train(0, 0, BYTES);
    syncrig_expect(SYNC_SEND_OFFER);
    syncrig_credit(0, 0, 0, BYTES);
    struct sync_action a = syncrig_expect(SYNC_SEND_CHUNK);
    sync_blocked(&syncrig.s, &a, syncrig.now);
    syncrig_drain_all();
    assert_int_equal(syncrig.s.f[0].sent, 0);
    syncrig.now += 10000;
    a = syncrig_expect(SYNC_SEND_CHUNK);
    assert_int_equal(a.offset, 0);
}

static void test_lost_offer_is_repeated(void **state)
{
    (void)state;
    syncrig_start(false, 1, 0);
    syncrig_train(0, 0, 1000);
    syncrig_expect(SYNC_SEND_OFFER);
    syncrig_drain_all();
    syncrig.now += SYNC_RETRY_MIN_US - 1;
    syncrig_expect_none();
    syncrig.now += 1;
    syncrig_expect(SYNC_SEND_OFFER);
    syncrig_expect(SYNC_SEND_BIND); /* perhaps that was lost */
}

static void test_lost_chunks_are_sent_again_but_not_slow_ones(void **state)
{
    (void)state;
    int n[8];
    syncrig_start(false, 1, 0);
    syncrig_train(0, 0, BYTES);
    syncrig_credit(0, 0, 0, BYTES);
    syncrig_drain(n);
    assert_int_equal(n[SYNC_SEND_CHUNK], BYTES / SYNC_CHUNK);
    /* Slow: each credit brings a little more, nothing is sent twice although it takes minutes. */
    for (uint64_t have = 1; have < 100; have++) {
        syncrig.now += SYNC_RETRY_MIN_US - 1;
        syncrig_credit(0, 0, have * 10, BYTES);
        syncrig_drain(n);
        assert_int_equal(n[SYNC_SEND_CHUNK], 0);
    }
    /* Silence: offer again; the answer says that nothing arrived since: go back to it. */
    int offers = 0;
    for (int i = 0; i < 40 && !offers; i++) {
        syncrig.now += S;
        syncrig_drain(n);
        offers += n[SYNC_SEND_OFFER];
        assert_int_equal(n[SYNC_SEND_CHUNK], 0);
    }
    assert_int_equal(offers, 1);
    syncrig_credit(0, 0, 99 * 10, BYTES);
    struct sync_action a = syncrig_expect(SYNC_SEND_CHUNK);
    assert_int_equal(a.offset, 990);
    /* Silence again, but the answer brings more: it was only slow, nothing goes twice. */
    syncrig_drain_all();
    for (offers = 0; !offers; offers = n[SYNC_SEND_OFFER]) {
        syncrig.now += S;
        syncrig_drain(n);
    }
    syncrig_credit(0, 0, 2000, BYTES);
    syncrig_drain(n);
    assert_int_equal(n[SYNC_SEND_CHUNK], 0);
}

static void test_credit_of_other_rounds_changes_nothing(void **state)
{
    (void)state;
    syncrig_start(false, 1, 3);
    syncrig_train(3, 3, BYTES);
    syncrig_drain_all();
    syncrig_credit(2, 0, BYTES, BYTES);
    syncrig_credit(4, 0, BYTES, BYTES);
    syncrig_credit(3, 1, BYTES, BYTES);
    assert_int_equal(syncrig.s.state, WORKER_SENDING);
    assert_false(syncrig_reject(2, 0));
    assert_false(syncrig_reject(3, 7));
    syncrig_credit(3, 0, BYTES, BYTES);
    assert_int_equal(syncrig.s.state, WORKER_WAITING);
    syncrig_credit(3, 0, 5, BYTES); /* the coordinator restarted and lost it: send again */
    assert_int_equal(syncrig.s.state, WORKER_SENDING);
    assert_int_equal(syncrig_expect(SYNC_SEND_CHUNK).offset, 5);
}

static void test_assignment_that_overtakes_the_update(void **state)
{
    (void)state;
    syncrig_start(false, 1, 0);
    syncrig_train(0, 0, 10);
    syncrig_credit(0, 0, 10, 10);
    syncrig_give(1, 1);
    assert_false(sync_wants_training(&syncrig.s));
    assert_int_equal(syncrig.s.state, WORKER_WAITING);
    assert_int_equal(syncrig_update(0, 0, 0), SYNC_NAMED);
    assert_true(sync_wants_training(&syncrig.s));
    assert_int_equal(syncrig.s.task.round, 1);
}

static void test_stale_assignments(void **state)
{
    (void)state;
    syncrig_start(false, 1, 0);
    syncrig_train(0, 0, 10);
    syncrig_credit(0, 0, 10, 10);
    syncrig_update(0, 0, 0);
    struct msg_assign old = syncrig_assign(0, 0), next = syncrig_assign(1, 1), ahead = syncrig_assign(2, 3);
    assert_false(sync_on_assign(&syncrig.s, &old, syncrig.now)); /* a duplicate of a round that is over */
    assert_true(sync_on_assign(&syncrig.s, &next, syncrig.now));
    assert_false(sync_on_assign(&syncrig.s, &next, syncrig.now)); /* said again while it is in hand */
    sync_train_begin(&syncrig.s, syncrig.now);
    assert_false(sync_on_assign(&syncrig.s, &next, syncrig.now));
    assert_false(sync_on_assign(&syncrig.s, &ahead, syncrig.now)); /* not while training */
    sync_train_abandon(&syncrig.s, syncrig.now);
    assert_true(sync_on_assign(&syncrig.s, &ahead, syncrig.now));
    assert_int_equal(syncrig.s.state, WORKER_CATCHING_UP);
    assert_false(sync_wants_training(&syncrig.s)); /* versions 1, wanted 3 */
    syncrig_update(0, 1, SYNC_NO_ROUND);
    assert_false(sync_wants_training(&syncrig.s));
    syncrig_update(0, 2, SYNC_NO_ROUND);
    assert_true(sync_wants_training(&syncrig.s));
    next = syncrig_assign(3, 2);
    assert_false(sync_on_assign(&syncrig.s, &next, syncrig.now)); /* versions of the past */
}

/* With a barrier, for what was refused of it to an earlier life; without one the next round has another number. */
static void test_round_begins_again(void **state)
{
    (void)state;
    for (int async = 0; async < 2; async++) {
        syncrig_start(async, 1, 0);
        syncrig_train(0, 0, 10);
        syncrig_credit(0, 0, 10, 10);
        syncrig_update(0, 0, 0);
        struct msg_assign before = syncrig_assign(0, 0), again = syncrig_assign(0, 1);
        assert_false(sync_on_assign(&syncrig.s, &before, syncrig.now));
        assert_int_equal(sync_on_assign(&syncrig.s, &again, syncrig.now), !async);
    }
}

static void test_rejection_ends_the_round(void **state)
{
    (void)state;
    syncrig_start(false, 2, 0);
    syncrig_train(0, 0, 10);
    syncrig_credit(0, 0, 10, 10);
    assert_true(syncrig_reject(0, 1));
    assert_false(syncrig_reject(0, 1));
    assert_int_equal(syncrig.s.state, WORKER_WAITING);
    assert_int_equal(syncrig_update(0, 0, 0), SYNC_NAMED);
    assert_int_equal(syncrig_update(1, 0, SYNC_NO_ROUND), SYNC_NOT_MINE);
    assert_int_equal(syncrig.s.state, WORKER_READY);
    assert_true(syncrig.s.last_again);
    struct msg_assign again = syncrig_assign(0, 1);
    assert_true(sync_on_assign(&syncrig.s, &again, syncrig.now)); /* a refused round may be given again */
}

static void test_closed_without_us_asks_for_the_verdict(void **state)
{
    (void)state;
    int n[8];
    uint32_t lost;
    syncrig_start(false, 1, 0);
    syncrig_train(0, 0, 10);
    syncrig_credit(0, 0, 10, 10);
    syncrig_drain(n);
    assert_int_equal(syncrig_update(0, 0, SYNC_NO_ROUND), SYNC_NOT_MINE);
    assert_int_equal(syncrig.s.state, WORKER_SENDING);
    syncrig_drain(n);
    assert_int_equal(n[SYNC_SEND_OFFER], 1);
    assert_false(sync_take_lost(&syncrig.s, &lost));
    syncrig_credit(0, 0, 10, 10); /* "merged long ago": but it was not */
    assert_true(sync_take_lost(&syncrig.s, &lost));
    assert_int_equal(lost, 0);
    assert_false(sync_take_lost(&syncrig.s, &lost));
    assert_int_equal(syncrig.s.state, WORKER_READY);
}

static void test_named_in_a_life_that_was_not_saved(void **state)
{
    (void)state;
    uint64_t bytes = 10;
    syncrig_start(false, 1, 5);
    sync_work_ready(&syncrig.s, 5, &bytes, syncrig.now); /* restored: round 5 pending, rounds 6 and 7 forgotten */
    syncrig_credit(5, 0, 10, 10);
    assert_int_equal(syncrig_update(0, 5, 5), SYNC_NAMED);
    assert_int_equal(syncrig_update(0, 6, 6), SYNC_NAMED_LATER);
    assert_int_equal(syncrig_update(0, 7, 7), SYNC_NAMED_LATER);
}

/* ---- sessions -----------------------------------------------------------------------------------------------------
 */

static void test_new_session_keeps_the_work(void **state)
{
    (void)state;
    int n[8];
    syncrig_start(false, 2, 0);
    syncrig_train(0, 0, BYTES);
    syncrig_credit(0, 0, BYTES, BYTES);
    syncrig_credit(0, 1, 0, BYTES);
    syncrig_drain(n);
    syncrig_refuse(REFUSE_UNKNOWN_SESSION); /* too soon after WELCOME: of the session before */
    assert_int_equal(syncrig.s.phase, SYNC_JOINED);
    syncrig.now += 2 * S;
    syncrig_refuse(REFUSE_UNKNOWN_SESSION);
    assert_int_equal(syncrig.s.phase, SYNC_HELLO);
    assert_int_equal(syncrig.s.state, WORKER_SENDING);
    syncrig_join_again(8, true, 0, 0);
    syncrig_expect(SYNC_SEND_BIND);
    assert_int_equal(syncrig_expect(SYNC_SEND_OFFER).fragment,
                     0); /* also what was delivered: the journal may have lost it */
    assert_int_equal(syncrig_expect(SYNC_SEND_OFFER).fragment, 1);
    syncrig_credit(0, 1, 12345, BYTES);
    syncrig_drain(n);
    assert_int_equal(syncrig.s.f[1].sent, BYTES);
    assert_true(n[SYNC_SEND_CHUNK] > 0);
}

static void test_new_session_while_training(void **state)
{
    (void)state;
    syncrig_start(false, 1, 0);
    syncrig_give(0, 0);
    sync_train_begin(&syncrig.s, syncrig.now);
    syncrig.now += 5 * S;
    syncrig_refuse(REFUSE_UNKNOWN_SESSION);
    syncrig_join_again(8, true, 0, 0);
    assert_int_equal(syncrig.s.state, WORKER_TRAINING);
    assert_int_equal(syncrig.s.round, 0);
}

static void test_no_resume_drops_everything(void **state)
{
    (void)state;
    syncrig_start(false, 1, 3);
    syncrig_train(3, 3, BYTES);
    syncrig.now += 5 * S;
    syncrig_refuse(REFUSE_GONE);
    syncrig_join_again(8, false, 90, 85);
    assert_int_equal(syncrig.s.state, WORKER_CATCHING_UP);
    assert_int_equal(syncrig.s.round, SYNC_NO_ROUND);
    assert_false(syncrig.s.holds);
    syncrig_expect(SYNC_SEND_BIND);
    assert_int_equal(syncrig_expect(SYNC_SEND_GET).version, 85);
    syncrig_expect_none();
}

static void test_repeated_welcome(void **state)
{
    (void)state;
    syncrig_start(false, 1, 3);
    struct msg_welcome same = syncrig_welcome(7, true, 3, 0), other = syncrig_welcome(8, true, 3, 0);
    same.worker_id = 11;
    assert_false(sync_on_welcome(&syncrig.s, &same, syncrig.now));
    assert_int_equal(syncrig.s.worker_id, 11);
    assert_true(sync_on_welcome(&syncrig.s, &other, syncrig.now)); /* a repeated JOIN made it: it replaced ours */
    assert_int_equal(syncrig.s.session, 8);
    syncrig_give(3, 3);
    sync_train_begin(&syncrig.s, syncrig.now);
    other = syncrig_welcome(9, false, 3, 2); /* that JOIN was sent before anything was held */
    assert_true(sync_on_welcome(&syncrig.s, &other, syncrig.now));
    assert_int_equal(syncrig.s.session, 9);
    assert_int_equal(syncrig.s.state, WORKER_TRAINING);
    other = syncrig_welcome(10, false, 5, 4); /* but here the log before version 4 is gone */
    assert_true(sync_on_welcome(&syncrig.s, &other, syncrig.now));
    assert_int_equal(syncrig.s.state, WORKER_CATCHING_UP);
    assert_false(syncrig.s.holds);
}

/* A worker that restarts does not know whether its last round counted; the session that it begins does. */
static void test_last_round_may_be_given_by_a_new_session(void **state)
{
    (void)state;
    for (int async = 0; async < 2; async++) {
        syncrig_start(async, 1, 4);
        syncrig.s.last_round = 4; /* as restored */
        struct msg_assign older = syncrig_assign(3, 4), m = syncrig_assign(4, 4);
        assert_false(sync_on_assign(&syncrig.s, &older, syncrig.now));
        assert_true(sync_on_assign(&syncrig.s, &m, syncrig.now));
        sync_train_begin(&syncrig.s, syncrig.now);
        sync_work_ready(&syncrig.s, 4, (uint64_t[]){1000}, syncrig.now);
        syncrig_update(0, 4, 4);
        assert_int_equal(syncrig.s.last_round, 4);
        assert_false(sync_on_assign(&syncrig.s, &m, syncrig.now)); /* merged, and said again */
        sync_rejoin(&syncrig.s, syncrig.now += 2 * S);
        syncrig_join_again(9, true, 5, 0);
        if (!async) assert_false(sync_on_assign(&syncrig.s, &m, syncrig.now)); /* its versions have gone by */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_handshake_retries_until_answered),
        cmocka_unit_test(test_two_workers_do_not_retry_together),
        cmocka_unit_test(test_fresh_worker_loads_snapshot_then_replays),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_taken_name),
        cmocka_unit_test(test_bad_welcome_stops),
        cmocka_unit_test(test_round_from_assignment_to_update),
        cmocka_unit_test(test_full_queue_sends_the_chunk_again),
        cmocka_unit_test(test_lost_offer_is_repeated),
        cmocka_unit_test(test_lost_chunks_are_sent_again_but_not_slow_ones),
        cmocka_unit_test(test_credit_of_other_rounds_changes_nothing),
        cmocka_unit_test(test_assignment_that_overtakes_the_update),
        cmocka_unit_test(test_stale_assignments),
        cmocka_unit_test(test_round_begins_again),
        cmocka_unit_test(test_rejection_ends_the_round),
        cmocka_unit_test(test_last_round_may_be_given_by_a_new_session),
        cmocka_unit_test(test_closed_without_us_asks_for_the_verdict),
        cmocka_unit_test(test_named_in_a_life_that_was_not_saved),
        cmocka_unit_test(test_new_session_keeps_the_work),
        cmocka_unit_test(test_new_session_while_training),
        cmocka_unit_test(test_no_resume_drops_everything),
        cmocka_unit_test(test_repeated_welcome),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
