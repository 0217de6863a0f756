#include "tests/lib/rigs/sync_rig.h"
#include "tests/lib/test.h"

enum { S = 1000000 };

struct sync_rig sync_rig;

bool sync_rig_poll_one(struct sync_action *a)
{
    return sync_poll(&sync_rig.s, sync_rig.now, a);
}

/* The next action must have this type. */
struct sync_action sync_rig_expect(enum sync_action_type type)
{
    struct sync_action a;
    assert_true(sync_rig_poll_one(&a));
    assert_int_equal(a.type, type);
    return a;
}

void sync_rig_expect_none(void)
{
    struct sync_action a;
    if (sync_rig_poll_one(&a)) fail_msg("unexpected action %d for fragment %u", a.type, a.fragment);
}

/* Runs every action that is due; counts them by type. */
void sync_rig_drain(int counts[9])
{
    struct sync_action a;
    memset(counts, 0, 9 * sizeof *counts);
    for (int i = 0; sync_rig_poll_one(&a); i++) {
        assert_true(i < 4096);
        counts[a.type]++;
    }
}

void sync_rig_drain_all(void)
{
    int counts[9];
    sync_rig_drain(counts);
}

/* Sleeps until an action is due. */
void sync_rig_sleep_until_due(void)
{
    uint64_t at = sync_deadline_us(&sync_rig.s);
    assert_true(at != UINT64_MAX);
    if (at > sync_rig.now) sync_rig.now = at;
}

struct msg_welcome sync_rig_welcome(uint64_t session, bool resume, uint64_t current, uint64_t snapshot)
{
    struct msg_welcome w = {.session = session,
                            .worker_id = 3,
                            .heartbeat_ms = 1000,
                            .n_fragments = sync_rig.s.n_fragments,
                            .resume = resume};
    for (uint32_t i = 0; i < sync_rig.s.n_fragments; i++) {
        w.current[i].version = current;
        w.snapshot[i].version = snapshot;
    }
    return w;
}

struct msg_assign sync_rig_assign(uint64_t round, uint64_t version)
{
    struct msg_assign m = {.round = round,
                           .worker_id = 3,
                           .steps = 10,
                           .step_rate = 1,
                           .n_ranges = 1,
                           .n_fragments = sync_rig.s.n_fragments};
    for (uint32_t i = 0; i < sync_rig.s.n_fragments; i++) m.versions[i] = version;
    return m;
}

struct msg_eval sync_rig_eval(uint64_t id, uint64_t version)
{
    struct msg_eval m = {
        .eval_id = id, .start = 5, .count = 7, .part = 4, .wanted = 3, .n_fragments = sync_rig.s.n_fragments};
    for (uint32_t i = 0; i < sync_rig.s.n_fragments; i++) m.versions[i] = version;
    return m;
}

void sync_rig_refuse(uint16_t code)
{
    struct msg_refuse m = {.code = code, .text = "because"};
    sync_on_refuse(&sync_rig.s, &m, sync_rig.now);
}

/* Joins with `version` of every fragment, READY, no action due. */
void sync_rig_start(bool async, uint32_t n_fragments, uint64_t version)
{
    uint64_t versions[LAYOUT_FRAGMENTS_MAX];
    for (uint32_t i = 0; i < n_fragments; i++) versions[i] = version;
    sync_rig.now = 100 * S;
    sync_init(&sync_rig.s, 42, sync_rig.now);
    sync_rig_drain_all();
    assert_true(sync_on_config(&sync_rig.s, sync_rig.now));
    sync_configured(&sync_rig.s, async, n_fragments, versions, sync_rig.now);
    sync_rig_drain_all();
    struct msg_welcome w = sync_rig_welcome(7, true, version, 0);
    assert_true(sync_on_welcome(&sync_rig.s, &w, sync_rig.now));
    sync_rig_drain_all();
    assert_int_equal(sync_rig.s.state, WORKER_READY);
}

void sync_rig_give(uint64_t round, uint64_t version)
{
    struct msg_assign m = sync_rig_assign(round, version);
    assert_true(sync_on_assign(&sync_rig.s, &m, sync_rig.now));
}

void sync_rig_train(uint64_t round, uint64_t version, uint64_t bytes)
{
    uint64_t sizes[LAYOUT_FRAGMENTS_MAX];
    for (uint32_t i = 0; i < sync_rig.s.n_fragments; i++) sizes[i] = bytes;
    sync_rig_give(round, version);
    assert_true(sync_wants_training(&sync_rig.s));
    sync_train_begin(&sync_rig.s, sync_rig.now);
    assert_int_equal(sync_rig.s.state, WORKER_TRAINING);
    sync_segment_done(&sync_rig.s);
    sync_work_ready(&sync_rig.s, round, sizes, sync_rig.now);
    assert_int_equal(sync_rig.s.state, WORKER_SENDING);
}

void sync_rig_credit(uint64_t round, uint32_t fragment, uint64_t have, uint64_t upto)
{
    struct msg_credit m = {.round = round, .fragment = fragment, .have = have, .upto = upto};
    sync_on_credit(&sync_rig.s, &m, sync_rig.now);
}

bool sync_rig_reject(uint64_t round, uint32_t fragment)
{
    struct msg_reject m = {.round = round, .fragment = fragment, .code = REJECT_LATE};
    return sync_on_reject(&sync_rig.s, &m, sync_rig.now);
}

/* Receives and applies the whole update after the held version. */
enum sync_verdict sync_rig_update(uint32_t fragment, uint64_t round, uint64_t named)
{
    uint32_t f;
    sync_rig_drain_all(); /* the GET */
    assert_true(sync_expects(&sync_rig.s, OBJECT_UPDATE, fragment, sync_rig.s.f[fragment].version + 1));
    sync_on_progress(&sync_rig.s, fragment, 1000, 1000, sync_rig.now);
    assert_true(sync_apply(&sync_rig.s, &f));
    assert_int_equal(f, fragment);
    return sync_applied(&sync_rig.s, fragment, round, named, sync_rig.now);
}

/* From HELLO to WELCOME with the machine's versions; returns the result of sync_on_welcome. */
void sync_rig_join_again(uint64_t session, bool resume, uint64_t current, uint64_t snapshot)
{
    sync_rig_expect(SYNC_SEND_HELLO);
    assert_true(sync_on_config(&sync_rig.s, sync_rig.now));
    sync_configured(&sync_rig.s, false, sync_rig.s.n_fragments, NULL, sync_rig.now);
    sync_rig_expect(SYNC_SEND_JOIN);
    struct msg_welcome w = sync_rig_welcome(session, resume, current, snapshot);
    assert_true(sync_on_welcome(&sync_rig.s, &w, sync_rig.now));
}
