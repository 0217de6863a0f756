#include "tests/lib/rigs/syncrig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { S = 1000000 };

struct syncrig syncrig;

bool syncrig_poll_one(struct sync_action *a)
{
    return sync_poll(&syncrig.s, syncrig.now, a);
}

/* The next action must be this one. */
struct sync_action syncrig_expect(enum sync_action_type type)
{
    struct sync_action a;
    assert_true(syncrig_poll_one(&a));
    assert_int_equal(a.type, type);
    return a;
}

void syncrig_expect_none(void)
{
    struct sync_action a;
    if (syncrig_poll_one(&a)) fail_msg("unexpected action %d for fragment %u", a.type, a.fragment);
}

/* Everything that is due now; counts by type. */
void syncrig_drain(int counts[8])
{
    struct sync_action a;
    memset(counts, 0, 8 * sizeof *counts);
    for (int i = 0; syncrig_poll_one(&a); i++) {
        assert_true(i < 4096);
        counts[a.type]++;
    }
}

void syncrig_drain_all(void)
{
    int counts[8];
    syncrig_drain(counts);
}

/* Sleep until something is due. */
void syncrig_sleep_until_due(void)
{
    uint64_t at = sync_deadline_us(&syncrig.s);
    assert_true(at != UINT64_MAX);
    if (at > syncrig.now) syncrig.now = at;
}

struct msg_welcome syncrig_welcome(uint64_t session, bool resume, uint64_t current, uint64_t snapshot)
{
    struct msg_welcome w = {.session = session,
                            .worker_id = 3,
                            .heartbeat_ms = 1000,
                            .n_fragments = syncrig.s.n_fragments,
                            .resume = resume};
    for (uint32_t i = 0; i < syncrig.s.n_fragments; i++) {
        w.current[i].version = current;
        w.snapshot[i].version = snapshot;
    }
    return w;
}

struct msg_assign syncrig_assign(uint64_t round, uint64_t version)
{
    struct msg_assign m = {.round = round,
                           .worker_id = 3,
                           .steps = 10,
                           .step_rate = 1,
                           .n_ranges = 1,
                           .n_fragments = syncrig.s.n_fragments};
    for (uint32_t i = 0; i < syncrig.s.n_fragments; i++) m.versions[i] = version;
    return m;
}

struct msg_eval syncrig_eval(uint64_t id, uint64_t version)
{
    struct msg_eval m = {.eval_id = id, .start = 5, .count = 7, .n_fragments = syncrig.s.n_fragments};
    for (uint32_t i = 0; i < syncrig.s.n_fragments; i++) m.versions[i] = version;
    return m;
}

void syncrig_refuse(uint16_t code)
{
    struct msg_refuse m = {.code = code, .text = "because"};
    sync_on_refuse(&syncrig.s, &m, syncrig.now);
}

/* Joined, holding `version` of every fragment, READY, nothing due. */
void syncrig_start(bool async, uint32_t n_fragments, uint64_t version)
{
    uint64_t versions[LAYOUT_FRAGMENTS_MAX];
    for (uint32_t i = 0; i < n_fragments; i++) versions[i] = version;
    syncrig.now = 100 * S;
    sync_init(&syncrig.s, 42, syncrig.now);
    syncrig_drain_all();
    assert_true(sync_on_config(&syncrig.s, syncrig.now));
    sync_configured(&syncrig.s, async, n_fragments, versions, syncrig.now);
    syncrig_drain_all();
    struct msg_welcome w = syncrig_welcome(7, true, version, 0);
    assert_true(sync_on_welcome(&syncrig.s, &w, syncrig.now));
    syncrig_drain_all();
    assert_int_equal(syncrig.s.state, WORKER_READY);
}

void syncrig_give(uint64_t round, uint64_t version)
{
    struct msg_assign m = syncrig_assign(round, version);
    assert_true(sync_on_assign(&syncrig.s, &m, syncrig.now));
}

void syncrig_train(uint64_t round, uint64_t version, uint64_t bytes)
{
    uint64_t sizes[LAYOUT_FRAGMENTS_MAX];
    for (uint32_t i = 0; i < syncrig.s.n_fragments; i++) sizes[i] = bytes;
    syncrig_give(round, version);
    assert_true(sync_wants_training(&syncrig.s));
    sync_train_begin(&syncrig.s, syncrig.now);
    assert_int_equal(syncrig.s.state, WORKER_TRAINING);
    sync_work_ready(&syncrig.s, round, sizes, syncrig.now);
    assert_int_equal(syncrig.s.state, WORKER_SENDING);
}

void syncrig_credit(uint64_t round, uint32_t fragment, uint64_t have, uint64_t upto)
{
    struct msg_credit m = {.round = round, .fragment = fragment, .have = have, .upto = upto};
    sync_on_credit(&syncrig.s, &m, syncrig.now);
}

bool syncrig_reject(uint64_t round, uint32_t fragment)
{
    struct msg_reject m = {.round = round, .fragment = fragment, .code = REJECT_LATE};
    return sync_on_reject(&syncrig.s, &m, syncrig.now);
}

/* The update after the held version arrives whole and is applied. */
enum sync_verdict syncrig_update(uint32_t fragment, uint64_t round, uint64_t named)
{
    uint32_t f;
    syncrig_drain_all(); /* the GET */
    assert_true(sync_expects(&syncrig.s, OBJECT_UPDATE, fragment, syncrig.s.f[fragment].version + 1));
    sync_on_progress(&syncrig.s, fragment, 1000, 1000, syncrig.now);
    assert_true(sync_apply(&syncrig.s, &f));
    assert_int_equal(f, fragment);
    return sync_applied(&syncrig.s, fragment, round, named, syncrig.now);
}

/* HELLO .. WELCOME with what the machine holds; returns what sync_on_welcome says. */
void syncrig_join_again(uint64_t session, bool resume, uint64_t current, uint64_t snapshot)
{
    syncrig_expect(SYNC_SEND_HELLO);
    assert_true(sync_on_config(&syncrig.s, syncrig.now));
    sync_configured(&syncrig.s, false, syncrig.s.n_fragments, NULL, syncrig.now);
    syncrig_expect(SYNC_SEND_JOIN);
    struct msg_welcome w = syncrig_welcome(session, resume, current, snapshot);
    assert_true(sync_on_welcome(&syncrig.s, &w, syncrig.now));
}
