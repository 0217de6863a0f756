/* The worker's protocol machine, continued: downloads, evaluation, the end, and the texts of waits. */

#include "tests/lib/rigs/sync_rig.h"
#include "tests/lib/test.h"

enum { S = 1000000, BYTES = 1 << 20 };

/* ---- downloads ----------------------------------------------------------------------------------------------------
 */

TEST(test_waiting_worker_requests_next_update)
{
    int n[9];
    sync_rig_start(false, 3, 6);
    assert_true(sync_expects(&sync_rig.s, OBJECT_UPDATE, 0, 7));
    assert_true(sync_expects(&sync_rig.s, OBJECT_UPDATE, 2, 7));
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_GET], 0);
    sync_rig.now += SYNC_RETRY_MIN_US;
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_GET], 3); /* silence: retry */
    sync_rig.now += SYNC_RETRY_MIN_US;
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_GET], 0); /* longer interval */
}

TEST(test_download_resumes_where_it_stopped)
{
    sync_rig_start(false, 1, 6);
    sync_on_progress(&sync_rig.s, 0, 300000, 10000000, sync_rig.now);
    sync_rig_drain_all();
    for (int i = 0; i < 100 && sync_rig.s.f[0].get_wait == 0; i++) {
        struct sync_action a;
        sync_rig.now += S;
        while (sync_rig_poll_one(&a))
            if (a.type == SYNC_SEND_GET) {
                assert_int_equal(a.offset, 300000);
                return;
            }
    }
    fail_msg("no second GET");
}

/* A new session keeps the loaded part of the same snapshot. */
TEST(test_new_session_continues_snapshot)
{
    for (int other = 0; other < 3; other++) {
        int n[9];
        sync_rig_start(false, 2, 6);
        sync_drop(&sync_rig.s, sync_rig.now);
        sync_rig_sleep_until_due();
        sync_rig_join_again(8, false, 9, 8);
        sync_rig_drain(n);
        assert_int_equal(n[SYNC_SEND_GET], 2);
        sync_on_progress(&sync_rig.s, 0, 1000, 1000, sync_rig.now);
        sync_loaded(&sync_rig.s, 0, 8, sync_rig.now);
        sync_on_progress(&sync_rig.s, 1, 300000, 10000000, sync_rig.now);
        sync_rejoin(&sync_rig.s, sync_rig.now += 2 * S);
        sync_rig_expect(SYNC_SEND_HELLO);
        assert_true(sync_on_config(&sync_rig.s, sync_rig.now));
        sync_configured(&sync_rig.s, false, 2, NULL, sync_rig.now);
        sync_rig_expect(SYNC_SEND_JOIN);
        struct msg_welcome w = sync_rig_welcome(9, false, 9, other == 1 ? 9 : 8);
        for (int i = 0; i < 2 && other == 2; i++) w.snapshot[i].hash = 77;
        assert_true(sync_on_welcome(&sync_rig.s, &w, sync_rig.now));
        assert_int_equal(sync_rig.s.f[0].loading, other != 0);
        assert_int_equal(sync_rig.s.f[1].have, other ? 0 : 300000);
        assert_false(sync_rig.s.holds);
        sync_rig_expect(SYNC_SEND_BIND);
        struct sync_action a = sync_rig_expect(SYNC_SEND_GET);
        assert_int_equal(a.fragment, other ? 0 : 1);
        assert_int_equal(a.kind, OBJECT_SNAPSHOT);
        assert_int_equal(a.version, other == 1 ? 9 : 8);
        assert_int_equal(a.offset, other ? 0 : 300000);
        if (other) continue;
        sync_rig_expect_none(); /* the loaded fragment waits for the other one */
        sync_on_progress(&sync_rig.s, 1, 10000000, 10000000, sync_rig.now);
        sync_loaded(&sync_rig.s, 1, 8, sync_rig.now);
        assert_true(sync_rig.s.holds);
        sync_rig_drain(n);
        assert_int_equal(n[SYNC_SEND_GET], 2);
    }
}

/* A request that crosses its object on the way brings a second copy: on a slow line this costs a round. */
TEST(test_object_in_transit_is_not_requested_again)
{
    int n[9];
    const uint64_t bytes = 800000;
    sync_rig_start(false, 2, 6);
    for (uint32_t i = 0; i < 2; i++) { /* one update each at 200 kB/s: the machine learns its size and the rate */
        for (uint64_t have = 100000; have <= bytes; have += 100000) {
            sync_rig.now += S / 2;
            sync_on_progress(&sync_rig.s, i, have, bytes, sync_rig.now);
        }
        sync_applied(&sync_rig.s, i, 0, SYNC_NO_ROUND, sync_rig.now);
        sync_rig_drain_all();
    }
    sync_rig_give(1, 7);
    sync_train_begin(&sync_rig.s, sync_rig.now);
    sync_segment_done(&sync_rig.s);
    sync_work_ready(&sync_rig.s, 1, (uint64_t[]){bytes, bytes}, sync_rig.now);
    sync_rig_drain_all();
    sync_rig.now += 60 * S; /* a long upload: every deadline has passed */
    sync_rig_drain_all();
    for (uint32_t i = 0; i < 2; i++) {
        struct msg_credit c = {.round = 1, .fragment = i, .have = bytes, .upto = bytes};
        sync_on_credit(&sync_rig.s, &c, sync_rig.now);
    }
    sync_rig.now += 7 * S; /* the first byte of 800000 may take as long as all: 4 s; silence is twice that */
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_GET], 0);
    sync_on_progress(&sync_rig.s, 0, 100000, bytes, sync_rig.now); /* fragment 1 waits behind fragment 0 */
    sync_rig.now += 5 * S;
    sync_on_progress(&sync_rig.s, 0, bytes, bytes, sync_rig.now);
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_GET], 0);
    sync_rig.now += SYNC_RETRY_MAX_US; /* lost */
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_GET], 1);
}

/* Chunks that queued during training are read at once: they give no rate. */
TEST(test_rate_ignores_queued_chunks)
{
    sync_rig_start(true, 1, 6);
    sync_rig_give(6, 6);
    sync_train_begin(&sync_rig.s, sync_rig.now);
    for (uint64_t have = 0; have < 4 * BYTES;) {
        sync_rig.now += 8 * S;
        for (int i = 0; i < 4; i++) { /* 1 MB each time: 1 Mbit/s */
            have += BYTES / 4;
            sync_on_chunk(&sync_rig.s, BYTES / 4, false, sync_rig.now += 50);
            sync_on_progress(&sync_rig.s, 0, have, 5 * BYTES, sync_rig.now);
        }
        sync_rig_drain_all();
        assert_in_range(sync_rig.s.down.per_s, 100000, 140000);
    }
}

/* Duplicate chunks: the line is busy, no chunk is lost. */
TEST(test_duplicate_chunks_prevent_retry)
{
    int n[9];
    sync_rig_start(false, 1, 6);
    sync_on_chunk(&sync_rig.s, BYTES, false, sync_rig.now);
    sync_on_progress(&sync_rig.s, 0, BYTES, 10 * BYTES, sync_rig.now);
    sync_rig_drain_all();
    for (int i = 0; i < 100; i++) {
        sync_rig.now += 2 * S;
        sync_on_chunk(&sync_rig.s, BYTES / 4, true, sync_rig.now);
        sync_rig_drain(n);
        assert_int_equal(n[SYNC_SEND_GET], 0);
    }
    sync_rig.now += SYNC_RETRY_MAX_US;
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_GET], 1);
}

TEST(test_downloads_respect_window)
{
    sync_rig_start(false, LAYOUT_FRAGMENTS_MAX, 1);
    for (int i = 0; i < 50; i++) {
        uint64_t asked = 0;
        int open = 0;
        sync_rig_drain_all();
        for (uint32_t f = 0; f < sync_rig.s.n_fragments; f++)
            if (sync_rig.s.f[f].requested > sync_rig.s.f[f].have) {
                asked += sync_rig.s.f[f].requested - sync_rig.s.f[f].have;
                open++;
            }
        assert_in_range(open, 1, SYNC_GETS_MAX);
        assert_true(asked <= 2 * SYNC_WINDOW_LEAST); /* of objects that arrive, and of first requests */
        for (uint32_t f = 0; f < sync_rig.s.n_fragments; f++)
            if (sync_rig.s.f[f].requested > sync_rig.s.f[f].have) {
                uint64_t have = sync_rig.s.f[f].requested > 3000000 ? 3000000 : sync_rig.s.f[f].requested;
                sync_on_progress(&sync_rig.s, f, have, 3000000, sync_rig.now);
                if (have == 3000000) sync_applied(&sync_rig.s, f, 1, SYNC_NO_ROUND, sync_rig.now);
                break;
            }
        sync_rig.now += 1000;
    }
}

TEST(test_next_window_is_requested_early)
{
    struct sync_action a;
    uint64_t total = 10u << 20, asked = SYNC_WINDOW_LEAST;
    sync_rig_start(false, 1, 6);
    assert_int_equal(sync_rig.s.f[0].requested, SYNC_WINDOW_LEAST);
    sync_on_progress(&sync_rig.s, 0, SYNC_WINDOW_LEAST / 2 - 1, total, sync_rig.now);
    sync_rig_expect_none();
    for (uint64_t have = SYNC_WINDOW_LEAST / 2; have < total; have += SYNC_WINDOW_LEAST / 2) {
        sync_on_progress(&sync_rig.s, 0, have, total, sync_rig.now);
        if (asked == total) break;
        a = sync_rig_expect(SYNC_SEND_GET);
        assert_int_equal(a.offset, asked); /* each byte once */
        asked += a.length;
        sync_rig_expect_none();
        assert_true(asked - have <= SYNC_WINDOW_LEAST);
    }
    assert_int_equal(asked, total);
}

/* Bytes in place are neither requested nor expected, for any window boundaries. */
TEST(test_own_bytes_are_skipped)
{
    const uint64_t total = 12u << 20, from = 3u << 20, to = 9u << 20;
    sync_rig_start(false, 1, 6);
    sync_on_progress(&sync_rig.s, 0, 1000, total, sync_rig.now);
    sync_on_local_bytes(&sync_rig.s, 0, 0,
                        100); /* invalid: an object begins with its head and ends with its checksum */
    sync_on_local_bytes(&sync_rig.s, 0, from, total);
    assert_int_equal(sync_rig.s.f[0].own_to, 0);
    sync_on_local_bytes(&sync_rig.s, 0, from, to);
    assert_int_equal(sync_rig.s.f[0].have, 1000);
    uint64_t asked = SYNC_WINDOW_LEAST, lacked = from; /* the first window ends inside them */
    for (uint64_t have = 1u << 20; have < total; have += 1u << 20) {
        struct sync_action a;
        if (have > from && have <= to) continue;
        sync_on_progress(&sync_rig.s, 0, have, total, sync_rig.now);
        assert_int_equal(sync_rig.s.f[0].have, have == from ? to : have);
        while (sync_rig_poll_one(&a)) {
            if (a.type != SYNC_SEND_GET) continue;
            assert_int_equal(a.offset, asked > from && asked < to ? to : asked);
            asked = a.offset + a.length;
            lacked += a.length;
        }
    }
    assert_int_equal(asked, total);
    assert_int_equal(lacked, total - (to - from));
    sync_on_progress(&sync_rig.s, 0, total, total, sync_rig.now);
    assert_true(sync_rig.s.f[0].complete);
    sync_applied(&sync_rig.s, 0, 0, SYNC_NO_ROUND, sync_rig.now);
    assert_int_equal(sync_rig.s.f[0].own_to, 0);
}

/* A window across them is longer by their length; damage resets them. */
TEST(test_own_bytes_extend_window)
{
    const uint64_t total = 40u << 20, from = 5u << 20, to = 30u << 20;
    sync_rig_start(false, 1, 6);
    sync_on_progress(&sync_rig.s, 0, 1000, total, sync_rig.now);
    sync_on_local_bytes(&sync_rig.s, 0, from, to);
    sync_on_progress(&sync_rig.s, 0, SYNC_WINDOW_LEAST / 2, total, sync_rig.now);
    struct sync_action a = sync_rig_expect(SYNC_SEND_GET);
    assert_int_equal(a.offset, SYNC_WINDOW_LEAST);
    assert_int_equal(a.length, SYNC_WINDOW_LEAST / 2 + (to - from));
    sync_on_damaged(&sync_rig.s, 0, sync_rig.now);
    assert_int_equal(sync_rig.s.f[0].own_to, 0);
}

TEST(test_barrier_freezes_theta_while_training_async_does_not)
{
    uint32_t f;
    for (int async = 0; async < 2; async++) {
        sync_rig_start(async, 1, 2);
        sync_rig_give(2, 2);
        sync_on_progress(&sync_rig.s, 0, 1000, 1000, sync_rig.now);
        assert_int_equal(sync_apply(&sync_rig.s, &f), async); /* barrier: the task needs exactly version 2 */
        sync_train_begin(&sync_rig.s, sync_rig.now);
        assert_int_equal(sync_apply(&sync_rig.s, &f), async);
        sync_train_abandon(&sync_rig.s, sync_rig.now);
        assert_true(sync_apply(&sync_rig.s, &f));
    }
}

/* ---- a save beside the upload -------------------------------------------------------------------------------------
 */

/* Returns the next message of the upload. */
static bool next_up(struct sync_action *a)
{
    while (sync_rig_poll_one(a))
        if (a->type == SYNC_SEND_OFFER || a->type == SYNC_SEND_CHUNK) return true;
    return false;
}

static struct sync_action expect_up(enum sync_action_type type, uint32_t fragment)
{
    struct sync_action a;
    assert_true(next_up(&a));
    assert_int_equal(a.type, type);
    assert_int_equal(a.fragment, fragment);
    return a;
}

/* All but the last byte of each delta is sent, and repeated after a loss; then the worker waits for the save. */
TEST(test_last_byte_waits_for_saved_state)
{
    struct sync_action a;
    uint64_t sent[2] = {0};
    int n[9];
    char text[WIRE_TEXT_MAX];
    sync_rig_start(false, 2, 4);
    sync_unsaved(&sync_rig.s, sync_rig.now);
    assert_int_equal(sync_held_back_us(&sync_rig.s), UINT64_MAX);
    sync_rig_give(4, 4);
    assert_false(sync_wants_training(&sync_rig.s));
    sync_saved(&sync_rig.s, sync_rig.now);
    sync_train_begin(&sync_rig.s, sync_rig.now);
    sync_unsaved(&sync_rig.s, sync_rig.now);
    sync_segment_done(&sync_rig.s);
    sync_work_ready(&sync_rig.s, 4, (uint64_t[]){BYTES, 1}, sync_rig.now);
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_OFFER], 2);
    sync_rig_credit(4, 1, 0, 1);
    sync_rig_credit(4, 0, 0, BYTES);
    while (next_up(&a)) {
        assert_int_equal(a.type, SYNC_SEND_CHUNK);
        assert_int_equal(a.offset, sent[a.fragment]);
        sent[a.fragment] += a.length;
    }
    assert_int_equal(sent[0], BYTES - 1);
    assert_int_equal(sent[1], 0);
    assert_in_range(sync_held_back_us(&sync_rig.s), 8 * S, 9 * S); /* 1 MB at 1 Mbit/s */
    sync_waits_for(&sync_rig.s, text, sizeof text);
    assert_non_null(strstr(text, "the upload of its delta of round 5 (0 B of 1.05 MB) and the save of its state"));
    sync_rig.now += 20 * S;
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_OFFER], 1); /* silence: offer again; no byte of the other was sent */
    sync_rig_credit(4, 0, BYTES / 2, BYTES); /* half of it */
    sync_rig.now += 40 * S;
    expect_up(SYNC_SEND_OFFER, 0);
    sync_rig_credit(4, 0, BYTES / 2, BYTES);
    assert_int_equal(expect_up(SYNC_SEND_CHUNK, 0).offset, BYTES / 2);
    sync_rig_drain_all();
    sync_rig_credit(4, 0, BYTES - 1, BYTES);
    assert_int_equal(sync_held_back_us(&sync_rig.s), 0);
    sync_waits_for(&sync_rig.s, text, sizeof text);
    assert_string_equal(text, "the save of its state of round 5");
    sync_rig.now += 600 * S;
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_OFFER] + n[SYNC_SEND_CHUNK], 0);
    sync_saved(&sync_rig.s, sync_rig.now);
    for (uint32_t i = 0; i < 2; i++) {
        a = expect_up(SYNC_SEND_CHUNK, i);
        assert_int_equal(a.offset, i ? 0 : BYTES - 1);
        assert_int_equal(a.length, 1);
    }
    assert_false(next_up(&a));
    sync_rig.now += SYNC_RETRY_MIN_US; /* still lost */
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_OFFER], 2);
}

/* Meanwhile the next fragment starts once the previous one should be sent: the transport's queue goes first, then
 * the waiting last byte. */
TEST(test_fragments_are_sent_in_turn_during_save)
{
    struct sync_action a;
    int n[9];
    for (int early = 0; early < 2; early++) {
        sync_rig_start(false, 2, 4);
        sync_rig_give(4, 4);
        sync_train_begin(&sync_rig.s, sync_rig.now);
        uint64_t begun = sync_rig.now;
        sync_unsaved(&sync_rig.s, begun);
        sync_segment_done(&sync_rig.s);
        sync_work_ready(&sync_rig.s, 4, (uint64_t[]){BYTES, BYTES}, begun);
        sync_rig_drain(n);
        sync_rig_credit(4, 0, 0, BYTES);
        sync_rig_credit(4, 1, 0, BYTES);
        while (next_up(&a)) assert_int_equal(a.fragment, 0);
        assert_int_equal(sync_rig.s.f[0].sent, BYTES - 1);
        assert_int_equal(sync_rig.s.f[1].sent, 0);
        assert_in_range(sync_held_back_us(&sync_rig.s), 16 * S, 18 * S); /* 2 MB at 1 Mbit/s */
        if (early) {
            sync_saved(&sync_rig.s, sync_rig.now);
            assert_int_equal(expect_up(SYNC_SEND_CHUNK, 0).offset, BYTES - 1);
        } else {
            sync_rig.now = begun + 8 * S; /* 1 MB at 1 Mbit/s: not sent yet */
            while (next_up(&a)) assert_int_not_equal(a.type, SYNC_SEND_CHUNK);
            assert_in_range(sync_deadline_us(&sync_rig.s), sync_rig.now, begun + 9 * S);
            sync_rig.now = begun + 9 * S;
        }
        assert_int_equal(expect_up(SYNC_SEND_CHUNK, 1).offset, 0);
        while (next_up(&a)) assert_int_equal(a.fragment, 1);
        assert_int_equal(sync_rig.s.f[1].sent, early ? BYTES : BYTES - 1);
    }
}

/* The parameters stay unchanged during the save. */
TEST(test_updates_wait_for_saved_state)
{
    uint32_t f;
    char text[WIRE_TEXT_MAX];
    for (int async = 0; async < 2; async++) {
        sync_rig_start(async, 1, 4);
        sync_rig_train(4, 4, 2000);
        sync_unsaved(&sync_rig.s, sync_rig.now);
        sync_on_progress(&sync_rig.s, 0, 1000, 1000, sync_rig.now);
        assert_false(sync_apply(&sync_rig.s, &f));
        assert_true(sync_rig_reject(4, 0)); /* the round is over; the next one may not be assigned yet */
        assert_int_equal(sync_rig.s.state, WORKER_CATCHING_UP);
        sync_rig_give(5, async ? 4 : 5);
        assert_false(sync_wants_training(&sync_rig.s));
        sync_waits_for(&sync_rig.s, text, sizeof text);
        assert_string_equal(text, "the save of its state");
        sync_saved(&sync_rig.s, sync_rig.now);
        assert_true(sync_apply(&sync_rig.s, &f));
        sync_applied(&sync_rig.s, 0, 4, SYNC_NO_ROUND, sync_rig.now);
        assert_true(sync_wants_training(&sync_rig.s));
    }
}

/* ---- evaluation, end ----------------------------------------------------------------------------------------------
 */

TEST(test_evaluation_waits_for_its_version)
{
    int n[9];
    uint32_t f;
    sync_rig_start(false, 1, 4);
    struct msg_eval e = sync_rig_eval(1, 5);
    sync_on_eval(&sync_rig.s, &e, sync_rig.now);
    assert_false(sync_wants_eval(&sync_rig.s)); /* the version is not there yet */
    sync_rig_update(0, 4, SYNC_NO_ROUND);
    assert_true(sync_wants_eval(&sync_rig.s));
    sync_on_progress(&sync_rig.s, 0, 1000, 1000, sync_rig.now);
    assert_false(sync_apply(&sync_rig.s, &f)); /* not past the version to evaluate */
    struct msg_assign a = sync_rig_assign(5, 5);
    sync_on_assign(&sync_rig.s, &a, sync_rig.now);
    assert_false(sync_wants_training(&sync_rig.s)); /* evaluation first */
    sync_eval_begin(&sync_rig.s, sync_rig.now);
    sync_on_eval(&sync_rig.s, &e, sync_rig.now); /* repeated during the evaluation */
    const struct wire_part parts[] = {{8, 60}, {4.5, 40}};
    sync_eval_done(&sync_rig.s, 12.5, parts, sync_rig.now);
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_EVAL_RESULT], 1);
    assert_true(sync_rig.s.eval.result.loss_sum == 12.5);
    assert_int_equal(sync_rig.s.eval.result.tokens, 100);
    assert_int_equal(sync_rig.s.eval.result.n_parts, 2); /* 7 windows in parts of 4 */
    assert_true(sync_rig.s.eval.result.parts[1].sum == 4.5);
    assert_true(sync_wants_training(&sync_rig.s));
    sync_on_eval(&sync_rig.s, &e, sync_rig.now); /* the answer was lost */
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_EVAL_RESULT], 1);
    assert_false(sync_wants_eval(&sync_rig.s));
}

/* Wanted parts that are not adjacent come as pieces; one result has all of them. */
TEST(test_evaluation_of_some_parts)
{
    int n[9];
    sync_rig_start(true, 1, 4);
    struct msg_eval e = sync_rig_eval(1, 4); /* windows 5 to 11 */
    e.part = 2;
    e.wanted = 1 | 2 | 8; /* of 2, 2, 2 and 1 windows */
    sync_on_eval(&sync_rig.s, &e, sync_rig.now);
    sync_eval_begin(&sync_rig.s, sync_rig.now);
    const struct msg_eval *piece = &sync_rig.s.eval.piece;
    assert_true(piece->start == 5 && piece->count == 4 && piece->part == 2 && piece->wanted == 3);
    const struct wire_part first[] = {{8, 60}, {4.5, 40}}, second[] = {{1, 7}};
    sync_eval_done(&sync_rig.s, 12.5, first, sync_rig.now);
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_EVAL_RESULT], 0);
    assert_true(piece->start == 11 && piece->count == 1 && piece->wanted == 1);
    sync_eval_done(&sync_rig.s, 1, second, sync_rig.now);
    sync_rig_expect(SYNC_SEND_EVAL_RESULT);
    const struct msg_eval_result *result = &sync_rig.s.eval.result;
    assert_true(result->start == 5 && result->count == 7 && result->loss_sum == 13.5 && result->tokens == 107);
    assert_true(result->n_parts == 3 && result->parts[1].tokens == 40 && result->parts[2].sum == 1);
}

TEST(test_evaluation_of_past_version_is_refused)
{
    int n[9];
    sync_rig_start(true, 1, 4);
    struct msg_eval e = sync_rig_eval(1, 3);
    sync_on_eval(&sync_rig.s, &e, sync_rig.now);
    sync_rig_drain(n);
    assert_int_equal(n[SYNC_SEND_EVAL_RESULT], 1);
    assert_int_equal(sync_rig.s.eval.result.tokens, 0);
    e = sync_rig_eval(1, 4); /* assigned again at the present version */
    sync_on_eval(&sync_rig.s, &e, sync_rig.now);
    assert_true(sync_wants_eval(&sync_rig.s));
}

TEST(test_done_sends_one_leave)
{
    struct msg_done d = {.n_fragments = 1, .text = "finished"};
    sync_rig_start(false, 1, 4);
    sync_rig_give(4, 4);
    sync_train_begin(&sync_rig.s, sync_rig.now);
    sync_on_done(&sync_rig.s, &d, sync_rig.now);
    assert_int_equal(sync_rig.s.state, WORKER_FINISHED);
    sync_rig_expect(SYNC_SEND_LEAVE);
    assert_true(sync_rig.s.finished);
    assert_int_equal(sync_rig.s.phase, SYNC_STOPPED);
    assert_int_equal(sync_rig.s.refused, 0);
    sync_on_done(&sync_rig.s, &d, sync_rig.now);
    sync_rig_expect_none();
}

TEST(test_leave_is_sent_once)
{
    sync_rig_start(false, 1, 4);
    sync_leave(&sync_rig.s, "stopped", sync_rig.now);
    sync_rig_expect(SYNC_SEND_LEAVE);
    assert_false(sync_rig.s.finished);
    assert_int_equal(sync_rig.s.phase, SYNC_STOPPED);
    sync_init(&sync_rig.s, 1, sync_rig.now);
    sync_leave(&sync_rig.s, "stopped", sync_rig.now); /* without a session there is no peer for LEAVE */
    assert_int_equal(sync_rig.s.phase, SYNC_STOPPED);
    sync_rig_expect_none();
}

TEST(test_every_wait_has_text)
{
    char text[WIRE_TEXT_MAX];
    sync_init(&sync_rig.s, 1, 0);
    sync_waits_for(&sync_rig.s, text, sizeof text);
    assert_non_null(strstr(text, "coordinator"));
    sync_rig_start(false, 1, 4);
    sync_waits_for(&sync_rig.s, text, sizeof text);
    assert_string_equal(text, "work");
    sync_rig_train(4, 4, 2000000);
    sync_waits_for(&sync_rig.s, text, sizeof text);
    assert_non_null(strstr(text, "0 B of 2 MB"));
    sync_rig_credit(4, 0, 2000000, 2000000);
    sync_waits_for(&sync_rig.s, text, sizeof text);
    assert_non_null(strstr(text, "round 5"));
    sync_drop(&sync_rig.s, sync_rig.now);
    sync_rig_sleep_until_due();
    sync_rig_join_again(8, false, 9, 9);
    sync_waits_for(&sync_rig.s, text, sizeof text);
    assert_non_null(strstr(text, "snapshot"));
}

TEST(test_repeated_drops_end_worker)
{
    sync_rig_start(false, 1, 4);
    for (int i = 0; i < SYNC_DROPS_MAX; i++) {
        uint64_t before = sync_rig.now;
        sync_drop(&sync_rig.s, sync_rig.now);
        sync_rig_expect_none();
        sync_rig_sleep_until_due();
        assert_true(sync_rig.now >= before + ((uint64_t)S << i));
        sync_rig_join_again(8 + (uint64_t)i, false, 9, 9);
    }
    sync_drop(&sync_rig.s, sync_rig.now);
    assert_int_equal(sync_rig.s.phase, SYNC_STOPPED);
    assert_true(sync_rig.s.refused);
}

TEST_MAIN(NULL, NULL)
