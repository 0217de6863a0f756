/* The worker's protocol machine: every transition, with lost, duplicated, late and reordered messages.
 * Transfers, evaluation and the end of a run are in test_sync_flow.c. */

#include "tests/lib/rigs/sync_rig.h"
#include "tests/lib/test.h"

enum { S = 1000000, BYTES = 1 << 20 };

/* ---- joining ------------------------------------------------------------------------------------------------------
 */

TEST(test_handshake_retries_until_answered)
{
    uint64_t last = 0, gap = 0;
    sync_rig.now = 5 * S;
    sync_init(&sync_rig.s, 1, sync_rig.now);
    for (int i = 0; i < 12; i++) {
        sync_rig_sleep_until_due();
        sync_rig_expect(SYNC_SEND_HELLO);
        sync_rig_expect_none();
        if (i > 1) assert_true(sync_rig.now - last >= gap * 7 / 10); /* grows, up to jitter */
        gap = sync_rig.now - last;
        last = sync_rig.now;
    }
    assert_in_range(gap, 8 * S, 12 * S);
    assert_true(sync_on_config(&sync_rig.s, sync_rig.now));
    assert_false(sync_on_config(&sync_rig.s, sync_rig.now));
    sync_rig_expect_none(); /* the owner prepares the join */
    sync_configured(&sync_rig.s, false, 2, NULL, sync_rig.now);
    sync_rig_expect(SYNC_SEND_JOIN);
    sync_rig_expect_none();
    sync_rig_sleep_until_due();
    sync_rig_expect(SYNC_SEND_JOIN);
    assert_false(sync_on_config(&sync_rig.s, sync_rig.now)); /* a late duplicate */
    struct msg_welcome w = sync_rig_welcome(9, false, 0, 0);
    assert_true(sync_on_welcome(&sync_rig.s, &w, sync_rig.now));
    assert_int_equal(sync_rig.s.phase, SYNC_JOINED);
    sync_rig_expect(SYNC_SEND_BIND);
}

TEST(test_retries_of_workers_are_spread)
{
    uint64_t due[2];
    for (int i = 0; i < 2; i++) {
        sync_init(&sync_rig.s, 1000u + 77u * (unsigned)i, S);
        sync_rig.now = S;
        sync_rig_expect(SYNC_SEND_HELLO);
        due[i] = sync_deadline_us(&sync_rig.s);
    }
    assert_int_not_equal(due[0], due[1]);
}

TEST(test_fresh_worker_loads_snapshot_then_replays)
{
    sync_rig.now = S;
    sync_init(&sync_rig.s, 1, sync_rig.now);
    sync_rig_drain_all();
    sync_on_config(&sync_rig.s, sync_rig.now);
    sync_configured(&sync_rig.s, false, 2, NULL, sync_rig.now);
    sync_rig_drain_all();
    struct msg_welcome w = sync_rig_welcome(9, false, 12, 10);
    sync_on_welcome(&sync_rig.s, &w, sync_rig.now);
    assert_int_equal(sync_rig.s.state, WORKER_CATCHING_UP);
    sync_rig_expect(SYNC_SEND_BIND);
    for (uint32_t i = 0; i < 2; i++) {
        struct sync_action a = sync_rig_expect(SYNC_SEND_GET);
        assert_int_equal(a.kind, OBJECT_SNAPSHOT);
        assert_int_equal(a.version, 10);
        assert_int_equal(a.offset, 0);
    }
    assert_true(sync_expects(&sync_rig.s, OBJECT_SNAPSHOT, 0, 10));
    assert_false(sync_expects(&sync_rig.s, OBJECT_UPDATE, 0, 11));
    sync_on_progress(&sync_rig.s, 0, 500, 500, sync_rig.now);
    uint32_t f;
    assert_true(sync_apply(&sync_rig.s, &f));
    sync_loaded(&sync_rig.s, 0, 10, sync_rig.now);
    sync_rig_expect_none(); /* no replay before the whole snapshot is loaded */
    sync_loaded(&sync_rig.s, 1, 10, sync_rig.now);
    assert_true(sync_rig.s.holds);
    assert_int_equal(sync_rig.s.state, WORKER_CATCHING_UP);
    for (uint64_t v = 11; v <= 12; v++)
        for (uint32_t i = 0; i < 2; i++) assert_int_equal(sync_rig_update(i, v - 1, SYNC_NO_ROUND), SYNC_NOT_MINE);
    assert_int_equal(sync_rig.s.state, WORKER_READY);
}

TEST(test_refusal_retries_or_stops)
{
    sync_rig.now = S;
    sync_init(&sync_rig.s, 1, sync_rig.now);
    sync_rig_drain_all();
    sync_rig_refuse(REFUSE_FULL);
    assert_int_equal(sync_rig.s.phase, SYNC_HELLO);
    assert_true(sync_deadline_us(&sync_rig.s) >= sync_rig.now + 5 * S);
    char text[WIRE_TEXT_MAX];
    sync_waits_for(&sync_rig.s, text, sizeof text);
    assert_non_null(strstr(text, "because"));
    sync_rig_refuse(REFUSE_UNKNOWN_SESSION); /* from an earlier session: no effect */
    assert_int_equal(sync_rig.s.phase, SYNC_HELLO);
    sync_rig_refuse(REFUSE_LAYOUT);
    assert_int_equal(sync_rig.s.phase, SYNC_STOPPED);
    assert_int_equal(sync_rig.s.refused, REFUSE_LAYOUT);
    sync_rig.now += 100 * S;
    sync_rig_expect_none();
}

/* The operator revokes the worker's key: it stops at once, in every phase. */
TEST(test_revoked_key_stops_a_joined_worker)
{
    sync_rig_start(false, 2, 4);
    assert_int_equal(sync_rig.s.phase, SYNC_JOINED);
    sync_rig_refuse(REFUSE_KEY);
    assert_int_equal(sync_rig.s.phase, SYNC_STOPPED);
    assert_int_equal(sync_rig.s.refused, REFUSE_KEY);
    assert_non_null(strstr(sync_rig.s.text, "because"));
    sync_rig.now += 100 * S;
    sync_rig_expect_none();
}

/* A taken name may be the worker's own after a restart of its machine: it retries at growing intervals, up to a
 * limit. */
TEST(test_taken_name_is_retried_up_to_limit)
{
    sync_rig.now = S;
    sync_init(&sync_rig.s, 1, sync_rig.now);
    int asked = 0;
    uint64_t began = 0, gap = 0, last = 0;
    while (sync_rig.s.phase != SYNC_STOPPED && asked < 100) {
        sync_rig_expect(SYNC_SEND_HELLO);
        if (last) assert_true(sync_rig.now - last >= 5 * S && sync_rig.now - last >= gap);
        if (last) gap = sync_rig.now - last;
        last = sync_rig.now;
        if (!asked++) began = sync_rig.now;
        sync_rig_refuse(REFUSE_NAME);
        if (sync_rig.s.phase != SYNC_STOPPED) sync_rig.now = sync_deadline_us(&sync_rig.s);
    }
    assert_int_equal(sync_rig.s.phase, SYNC_STOPPED);
    assert_int_equal(sync_rig.s.refused, REFUSE_NAME);
    assert_in_range(sync_rig.now - began, SYNC_NAME_US, SYNC_NAME_US + 15 * S);
    assert_in_range(asked, 7, 12);
    assert_non_null(strstr(sync_rig.s.text, "because"));
}

TEST(test_bad_welcome_stops)
{
    sync_rig_start(false, 2, 4);
    sync_rejoin(&sync_rig.s, sync_rig.now);
    sync_rig_expect_none(); /* not within one second of joining, so that the two sides cannot loop */
    sync_rig.now += S;
    sync_rig_drain_all();
    sync_on_config(&sync_rig.s, sync_rig.now);
    sync_configured(&sync_rig.s, false, 2, NULL, sync_rig.now);
    struct msg_welcome w = sync_rig_welcome(8, true, 4, 0);
    w.n_fragments = 3;
    assert_false(sync_on_welcome(&sync_rig.s, &w, sync_rig.now));
    assert_int_equal(sync_rig.s.phase, SYNC_STOPPED);
    assert_true(sync_rig.s.refused);
}

/* ---- a round ------------------------------------------------------------------------------------------------------
 */

TEST(test_round_from_assignment_to_update)
{
    int n[9];
    sync_rig_start(false, 2, 4);
    sync_rig_train(4, 4, BYTES);
    assert_int_equal(sync_rig_expect(SYNC_SEND_OFFER).fragment, 0);
    assert_int_equal(sync_rig_expect(SYNC_SEND_OFFER).fragment, 1);
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_CHUNK], 0); /* no chunk without credit */
    sync_rig_credit(4, 0, 0, 3 * SYNC_CHUNK / 2);
    struct sync_action a = sync_rig_expect(SYNC_SEND_CHUNK);
    assert_int_equal(a.offset, 0);
    assert_int_equal(a.length, SYNC_CHUNK);
    a = sync_rig_expect(SYNC_SEND_CHUNK);
    assert_int_equal(a.offset, SYNC_CHUNK);
    assert_int_equal(a.length, SYNC_CHUNK / 2); /* not past the credit */
    sync_rig_expect_none();
    sync_rig_credit(4, 0, SYNC_CHUNK, BYTES);
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_CHUNK], 3);
    sync_rig_credit(4, 0, BYTES, BYTES);
    assert_int_equal(sync_rig.s.state, WORKER_SENDING);
    sync_rig_credit(4, 1, BYTES, BYTES);
    assert_int_equal(sync_rig.s.state, WORKER_WAITING);
    assert_int_equal(sync_rig_update(0, 4, 4), SYNC_NAMED);
    assert_int_equal(sync_rig.s.state, WORKER_WAITING);
    assert_int_equal(sync_rig_update(1, 4, 4), SYNC_NAMED);
    assert_int_equal(sync_rig.s.state, WORKER_READY);
    assert_int_equal(sync_rig.s.last_round, 4);
    assert_int_equal(sync_rig.s.f[0].version, 5);
}

TEST(test_full_queue_sends_the_chunk_again)
{
    sync_rig_start(false, 1, 0);
    sync_rig_train(0, 0, BYTES);
    sync_rig_expect(SYNC_SEND_OFFER);
    sync_rig_credit(0, 0, 0, BYTES);
    struct sync_action a = sync_rig_expect(SYNC_SEND_CHUNK);
    sync_blocked(&sync_rig.s, &a, sync_rig.now);
    sync_rig_drain_all();
    assert_int_equal(sync_rig.s.f[0].sent, 0);
    sync_rig.now += 10000;
    a = sync_rig_expect(SYNC_SEND_CHUNK);
    assert_int_equal(a.offset, 0);
}

TEST(test_lost_offer_is_repeated)
{
    sync_rig_start(false, 1, 0);
    sync_rig_train(0, 0, 1000);
    sync_rig_expect(SYNC_SEND_OFFER);
    sync_rig_drain_all();
    sync_rig.now += SYNC_RETRY_MIN_US - 1;
    sync_rig_expect_none();
    sync_rig.now += 1;
    sync_rig_expect(SYNC_SEND_OFFER);
    sync_rig_expect(SYNC_SEND_BIND); /* the BIND may be lost */
}

TEST(test_lost_chunks_are_sent_again_but_not_slow_ones)
{
    int n[9];
    sync_rig_start(false, 1, 0);
    sync_rig_train(0, 0, BYTES);
    sync_rig_credit(0, 0, 0, BYTES);
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_CHUNK], BYTES / SYNC_CHUNK);
    /* Slow: each credit acknowledges a few bytes, and no byte is sent twice in many minutes. */
    for (uint64_t have = 1; have < 100; have++) {
        sync_rig.now += SYNC_RETRY_MIN_US - 1;
        sync_rig_credit(0, 0, have * 10, BYTES);
        sync_rig_drain(n);
        assert_int_equal(n[SYNC_SEND_CHUNK], 0);
    }
    /* Silence: the worker offers again. The answer reports no new bytes, so the worker sends from there. */
    int offers = 0;
    for (int i = 0; i < 70 && !offers; i++) { /* at 5 bytes/s it takes an hour */
        sync_rig.now += 60 * S;
        sync_rig_drain(n);
        offers += n[SYNC_SEND_OFFER];
        assert_int_equal(n[SYNC_SEND_CHUNK], 0);
    }
    assert_int_equal(offers, 1);
    sync_rig_credit(0, 0, 99 * 10, BYTES);
    struct sync_action a = sync_rig_expect(SYNC_SEND_CHUNK);
    assert_int_equal(a.offset, 990);
    /* Silence again, but the answer reports new bytes: the line was slow, and no byte is sent twice. */
    sync_rig_drain_all();
    for (offers = 0; !offers; offers = n[SYNC_SEND_OFFER]) {
        sync_rig.now += 60 * S;
        sync_rig_drain(n);
    }
    sync_rig_credit(0, 0, 2000, BYTES);
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_CHUNK], 0);
}

TEST(test_credit_of_other_rounds_changes_nothing)
{
    sync_rig_start(false, 1, 3);
    sync_rig_train(3, 3, BYTES);
    sync_rig_drain_all();
    sync_rig_credit(2, 0, BYTES, BYTES);
    sync_rig_credit(4, 0, BYTES, BYTES);
    sync_rig_credit(3, 1, BYTES, BYTES);
    assert_int_equal(sync_rig.s.state, WORKER_SENDING);
    assert_false(sync_rig_reject(2, 0));
    assert_false(sync_rig_reject(3, 7));
    sync_rig_credit(3, 0, BYTES, BYTES);
    assert_int_equal(sync_rig.s.state, WORKER_WAITING);
    sync_rig_credit(3, 0, 5, BYTES); /* the coordinator restarted and lost it: send again */
    assert_int_equal(sync_rig.s.state, WORKER_SENDING);
    assert_int_equal(sync_rig_expect(SYNC_SEND_CHUNK).offset, 5);
}

TEST(test_assignment_may_overtake_update)
{
    sync_rig_start(false, 1, 0);
    sync_rig_train(0, 0, 10);
    sync_rig_credit(0, 0, 10, 10);
    sync_rig_give(1, 1);
    assert_false(sync_wants_training(&sync_rig.s));
    assert_int_equal(sync_rig.s.state, WORKER_WAITING);
    assert_int_equal(sync_rig_update(0, 0, 0), SYNC_NAMED);
    assert_true(sync_wants_training(&sync_rig.s));
    assert_int_equal(sync_rig.s.task.round, 1);
}

TEST(test_stale_assignments_are_ignored)
{
    sync_rig_start(false, 1, 0);
    sync_rig_train(0, 0, 10);
    sync_rig_credit(0, 0, 10, 10);
    sync_rig_update(0, 0, 0);
    struct msg_assign old = sync_rig_assign(0, 0), next = sync_rig_assign(1, 1), ahead = sync_rig_assign(2, 3);
    assert_false(sync_on_assign(&sync_rig.s, &old, sync_rig.now)); /* a duplicate of a past round */
    assert_true(sync_on_assign(&sync_rig.s, &next, sync_rig.now));
    assert_false(sync_on_assign(&sync_rig.s, &next, sync_rig.now)); /* repeated while the task is held */
    sync_train_begin(&sync_rig.s, sync_rig.now);
    assert_false(sync_on_assign(&sync_rig.s, &next, sync_rig.now));
    assert_false(sync_on_assign(&sync_rig.s, &ahead, sync_rig.now)); /* not while training */
    sync_train_abandon(&sync_rig.s, sync_rig.now);
    assert_true(sync_on_assign(&sync_rig.s, &ahead, sync_rig.now));
    assert_int_equal(sync_rig.s.state, WORKER_CATCHING_UP);
    assert_false(sync_wants_training(&sync_rig.s)); /* version 1, needs 3 */
    sync_rig_update(0, 1, SYNC_NO_ROUND);
    assert_false(sync_wants_training(&sync_rig.s));
    sync_rig_update(0, 2, SYNC_NO_ROUND);
    assert_true(sync_wants_training(&sync_rig.s));
    next = sync_rig_assign(3, 2);
    assert_false(sync_on_assign(&sync_rig.s, &next, sync_rig.now)); /* past versions */
}

/* A barrier assigns a round again if it refused the delta of an earlier session. Without a barrier the next round
 * has another number. */
TEST(test_only_barrier_assigns_round_again)
{
    for (int async = 0; async < 2; async++) {
        sync_rig_start(async, 1, 0);
        sync_rig_train(0, 0, 10);
        sync_rig_credit(0, 0, 10, 10);
        sync_rig_update(0, 0, 0);
        struct msg_assign before = sync_rig_assign(0, 0), again = sync_rig_assign(0, 1);
        assert_false(sync_on_assign(&sync_rig.s, &before, sync_rig.now));
        assert_int_equal(sync_on_assign(&sync_rig.s, &again, sync_rig.now), !async);
    }
}

TEST(test_rejection_ends_the_round)
{
    sync_rig_start(false, 2, 0);
    sync_rig_train(0, 0, 10);
    sync_rig_credit(0, 0, 10, 10);
    assert_true(sync_rig_reject(0, 1));
    assert_false(sync_rig_reject(0, 1));
    assert_int_equal(sync_rig.s.state, WORKER_WAITING);
    assert_int_equal(sync_rig_update(0, 0, 0), SYNC_NAMED);
    assert_int_equal(sync_rig_update(1, 0, SYNC_NO_ROUND), SYNC_NOT_MINE);
    assert_int_equal(sync_rig.s.state, WORKER_READY);
    assert_true(sync_rig.s.last_again);
    struct msg_assign again = sync_rig_assign(0, 1);
    assert_true(sync_on_assign(&sync_rig.s, &again, sync_rig.now)); /* a refused round may be assigned again */
}

TEST(test_unmerged_delta_is_offered_for_verdict)
{
    int n[9];
    uint32_t lost;
    sync_rig_start(false, 1, 0);
    sync_rig_train(0, 0, 10);
    sync_rig_credit(0, 0, 10, 10);
    sync_rig_drain(n);
    assert_int_equal(sync_rig_update(0, 0, SYNC_NO_ROUND), SYNC_NOT_MINE);
    assert_int_equal(sync_rig.s.state, WORKER_SENDING);
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_OFFER], 1);
    assert_false(sync_take_rollback(&sync_rig.s, &lost));
    sync_rig_credit(0, 0, 10, 10); /* the coordinator claims "merged", but no update named the delta */
    assert_true(sync_take_rollback(&sync_rig.s, &lost));
    assert_int_equal(lost, 0);
    assert_false(sync_take_rollback(&sync_rig.s, &lost));
    assert_int_equal(sync_rig.s.state, WORKER_READY);
}

TEST(test_update_of_lost_round_is_recognized)
{
    uint64_t bytes = 10;
    sync_rig_start(false, 1, 5);
    sync_work_ready(&sync_rig.s, 5, &bytes, sync_rig.now); /* restored: round 5 pending, rounds 6 and 7 lost */
    sync_rig_credit(5, 0, 10, 10);
    assert_int_equal(sync_rig_update(0, 5, 5), SYNC_NAMED);
    assert_int_equal(sync_rig_update(0, 6, 6), SYNC_NAMED_LATER);
    assert_int_equal(sync_rig_update(0, 7, 7), SYNC_NAMED_LATER);
}

/* ---- sessions -----------------------------------------------------------------------------------------------------
 */

TEST(test_new_session_keeps_work)
{
    int n[9];
    sync_rig_start(false, 2, 0);
    sync_rig_train(0, 0, BYTES);
    sync_rig_credit(0, 0, BYTES, BYTES);
    sync_rig_credit(0, 1, 0, BYTES);
    sync_rig_drain(n);
    sync_rig_refuse(REFUSE_UNKNOWN_SESSION); /* too soon after WELCOME: from the previous session */
    assert_int_equal(sync_rig.s.phase, SYNC_JOINED);
    sync_rig.now += 2 * S;
    sync_rig_refuse(REFUSE_UNKNOWN_SESSION);
    assert_int_equal(sync_rig.s.phase, SYNC_HELLO);
    assert_int_equal(sync_rig.s.state, WORKER_SENDING);
    sync_rig_join_again(8, true, 0, 0);
    sync_rig_expect(SYNC_SEND_BIND);
    assert_int_equal(sync_rig_expect(SYNC_SEND_OFFER).fragment,
                     0); /* delivered ones too: the journal may have lost them */
    assert_int_equal(sync_rig_expect(SYNC_SEND_OFFER).fragment, 1);
    sync_rig_credit(0, 1, 12345, BYTES);
    sync_rig_drain(n);
    assert_int_equal(sync_rig.s.f[1].sent, BYTES);
    assert_true(n[SYNC_SEND_CHUNK] > 0);
}

/* Over a long round trip the refusals of the previous session's messages come later, and answers do. */
TEST(test_long_round_trip_gets_its_time)
{
    sync_rig_start(false, 1, 0);
    sync_set_rtt(&sync_rig.s, 2 * S);
    sync_rig.now += 2 * S;
    sync_rig_refuse(REFUSE_UNKNOWN_SESSION);
    assert_int_equal(sync_rig.s.phase, SYNC_JOINED);
    sync_rig.now += 4 * S;
    sync_rig_refuse(REFUSE_UNKNOWN_SESSION);
    assert_int_equal(sync_rig.s.phase, SYNC_HELLO);
    sync_rig_expect(SYNC_SEND_HELLO);
    assert_true(sync_deadline_us(&sync_rig.s) >= sync_rig.now + 4 * S);
}

TEST(test_new_session_while_training)
{
    sync_rig_start(false, 1, 0);
    sync_rig_give(0, 0);
    sync_train_begin(&sync_rig.s, sync_rig.now);
    sync_rig.now += 5 * S;
    sync_rig_refuse(REFUSE_UNKNOWN_SESSION);
    sync_rig_join_again(8, true, 0, 0);
    assert_int_equal(sync_rig.s.state, WORKER_TRAINING);
    assert_int_equal(sync_rig.s.round, 0);
}

TEST(test_welcome_without_resume_drops_state)
{
    sync_rig_start(false, 1, 3);
    sync_rig_train(3, 3, BYTES);
    sync_rig.now += 5 * S;
    sync_rig_refuse(REFUSE_GONE);
    sync_rig_join_again(8, false, 90, 85);
    assert_int_equal(sync_rig.s.state, WORKER_CATCHING_UP);
    assert_int_equal(sync_rig.s.round, SYNC_NO_ROUND);
    assert_false(sync_rig.s.holds);
    sync_rig_expect(SYNC_SEND_BIND);
    assert_int_equal(sync_rig_expect(SYNC_SEND_GET).version, 85);
    sync_rig_expect_none();
}

/* A power cut took the coordinator's members: the delta that the worker holds has no id until ASSIGN brings one. */
TEST(test_new_session_forgets_id)
{
    sync_rig_start(false, 1, 3);
    sync_rig_train(3, 3, BYTES);
    assert_int_equal(sync_rig.s.worker_id, 3);
    struct msg_welcome lost = sync_rig_welcome(8, true, 3, 0);
    lost.worker_id = UINT32_MAX;
    assert_true(sync_on_welcome(&sync_rig.s, &lost, sync_rig.now));
    assert_true(sync_rig.s.worker_id == UINT32_MAX);
    struct msg_assign m = sync_rig_assign(4, 4);
    m.worker_id = 5;
    (void)sync_on_assign(&sync_rig.s, &m, sync_rig.now);
    assert_false(sync_on_welcome(&sync_rig.s, &lost, sync_rig.now)); /* repeated */
    assert_int_equal(sync_rig.s.worker_id, 5);
}

TEST(test_repeated_welcome_keeps_training)
{
    sync_rig_start(false, 1, 3);
    struct msg_welcome same = sync_rig_welcome(7, true, 3, 0), other = sync_rig_welcome(8, true, 3, 0);
    same.worker_id = 11;
    assert_false(sync_on_welcome(&sync_rig.s, &same, sync_rig.now));
    assert_int_equal(sync_rig.s.worker_id, 11);
    assert_true(sync_on_welcome(&sync_rig.s, &other, sync_rig.now)); /* from a repeated JOIN: replaces the session */
    assert_int_equal(sync_rig.s.session, 8);
    sync_rig_give(3, 3);
    sync_train_begin(&sync_rig.s, sync_rig.now);
    other = sync_rig_welcome(9, false, 3, 2); /* its JOIN was sent before the worker held a version */
    assert_true(sync_on_welcome(&sync_rig.s, &other, sync_rig.now));
    assert_int_equal(sync_rig.s.session, 9);
    assert_int_equal(sync_rig.s.state, WORKER_TRAINING);
    other = sync_rig_welcome(10, false, 5, 4); /* the log before version 4 is deleted */
    assert_true(sync_on_welcome(&sync_rig.s, &other, sync_rig.now));
    assert_int_equal(sync_rig.s.state, WORKER_CATCHING_UP);
    assert_false(sync_rig.s.holds);
}

/* A restarted worker does not know whether its last round was merged; its new session does. */
TEST(test_new_session_may_assign_last_round)
{
    for (int async = 0; async < 2; async++) {
        sync_rig_start(async, 1, 4);
        sync_rig.s.last_round = 4; /* as restored */
        struct msg_assign older = sync_rig_assign(3, 4), m = sync_rig_assign(4, 4);
        assert_false(sync_on_assign(&sync_rig.s, &older, sync_rig.now));
        assert_true(sync_on_assign(&sync_rig.s, &m, sync_rig.now));
        sync_train_begin(&sync_rig.s, sync_rig.now);
        sync_segment_done(&sync_rig.s);
        sync_work_ready(&sync_rig.s, 4, (uint64_t[]){1000}, sync_rig.now);
        sync_rig_update(0, 4, 4);
        assert_int_equal(sync_rig.s.last_round, 4);
        assert_false(sync_on_assign(&sync_rig.s, &m, sync_rig.now)); /* merged, and repeated */
        sync_rejoin(&sync_rig.s, sync_rig.now += 2 * S);
        sync_rig_join_again(9, true, 5, 0);
        if (!async) assert_false(sync_on_assign(&sync_rig.s, &m, sync_rig.now)); /* its versions are past */
    }
}

/* With overlap: a worker returns between two rounds, and the open round has an update of one fragment already. Its
 * delta of that round starts from the versions in ASSIGN, so it must not apply that update before. */
TEST(test_update_waits_for_its_assignment)
{
    uint32_t f;
    sync_rig_start(false, 2, 1);
    sync_rig.s.overlaps = true;
    sync_rejoin(&sync_rig.s, sync_rig.now += 2 * S);
    sync_rig_expect(SYNC_SEND_HELLO);
    assert_true(sync_on_config(&sync_rig.s, sync_rig.now));
    sync_configured(&sync_rig.s, false, 2, NULL, sync_rig.now);
    sync_rig_expect(SYNC_SEND_JOIN);
    struct msg_welcome w = sync_rig_welcome(9, true, 1, 0);
    w.assigned = 5;
    w.current[0].version = 2;
    sync_rig.s.overlaps = true;
    assert_true(sync_on_welcome(&sync_rig.s, &w, sync_rig.now));
    sync_rig_drain_all(); /* the GET */
    sync_on_progress(&sync_rig.s, 0, 1000, 1000, sync_rig.now);
    assert_false(sync_apply(&sync_rig.s, &f));
    assert_int_equal(sync_rig.s.state, WORKER_READY);
    sync_rig_give(4, 1);
    assert_true(sync_wants_training(&sync_rig.s));
    assert_false(sync_apply(&sync_rig.s, &f)); /* its delta is not made yet */
}

TEST_MAIN(NULL, NULL)
