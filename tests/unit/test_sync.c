/* The worker's protocol machine: every transition, and what lost, doubled, late and reordered messages do to it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/sync.h"

enum { S = 1000000, BYTES = 1 << 20 };

static struct sync s;
static uint64_t now;

/* ---- helpers ------------------------------------------------------------------------------------------------------ */

static bool poll_one(struct sync_action *a)
{
    return sync_poll(&s, now, a);
}

/* The next action must be this one. */
static struct sync_action expect(enum sync_action_type type)
{
    struct sync_action a;
    assert_true(poll_one(&a));
    assert_int_equal(a.type, type);
    return a;
}

static void expect_none(void)
{
    struct sync_action a;
    if (poll_one(&a)) fail_msg("unexpected action %d for fragment %u", a.type, a.fragment);
}

/* Everything that is due now; counts by type. */
static void drain(int counts[8])
{
    struct sync_action a;
    memset(counts, 0, 8 * sizeof *counts);
    for (int i = 0; poll_one(&a); i++) {
        assert_true(i < 4096);
        counts[a.type]++;
    }
}

static void drain_all(void)
{
    int counts[8];
    drain(counts);
}

/* Sleep until something is due. */
static void sleep_until_due(void)
{
    uint64_t at = sync_deadline_us(&s);
    assert_true(at != UINT64_MAX);
    if (at > now) now = at;
}

static struct msg_welcome welcome(uint64_t session, bool resume, uint64_t current, uint64_t snapshot)
{
    struct msg_welcome w = {.session = session, .worker_id = 3, .heartbeat_ms = 1000, .n_fragments = s.n_fragments,
                            .resume = resume};
    for (uint32_t i = 0; i < s.n_fragments; i++) {
        w.current[i].version = current;
        w.snapshot[i].version = snapshot;
    }
    return w;
}

static struct msg_assign assign(uint64_t round, uint64_t version)
{
    struct msg_assign m = {.round = round, .worker_id = 3, .steps = 10, .step_rate = 1, .n_ranges = 1,
                           .n_fragments = s.n_fragments};
    for (uint32_t i = 0; i < s.n_fragments; i++) m.versions[i] = version;
    return m;
}

static struct msg_eval eval(uint64_t id, uint64_t version)
{
    struct msg_eval m = {.eval_id = id, .start = 5, .count = 7, .n_fragments = s.n_fragments};
    for (uint32_t i = 0; i < s.n_fragments; i++) m.versions[i] = version;
    return m;
}

static void refuse(uint16_t code)
{
    struct msg_refuse m = {.code = code, .text = "because"};
    sync_on_refuse(&s, &m, now);
}

/* Joined, holding `version` of every fragment, READY, nothing due. */
static void start(bool async, uint32_t n_fragments, uint64_t version)
{
    uint64_t versions[LAYOUT_FRAGMENTS_MAX];
    for (uint32_t i = 0; i < n_fragments; i++) versions[i] = version;
    now = 100 * S;
    sync_init(&s, 42, now);
    drain_all();
    assert_true(sync_on_config(&s, now));
    sync_configured(&s, async, n_fragments, versions, now);
    drain_all();
    struct msg_welcome w = welcome(7, true, version, 0);
    assert_true(sync_on_welcome(&s, &w, now));
    drain_all();
    assert_int_equal(s.state, WORKER_READY);
}

static void give(uint64_t round, uint64_t version)
{
    struct msg_assign m = assign(round, version);
    assert_true(sync_on_assign(&s, &m, now));
}

static void train(uint64_t round, uint64_t version, uint64_t bytes)
{
    uint64_t sizes[LAYOUT_FRAGMENTS_MAX];
    for (uint32_t i = 0; i < s.n_fragments; i++) sizes[i] = bytes;
    give(round, version);
    assert_true(sync_wants_training(&s));
    sync_train_begin(&s, now);
    assert_int_equal(s.state, WORKER_TRAINING);
    sync_work_ready(&s, round, sizes, now);
    assert_int_equal(s.state, WORKER_SENDING);
}

static void credit(uint64_t round, uint32_t fragment, uint64_t have, uint64_t upto)
{
    struct msg_credit m = {.round = round, .fragment = fragment, .have = have, .upto = upto};
    sync_on_credit(&s, &m, now);
}

static bool reject(uint64_t round, uint32_t fragment)
{
    struct msg_reject m = {.round = round, .fragment = fragment, .code = REJECT_LATE};
    return sync_on_reject(&s, &m, now);
}

/* The update after the held version arrives whole and is applied. */
static enum sync_verdict update(uint32_t fragment, uint64_t round, uint64_t named)
{
    uint32_t f;
    drain_all(); /* the GET */
    assert_true(sync_expects(&s, OBJECT_UPDATE, fragment, s.f[fragment].version + 1));
    sync_on_progress(&s, fragment, 1000, 1000, now);
    assert_true(sync_apply(&s, &f));
    assert_int_equal(f, fragment);
    return sync_applied(&s, fragment, round, named, now);
}

/* ---- joining ------------------------------------------------------------------------------------------------------ */

static void test_handshake_retries_until_answered(void **state)
{
    (void)state;
    uint64_t last = 0, gap = 0;
    now = 5 * S;
    sync_init(&s, 1, now);
    for (int i = 0; i < 12; i++) {
        sleep_until_due();
        expect(SYNC_SEND_HELLO);
        expect_none();
        if (i > 1) assert_true(now - last >= gap * 7 / 10); /* grows, up to jitter */
        gap = now - last;
        last = now;
    }
    assert_in_range(gap, 8 * S, 12 * S);
    assert_true(sync_on_config(&s, now));
    assert_false(sync_on_config(&s, now));
    expect_none(); /* the owner is at work */
    sync_configured(&s, false, 2, NULL, now);
    expect(SYNC_SEND_JOIN);
    expect_none();
    sleep_until_due();
    expect(SYNC_SEND_JOIN);
    assert_false(sync_on_config(&s, now)); /* a late duplicate */
    struct msg_welcome w = welcome(9, false, 0, 0);
    assert_true(sync_on_welcome(&s, &w, now));
    assert_int_equal(s.phase, SYNC_JOINED);
    expect(SYNC_SEND_BIND);
}

static void test_two_workers_do_not_retry_together(void **state)
{
    (void)state;
    uint64_t due[2];
    for (int i = 0; i < 2; i++) {
        sync_init(&s, 1000u + 77u * (unsigned)i, S);
        now = S;
        expect(SYNC_SEND_HELLO);
        due[i] = sync_deadline_us(&s);
    }
    assert_int_not_equal(due[0], due[1]);
}

static void test_fresh_worker_loads_snapshot_then_replays(void **state)
{
    (void)state;
    now = S;
    sync_init(&s, 1, now);
    drain_all();
    sync_on_config(&s, now);
    sync_configured(&s, false, 2, NULL, now);
    drain_all();
    struct msg_welcome w = welcome(9, false, 12, 10);
    sync_on_welcome(&s, &w, now);
    assert_int_equal(s.state, WORKER_CATCHING_UP);
    expect(SYNC_SEND_BIND);
    for (uint32_t i = 0; i < 2; i++) {
        struct sync_action a = expect(SYNC_SEND_GET);
        assert_int_equal(a.kind, OBJECT_SNAPSHOT);
        assert_int_equal(a.version, 10);
        assert_int_equal(a.offset, 0);
    }
    assert_true(sync_expects(&s, OBJECT_SNAPSHOT, 0, 10));
    assert_false(sync_expects(&s, OBJECT_UPDATE, 0, 11));
    sync_on_progress(&s, 0, 500, 500, now);
    uint32_t f;
    assert_true(sync_apply(&s, &f));
    sync_loaded(&s, 0, 10, now);
    expect_none(); /* no replay before all of it is loaded */
    sync_loaded(&s, 1, 10, now);
    assert_true(s.holds);
    assert_int_equal(s.state, WORKER_CATCHING_UP);
    for (uint64_t v = 11; v <= 12; v++)
        for (uint32_t i = 0; i < 2; i++) assert_int_equal(update(i, v - 1, SYNC_NO_ROUND), SYNC_NOT_MINE);
    assert_int_equal(s.state, WORKER_READY);
}

static void test_refusals(void **state)
{
    (void)state;
    now = S;
    sync_init(&s, 1, now);
    drain_all();
    refuse(REFUSE_FULL);
    assert_int_equal(s.phase, SYNC_HELLO);
    assert_true(sync_deadline_us(&s) >= now + 5 * S);
    char text[WIRE_TEXT_MAX];
    sync_waits_for(&s, text, sizeof text);
    assert_non_null(strstr(text, "because"));
    refuse(REFUSE_UNKNOWN_SESSION); /* of an earlier life: no effect */
    assert_int_equal(s.phase, SYNC_HELLO);
    refuse(REFUSE_LAYOUT);
    assert_int_equal(s.phase, SYNC_STOPPED);
    assert_int_equal(s.refused, REFUSE_LAYOUT);
    now += 100 * S;
    expect_none();
}

static void test_bad_welcome_stops(void **state)
{
    (void)state;
    start(false, 2, 4);
    sync_rejoin(&s, now);
    expect_none(); /* not within a second of joining: no two sides may chase each other */
    now += S;
    drain_all();
    sync_on_config(&s, now);
    sync_configured(&s, false, 2, NULL, now);
    struct msg_welcome w = welcome(8, true, 4, 0);
    w.n_fragments = 3;
    assert_false(sync_on_welcome(&s, &w, now));
    assert_int_equal(s.phase, SYNC_STOPPED);
    assert_true(s.refused);
}

/* ---- a round ------------------------------------------------------------------------------------------------------ */

static void test_round_from_assignment_to_update(void **state)
{
    (void)state;
    int n[8];
    start(false, 2, 4);
    train(4, 4, BYTES);
    assert_int_equal(expect(SYNC_SEND_OFFER).fragment, 0);
    assert_int_equal(expect(SYNC_SEND_OFFER).fragment, 1);
    drain(n);
    assert_int_equal(n[SYNC_SEND_CHUNK], 0); /* nothing without credit */
    credit(4, 0, 0, 3 * SYNC_CHUNK / 2);
    struct sync_action a = expect(SYNC_SEND_CHUNK);
    assert_int_equal(a.offset, 0);
    assert_int_equal(a.length, SYNC_CHUNK);
    a = expect(SYNC_SEND_CHUNK);
    assert_int_equal(a.offset, SYNC_CHUNK);
    assert_int_equal(a.length, SYNC_CHUNK / 2); /* not past the credit */
    expect_none();
    credit(4, 0, SYNC_CHUNK, BYTES);
    drain(n);
    assert_int_equal(n[SYNC_SEND_CHUNK], 3);
    credit(4, 0, BYTES, BYTES);
    assert_int_equal(s.state, WORKER_SENDING);
    credit(4, 1, BYTES, BYTES);
    assert_int_equal(s.state, WORKER_WAITING);
    assert_int_equal(update(0, 4, 4), SYNC_NAMED);
    assert_int_equal(s.state, WORKER_WAITING);
    assert_int_equal(update(1, 4, 4), SYNC_NAMED);
    assert_int_equal(s.state, WORKER_READY);
    assert_int_equal(s.last_round, 4);
    assert_int_equal(s.f[0].version, 5);
}

static void test_full_queue_sends_the_chunk_again(void **state)
{
    (void)state;
    start(false, 1, 0);
    train(0, 0, BYTES);
    expect(SYNC_SEND_OFFER);
    credit(0, 0, 0, BYTES);
    struct sync_action a = expect(SYNC_SEND_CHUNK);
    sync_blocked(&s, &a, now);
    drain_all();
    assert_int_equal(s.f[0].sent, 0);
    now += 10000;
    a = expect(SYNC_SEND_CHUNK);
    assert_int_equal(a.offset, 0);
}

static void test_lost_offer_is_repeated(void **state)
{
    (void)state;
    start(false, 1, 0);
    train(0, 0, 1000);
    expect(SYNC_SEND_OFFER);
    drain_all();
    now += SYNC_RETRY_MIN_US - 1;
    expect_none();
    now += 1;
    expect(SYNC_SEND_OFFER);
    expect(SYNC_SEND_BIND); /* perhaps that was lost */
}

static void test_lost_chunks_are_sent_again_but_not_slow_ones(void **state)
{
    (void)state;
    int n[8];
    start(false, 1, 0);
    train(0, 0, BYTES);
    credit(0, 0, 0, BYTES);
    drain(n);
    assert_int_equal(n[SYNC_SEND_CHUNK], BYTES / SYNC_CHUNK);
    /* Slow: each credit brings a little more, nothing is sent twice although it takes minutes. */
    for (uint64_t have = 1; have < 100; have++) {
        now += SYNC_RETRY_MIN_US - 1;
        credit(0, 0, have * 10, BYTES);
        drain(n);
        assert_int_equal(n[SYNC_SEND_CHUNK], 0);
    }
    /* Silence: offer again; the answer says that nothing arrived since: go back to it. */
    int offers = 0;
    for (int i = 0; i < 40 && !offers; i++) {
        now += S;
        drain(n);
        offers += n[SYNC_SEND_OFFER];
        assert_int_equal(n[SYNC_SEND_CHUNK], 0);
    }
    assert_int_equal(offers, 1);
    credit(0, 0, 99 * 10, BYTES);
    struct sync_action a = expect(SYNC_SEND_CHUNK);
    assert_int_equal(a.offset, 990);
}

static void test_credit_of_other_rounds_changes_nothing(void **state)
{
    (void)state;
    start(false, 1, 3);
    train(3, 3, BYTES);
    drain_all();
    credit(2, 0, BYTES, BYTES);
    credit(4, 0, BYTES, BYTES);
    credit(3, 1, BYTES, BYTES);
    assert_int_equal(s.state, WORKER_SENDING);
    assert_false(reject(2, 0));
    assert_false(reject(3, 7));
    credit(3, 0, BYTES, BYTES);
    assert_int_equal(s.state, WORKER_WAITING);
    credit(3, 0, 5, BYTES); /* the coordinator restarted and lost it: send again */
    assert_int_equal(s.state, WORKER_SENDING);
    assert_int_equal(expect(SYNC_SEND_CHUNK).offset, 5);
}

static void test_assignment_that_overtakes_the_update(void **state)
{
    (void)state;
    start(false, 1, 0);
    train(0, 0, 10);
    credit(0, 0, 10, 10);
    give(1, 1);
    assert_false(sync_wants_training(&s));
    assert_int_equal(s.state, WORKER_WAITING);
    assert_int_equal(update(0, 0, 0), SYNC_NAMED);
    assert_true(sync_wants_training(&s));
    assert_int_equal(s.task.round, 1);
}

static void test_stale_assignments(void **state)
{
    (void)state;
    start(false, 1, 0);
    train(0, 0, 10);
    credit(0, 0, 10, 10);
    update(0, 0, 0);
    struct msg_assign old = assign(0, 0), next = assign(1, 1), ahead = assign(2, 3);
    assert_false(sync_on_assign(&s, &old, now)); /* a duplicate of a round that is over */
    assert_true(sync_on_assign(&s, &next, now));
    assert_false(sync_on_assign(&s, &next, now)); /* said again while it is in hand */
    sync_train_begin(&s, now);
    assert_false(sync_on_assign(&s, &next, now));
    assert_false(sync_on_assign(&s, &ahead, now)); /* not while training */
    sync_train_abandon(&s, now);
    assert_true(sync_on_assign(&s, &ahead, now));
    assert_int_equal(s.state, WORKER_CATCHING_UP);
    assert_false(sync_wants_training(&s)); /* versions 1, wanted 3 */
    update(0, 1, SYNC_NO_ROUND);
    assert_false(sync_wants_training(&s));
    update(0, 2, SYNC_NO_ROUND);
    assert_true(sync_wants_training(&s));
    next = assign(3, 2);
    assert_false(sync_on_assign(&s, &next, now)); /* versions of the past */
}

static void test_rejection_ends_the_round(void **state)
{
    (void)state;
    start(false, 2, 0);
    train(0, 0, 10);
    credit(0, 0, 10, 10);
    assert_true(reject(0, 1));
    assert_false(reject(0, 1));
    assert_int_equal(s.state, WORKER_WAITING);
    assert_int_equal(update(0, 0, 0), SYNC_NAMED);
    assert_int_equal(update(1, 0, SYNC_NO_ROUND), SYNC_NOT_MINE);
    assert_int_equal(s.state, WORKER_READY);
    assert_true(s.last_rejected);
    struct msg_assign again = assign(0, 1);
    assert_true(sync_on_assign(&s, &again, now)); /* a refused round may be given again */
}

static void test_closed_without_us_asks_for_the_verdict(void **state)
{
    (void)state;
    int n[8];
    uint32_t lost;
    start(false, 1, 0);
    train(0, 0, 10);
    credit(0, 0, 10, 10);
    drain(n);
    assert_int_equal(update(0, 0, SYNC_NO_ROUND), SYNC_NOT_MINE);
    assert_int_equal(s.state, WORKER_SENDING);
    drain(n);
    assert_int_equal(n[SYNC_SEND_OFFER], 1);
    assert_false(sync_take_lost(&s, &lost));
    credit(0, 0, 10, 10); /* "merged long ago": but it was not */
    assert_true(sync_take_lost(&s, &lost));
    assert_int_equal(lost, 0);
    assert_false(sync_take_lost(&s, &lost));
    assert_int_equal(s.state, WORKER_READY);
}

static void test_named_in_a_life_that_was_not_saved(void **state)
{
    (void)state;
    uint64_t bytes = 10;
    start(false, 1, 5);
    sync_work_ready(&s, 5, &bytes, now); /* restored: round 5 pending, rounds 6 and 7 forgotten */
    credit(5, 0, 10, 10);
    assert_int_equal(update(0, 5, 5), SYNC_NAMED);
    assert_int_equal(update(0, 6, 6), SYNC_NAMED_LATER);
    assert_int_equal(update(0, 7, 7), SYNC_NAMED_LATER);
}

/* ---- sessions ----------------------------------------------------------------------------------------------------- */

/* HELLO .. WELCOME with what the machine holds; returns what sync_on_welcome says. */
static void join_again(uint64_t session, bool resume, uint64_t current, uint64_t snapshot)
{
    expect(SYNC_SEND_HELLO);
    assert_true(sync_on_config(&s, now));
    sync_configured(&s, false, s.n_fragments, NULL, now);
    expect(SYNC_SEND_JOIN);
    struct msg_welcome w = welcome(session, resume, current, snapshot);
    assert_true(sync_on_welcome(&s, &w, now));
}

static void test_new_session_keeps_the_work(void **state)
{
    (void)state;
    int n[8];
    start(false, 2, 0);
    train(0, 0, BYTES);
    credit(0, 0, BYTES, BYTES);
    credit(0, 1, 0, BYTES);
    drain(n);
    refuse(REFUSE_UNKNOWN_SESSION); /* too soon after WELCOME: of the session before */
    assert_int_equal(s.phase, SYNC_JOINED);
    now += 2 * S;
    refuse(REFUSE_UNKNOWN_SESSION);
    assert_int_equal(s.phase, SYNC_HELLO);
    assert_int_equal(s.state, WORKER_SENDING);
    join_again(8, true, 0, 0);
    expect(SYNC_SEND_BIND);
    assert_int_equal(expect(SYNC_SEND_OFFER).fragment, 0); /* also what was delivered: the journal may have lost it */
    assert_int_equal(expect(SYNC_SEND_OFFER).fragment, 1);
    credit(0, 1, 12345, BYTES);
    drain(n);
    assert_int_equal(s.f[1].sent, BYTES);
    assert_true(n[SYNC_SEND_CHUNK] > 0);
}

static void test_new_session_while_training(void **state)
{
    (void)state;
    start(false, 1, 0);
    give(0, 0);
    sync_train_begin(&s, now);
    now += 5 * S;
    refuse(REFUSE_UNKNOWN_SESSION);
    join_again(8, true, 0, 0);
    assert_int_equal(s.state, WORKER_TRAINING);
    assert_int_equal(s.round, 0);
}

static void test_no_resume_drops_everything(void **state)
{
    (void)state;
    start(false, 1, 3);
    train(3, 3, BYTES);
    now += 5 * S;
    refuse(REFUSE_GONE);
    join_again(8, false, 90, 85);
    assert_int_equal(s.state, WORKER_CATCHING_UP);
    assert_int_equal(s.round, SYNC_NO_ROUND);
    assert_false(s.holds);
    expect(SYNC_SEND_BIND);
    assert_int_equal(expect(SYNC_SEND_GET).version, 85);
    expect_none();
}

static void test_repeated_welcome(void **state)
{
    (void)state;
    start(false, 1, 3);
    struct msg_welcome same = welcome(7, true, 3, 0), other = welcome(8, true, 3, 0);
    same.worker_id = 11;
    assert_false(sync_on_welcome(&s, &same, now));
    assert_int_equal(s.worker_id, 11);
    assert_true(sync_on_welcome(&s, &other, now)); /* a repeated JOIN made it: it replaced ours */
    assert_int_equal(s.session, 8);
    give(3, 3);
    sync_train_begin(&s, now);
    other = welcome(9, false, 3, 2); /* that JOIN was sent before anything was held */
    assert_true(sync_on_welcome(&s, &other, now));
    assert_int_equal(s.session, 9);
    assert_int_equal(s.state, WORKER_TRAINING);
    other = welcome(10, false, 5, 4); /* but here the log before version 4 is gone */
    assert_true(sync_on_welcome(&s, &other, now));
    assert_int_equal(s.state, WORKER_CATCHING_UP);
    assert_false(s.holds);
}

/* ---- downloads ---------------------------------------------------------------------------------------------------- */

static void test_waiting_worker_has_parked_gets(void **state)
{
    (void)state;
    int n[8];
    start(false, 3, 6);
    assert_true(sync_expects(&s, OBJECT_UPDATE, 0, 7));
    assert_true(sync_expects(&s, OBJECT_UPDATE, 2, 7));
    drain(n);
    assert_int_equal(n[SYNC_SEND_GET], 0);
    now += SYNC_RETRY_MIN_US;
    drain(n);
    assert_int_equal(n[SYNC_SEND_GET], 3); /* silence: again */
    now += SYNC_RETRY_MIN_US;
    drain(n);
    assert_int_equal(n[SYNC_SEND_GET], 0); /* less often */
}

static void test_download_resumes_where_it_stopped(void **state)
{
    (void)state;
    start(false, 1, 6);
    sync_on_progress(&s, 0, 300000, 10000000, now);
    drain_all();
    for (int i = 0; i < 100 && s.f[0].get_wait == 0; i++) {
        struct sync_action a;
        now += S;
        while (poll_one(&a))
            if (a.type == SYNC_SEND_GET) {
                assert_int_equal(a.offset, 300000);
                return;
            }
    }
    fail_msg("no second GET");
}

static void test_download_window(void **state)
{
    (void)state;
    start(false, LAYOUT_FRAGMENTS_MAX, 1);
    for (int i = 0; i < 50; i++) {
        uint64_t asked = 0;
        int open = 0;
        drain_all();
        for (uint32_t f = 0; f < s.n_fragments; f++)
            if (s.f[f].requested > s.f[f].have) {
                asked += s.f[f].requested - s.f[f].have;
                open++;
            }
        assert_in_range(open, 1, SYNC_GETS_MAX);
        assert_true(asked <= SYNC_WINDOW);
        for (uint32_t f = 0; f < s.n_fragments; f++)
            if (s.f[f].requested > s.f[f].have) {
                uint64_t have = s.f[f].requested > 3000000 ? 3000000 : s.f[f].requested;
                sync_on_progress(&s, f, have, 3000000, now);
                if (have == 3000000) sync_applied(&s, f, 1, SYNC_NO_ROUND, now);
                break;
            }
        now += 1000;
    }
}

static void test_next_window_is_asked_for_early(void **state)
{
    (void)state;
    struct sync_action a;
    uint64_t total = 10u << 20, asked = SYNC_WINDOW;
    start(false, 1, 6);
    assert_int_equal(s.f[0].requested, SYNC_WINDOW);
    sync_on_progress(&s, 0, SYNC_WINDOW / 2 - 1, total, now);
    expect_none();
    for (uint64_t have = SYNC_WINDOW / 2; have < total; have += SYNC_WINDOW / 2) {
        sync_on_progress(&s, 0, have, total, now);
        if (asked == total) break;
        a = expect(SYNC_SEND_GET);
        assert_int_equal(a.offset, asked); /* each byte once */
        asked += a.length;
        expect_none();
        assert_true(asked - have <= SYNC_WINDOW);
    }
    assert_int_equal(asked, total);
}

static void test_barrier_freezes_theta_while_training_async_does_not(void **state)
{
    (void)state;
    uint32_t f;
    for (int async = 0; async < 2; async++) {
        start(async, 1, 2);
        give(2, 2);
        sync_on_progress(&s, 0, 1000, 1000, now);
        assert_int_equal(sync_apply(&s, &f), async); /* barrier: the task needs exactly version 2 */
        sync_train_begin(&s, now);
        assert_int_equal(sync_apply(&s, &f), async);
        sync_train_abandon(&s, now);
        assert_true(sync_apply(&s, &f));
    }
}

/* ---- evaluation, end ---------------------------------------------------------------------------------------------- */

static void test_evaluation(void **state)
{
    (void)state;
    int n[8];
    uint32_t f;
    start(false, 1, 4);
    struct msg_eval e = eval(1, 5);
    sync_on_eval(&s, &e, now);
    assert_false(sync_wants_eval(&s)); /* not there yet */
    update(0, 4, SYNC_NO_ROUND);
    assert_true(sync_wants_eval(&s));
    struct msg_assign a = assign(5, 5);
    sync_on_assign(&s, &a, now);
    assert_false(sync_wants_training(&s)); /* evaluation first */
    drain_all();
    sync_on_progress(&s, 0, 1000, 1000, now);
    assert_false(sync_apply(&s, &f)); /* exactly this version */
    sync_eval_begin(&s, now);
    sync_on_eval(&s, &e, now); /* repeated while it is at it */
    sync_eval_done(&s, 12.5, 100, now);
    drain(n);
    assert_int_equal(n[SYNC_SEND_EVAL_RESULT], 1);
    assert_true(s.eval.result.loss_sum == 12.5);
    assert_int_equal(s.eval.result.tokens, 100);
    assert_true(sync_wants_training(&s));
    sync_on_eval(&s, &e, now); /* the answer was lost */
    drain(n);
    assert_int_equal(n[SYNC_SEND_EVAL_RESULT], 1);
    assert_false(sync_wants_eval(&s));
}

static void test_evaluation_of_a_version_gone_by(void **state)
{
    (void)state;
    int n[8];
    start(true, 1, 4);
    struct msg_eval e = eval(1, 3);
    sync_on_eval(&s, &e, now);
    drain(n);
    assert_int_equal(n[SYNC_SEND_EVAL_RESULT], 1);
    assert_int_equal(s.eval.result.tokens, 0);
    e = eval(1, 4); /* given again at the version of now */
    sync_on_eval(&s, &e, now);
    assert_true(sync_wants_eval(&s));
}

static void test_done_says_goodbye_once(void **state)
{
    (void)state;
    struct msg_done d = {.n_fragments = 1, .text = "finished"};
    start(false, 1, 4);
    give(4, 4);
    sync_train_begin(&s, now);
    sync_on_done(&s, &d, now);
    assert_int_equal(s.state, WORKER_FINISHED);
    expect(SYNC_SEND_LEAVE);
    assert_true(s.finished);
    assert_int_equal(s.phase, SYNC_STOPPED);
    assert_int_equal(s.refused, 0);
    sync_on_done(&s, &d, now);
    expect_none();
}

static void test_leave(void **state)
{
    (void)state;
    start(false, 1, 4);
    sync_leave(&s, "stopped", now);
    expect(SYNC_SEND_LEAVE);
    assert_false(s.finished);
    assert_int_equal(s.phase, SYNC_STOPPED);
    sync_init(&s, 1, now);
    sync_leave(&s, "stopped", now); /* without a session there is nobody to tell */
    assert_int_equal(s.phase, SYNC_STOPPED);
    expect_none();
}

static void test_every_wait_has_a_text(void **state)
{
    (void)state;
    char text[WIRE_TEXT_MAX];
    sync_init(&s, 1, 0);
    sync_waits_for(&s, text, sizeof text);
    assert_non_null(strstr(text, "coordinator"));
    start(false, 1, 4);
    sync_waits_for(&s, text, sizeof text);
    assert_string_equal(text, "work");
    train(4, 4, 2000000);
    sync_waits_for(&s, text, sizeof text);
    assert_non_null(strstr(text, "0.0 of 2.0 MB"));
    credit(4, 0, 2000000, 2000000);
    sync_waits_for(&s, text, sizeof text);
    assert_non_null(strstr(text, "round 5"));
    sync_drop(&s, now);
    sleep_until_due();
    join_again(8, false, 9, 9);
    sync_waits_for(&s, text, sizeof text);
    assert_non_null(strstr(text, "snapshot"));
}

static void test_dropping_everything_again_and_again_ends(void **state)
{
    (void)state;
    start(false, 1, 4);
    for (int i = 0; i < SYNC_DROPS_MAX; i++) {
        uint64_t before = now;
        sync_drop(&s, now);
        expect_none();
        sleep_until_due();
        assert_true(now >= before + ((uint64_t)S << i));
        join_again(8 + (uint64_t)i, false, 9, 9);
    }
    sync_drop(&s, now);
    assert_int_equal(s.phase, SYNC_STOPPED);
    assert_true(s.refused);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_handshake_retries_until_answered),
        cmocka_unit_test(test_two_workers_do_not_retry_together),
        cmocka_unit_test(test_fresh_worker_loads_snapshot_then_replays),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bad_welcome_stops),
        cmocka_unit_test(test_round_from_assignment_to_update),
        cmocka_unit_test(test_full_queue_sends_the_chunk_again),
        cmocka_unit_test(test_lost_offer_is_repeated),
        cmocka_unit_test(test_lost_chunks_are_sent_again_but_not_slow_ones),
        cmocka_unit_test(test_credit_of_other_rounds_changes_nothing),
        cmocka_unit_test(test_assignment_that_overtakes_the_update),
        cmocka_unit_test(test_stale_assignments),
        cmocka_unit_test(test_rejection_ends_the_round),
        cmocka_unit_test(test_closed_without_us_asks_for_the_verdict),
        cmocka_unit_test(test_named_in_a_life_that_was_not_saved),
        cmocka_unit_test(test_new_session_keeps_the_work),
        cmocka_unit_test(test_new_session_while_training),
        cmocka_unit_test(test_no_resume_drops_everything),
        cmocka_unit_test(test_repeated_welcome),
        cmocka_unit_test(test_waiting_worker_has_parked_gets),
        cmocka_unit_test(test_download_resumes_where_it_stopped),
        cmocka_unit_test(test_download_window),
        cmocka_unit_test(test_next_window_is_asked_for_early),
        cmocka_unit_test(test_barrier_freezes_theta_while_training_async_does_not),
        cmocka_unit_test(test_evaluation),
        cmocka_unit_test(test_evaluation_of_a_version_gone_by),
        cmocka_unit_test(test_done_says_goodbye_once),
        cmocka_unit_test(test_leave),
        cmocka_unit_test(test_every_wait_has_a_text),
        cmocka_unit_test(test_dropping_everything_again_and_again_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
