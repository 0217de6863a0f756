/* Objects that workers get of the engine: requests that are parked, lanes that are full, snapshots, updates kept for
 * those behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "coordinator/ledger/store.h"
#include "tests/lib/rigs/engine_rig.h"
#include "wire/object.h"

static struct rig rig;

static void test_parked_get(void **state)
{
    (void)state;
    struct msg m;
    uint8_t object[8192];
    rig_open(&rig, NULL);
    rig_join(&rig, 0);
    rig_assigned(&rig, 0);
    for (uint32_t f = 0; f < 2; f++) assert_int_equal(rig_get(&rig, 0, OBJECT_UPDATE, f, 1, object, sizeof object), 0);
    assert_int_equal(rig_deliver(&rig, 0, 1, 1).type, MSG_CREDIT);
    rig_expect(&rig, 0, MSG_CHUNK, &m); /* at once, without another request */
    assert_int_equal(m.chunk.fragment, 1);
    assert_int_equal(m.chunk.key, 1);
    rig_expect_none(&rig, 0, MSG_CHUNK);
    assert_int_equal(rig_deliver(&rig, 0, 0, 1).type, MSG_CREDIT);
    rig_expect(&rig, 0, MSG_CHUNK, &m);
    assert_int_equal(m.chunk.fragment, 0);
    /* from an offset: the tail */
    struct msg get = {.type = MSG_GET,
                      .get = {.session = rig.workers[0].session,
                              .kind = OBJECT_UPDATE,
                              .version = 1,
                              .offset = m.chunk.total - 3,
                              .length = 1000}};
    rig_say(&rig, rig.workers[0].control, &get);
    uint8_t tail[3];
    memcpy(tail, m.chunk.data + m.chunk.total - 3, 3);
    rig_expect(&rig, 0, MSG_CHUNK, &m);
    assert_int_equal(m.chunk.size, 3);
    assert_memory_equal(m.chunk.data, tail, 3);
    rig_close(&rig);
}

/* A full lane: the request stays and is served when there is room. A peer that is gone is not written to again. */
static void test_full_lane(void **state)
{
    (void)state;
    uint8_t object[8192];
    struct msg m;
    rig_open(&rig, NULL);
    rig_join(&rig, 0);
    rig_assigned(&rig, 0);
    rig.bulk_answer = STATUS_AGAIN;
    assert_int_equal(rig_get(&rig, 0, OBJECT_SNAPSHOT, 0, 0, object, sizeof object), 0);
    assert_true(engine_next_deadline_us(rig.engine) <= rig.now + 10000);
    rig.bulk_answer = STATUS_OK;
    rig_wait(&rig, 20000);
    rig_expect(&rig, 0, MSG_CHUNK, &m);
    rig.bulk_answer = STATUS_CLOSED;
    assert_int_equal(rig_get(&rig, 0, OBJECT_SNAPSHOT, 0, 0, object, sizeof object), 0);
    rig.bulk_answer = STATUS_OK;
    rig_wait(&rig, 20000);
    rig_expect_none(&rig, 0, MSG_CHUNK);
    m = (struct msg){.type = MSG_BIND, .bind.session = rig.workers[0].session};
    rig_say(&rig, rig.workers[0].bulk, &m); /* back: what was asked for goes on */
    rig_expect(&rig, 0, MSG_CHUNK, &m);
    rig_close(&rig);
}

/* A reader that takes nothing for long costs little, however many messages come; after that it is served at once. */
static void test_lane_full_for_long(void **state)
{
    (void)state;
    uint8_t object[8192];
    struct msg m;
    rig_open(&rig, NULL);
    rig_join(&rig, 0);
    rig_assigned(&rig, 0);
    rig.bulk_answer = STATUS_AGAIN;
    assert_int_equal(rig_get(&rig, 0, OBJECT_SNAPSHOT, 0, 0, object, sizeof object), 0);
    for (int i = 0; i < 1000; i++) rig_beat(&rig, 0, WORKER_TRAINING); /* a second */
    assert_in_range(rig.bulk_refused, 5, 12);
    rig.bulk_answer = STATUS_OK;
    m = (struct msg){.type = MSG_BIND, .bind.session = rig.workers[0].session};
    rig_say(&rig, rig.workers[0].bulk = 777, &m); /* a new connection is empty */
    rig_expect(&rig, 0, MSG_CHUNK, &m);
    rig_close(&rig);
}

static void test_snapshot_bytes(void **state)
{
    (void)state;
    const char *settings[] = {"checkpoint.every=1", "checkpoint.keep=2", NULL};
    uint8_t object[8192];
    struct snapshot_head head;
    rig_open(&rig, settings);
    rig_join(&rig, 0);
    for (uint64_t version = 0; version < 2; version++) {
        rig_assigned(&rig, 0);
        for (uint32_t f = 0; f < 2; f++) {
            const struct fragment *frag = &rig.layout.fragments[f];
            size_t size = rig_get(&rig, 0, OBJECT_SNAPSHOT, f, version, object, sizeof object);
            assert_int_equal(size, SNAPSHOT_HEAD_BYTES + frag->count * 4);
            assert_int_equal(snapshot_head_decode(&head, object, SNAPSHOT_HEAD_BYTES), STATUS_OK);
            assert_int_equal(head.version, version);
            assert_true(head.hash == hash_floats(NULL, engine_theta(rig.engine) + frag->offset, frag->count));
            assert_memory_equal(object + SNAPSHOT_HEAD_BYTES, engine_theta(rig.engine) + frag->offset, frag->count * 4);
        }
        rig_deliver_all(&rig, 1, 1);
    }
    rig_close(&rig);
}

/* Checkpoints beyond `keep` go, but never the update somebody still has to apply. */
static void test_kept_for_those_behind(void **state)
{
    (void)state;
    const char *settings[] = {"checkpoint.every=1", "checkpoint.keep=1", "coordinator.min_workers=2",
                              "train.max_steps=20", NULL};
    uint8_t object[8192];
    struct msg m;
    uint64_t list[64];
    size_t n;
    rig_open(&rig, settings);
    rig_join(&rig, 0);
    rig_join(&rig, 1);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
        for (int i = 0; i < 2; i++)
            for (uint32_t f = 0; f < 2; f++) assert_int_equal(rig_deliver(&rig, i, f, 1).type, MSG_CREDIT);
        rig_catch_up(&rig, 0); /* worker-1 only says that it waits, at the version it had */
        rig_beat(&rig, 1, WORKER_WAITING);
    }
    for (uint64_t v = 1; v <= 4; v++) assert_true(rig_get(&rig, 1, OBJECT_UPDATE, 0, v, object, sizeof object) > 0);
    rig_catch_up(&rig, 1);
    /* Nor the one that a worker killed now would begin with: its state was saved before version 4. */
    assert_int_equal(rig.store->ops->snapshot_list(rig.store, list, 64, &n, NULL), STATUS_OK);
    assert_int_equal(n, 2);
    assert_int_equal(list[0], 3);
    assert_true(rig_get(&rig, 1, OBJECT_UPDATE, 0, 4, object, sizeof object) > 0);
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    assert_int_equal(rig_deliver(&rig, 0, 0, 1).type, MSG_CREDIT);
    assert_int_equal(rig_deliver(&rig, 0, 1, 1).type, MSG_CREDIT);
    assert_int_equal(rig_deliver(&rig, 1, 0, 1).type, MSG_CREDIT);
    for (int i = 0; i < 2; i++) rig_beat(&rig, i, WORKER_WAITING);
    assert_int_equal(rig.store->ops->snapshot_list(rig.store, list, 64, &n, NULL), STATUS_OK);
    assert_int_equal(n, 2);
    assert_int_equal(rig_deliver(&rig, 1, 1, 1).type, MSG_CREDIT); /* the last one: saved since version 4, all of it */
    for (int i = 0; i < 2; i++) rig_catch_up(&rig, i);
    assert_int_equal(rig.store->ops->snapshot_list(rig.store, list, 64, &n, NULL), STATUS_OK);
    assert_int_equal(n, 2);
    assert_int_equal(list[0], 4);
    assert_int_equal(list[1], 5);
    assert_int_equal(rig.store->ops->segment_list(rig.store, list, 64, &n, NULL), STATUS_OK);
    assert_int_equal(n, 2);
    assert_int_equal(rig_get(&rig, 1, OBJECT_UPDATE, 0, 4, object, sizeof object), 0);
    rig_expect(&rig, 1, MSG_REFUSE, &m);
    assert_int_equal(m.refuse.code, REFUSE_GONE);
    assert_int_equal(rig_get(&rig, 1, OBJECT_SNAPSHOT, 0, 3, object, sizeof object), 0);
    rig_expect(&rig, 1, MSG_REFUSE, &m);
    assert_int_equal(m.refuse.code, REFUSE_GONE);
    rig_close(&rig);
}

static size_t listed(store_list_fn list)
{
    uint64_t *numbers;
    size_t n;
    assert_int_equal(store_list(rig.store, list, &numbers, &n, NULL), STATUS_OK);
    mem_free(numbers);
    return n;
}

/* A round that closes without worker-1, whose work is refused when it is ready with the next one. */
static void round_without_the_late_one(bool catches_up)
{
    rig_assigned(&rig, 0);
    for (uint32_t f = 0; f < 2; f++) assert_int_equal(rig_deliver(&rig, 0, f, 1).type, MSG_CREDIT);
    for (int i = 0; i < 3; i++) { /* the limit of one second, and no eviction */
        rig_beat(&rig, 0, WORKER_WAITING);
        rig_beat(&rig, 1, WORKER_TRAINING);
        rig_wait(&rig, 500000);
    }
    if (catches_up) rig_catch_up(&rig, 1);
    rig_catch_up(&rig, 0);
    rig_forget(&rig);
    rig_beat(&rig, 0, WORKER_READY); /* its assignment again */
}

/* Nothing is kept for a worker that is late in every round, and not everything for one that goes on training from where
 * it was: its updates are gone then, and it joins again. */
static void test_not_kept_for_the_late(void **state)
{
    (void)state;
    const char *settings[] = {"checkpoint.every=1",   "checkpoint.keep=1",   "coordinator.min_workers=2",
                              "coordinator.quorum=1", "train.max_steps=200", NULL};
    uint8_t object[8192];
    struct msg m;
    rig_open(&rig, settings);
    rig_join(&rig, 0);
    rig_join(&rig, 1);
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    rig_deliver_all(&rig, 2, 1); /* once it was in time */
    for (int round = 0; round < 6; round++) {
        round_without_the_late_one(true);
        assert_true(listed(rig.store->ops->snapshot_list) <= 3);
    }
    for (int round = 0; round < 40; round++) round_without_the_late_one(false);
    assert_int_equal(listed(rig.store->ops->snapshot_list), 1 + 32);
    assert_int_equal(rig_get(&rig, 1, OBJECT_UPDATE, 0, 8, object, sizeof object), 0);
    rig_expect(&rig, 1, MSG_REFUSE, &m);
    assert_int_equal(m.refuse.code, REFUSE_GONE);
    rig_restart(&rig, false, 0);
    rig_close(&rig);
}

static enum status numbers(struct store *s, uint64_t *out, size_t cap, size_t *n_p, struct err *err)
{
    enum { MANY = 10000 };
    (void)s;
    for (size_t i = 0; i < cap && i < MANY; i++) out[i] = i;
    if (cap < MANY) return err_set(err, STATUS_LIMIT, "too many files");
    *n_p = MANY;
    return STATUS_OK;
}

/* checkpoint.keep of 0 keeps every one of them. */
static void test_many_files(void **state)
{
    (void)state;
    uint64_t *list;
    size_t n;
    struct err err = {0};
    assert_int_equal(store_list(NULL, numbers, &list, &n, &err), STATUS_OK);
    assert_int_equal(err.code, 0);
    assert_int_equal(n, 10000);
    assert_int_equal(list[n - 1], n - 1);
    mem_free(list);
}

static enum status stays(struct store *s, uint64_t number, struct err *err)
{
    (void)s;
    return err_set(err, STATUS_IO, "cannot remove %d: Read-only file system", (int)number);
}

/* What cannot be removed stays, and the run goes on: a checkpoint with all that is behind it, segments until the next
 * start. That one removes them at any time of its clock. */
static void test_cannot_be_removed(void **state)
{
    (void)state;
    const char *settings[] = {"checkpoint.every=1", "checkpoint.keep=1", "train.max_steps=20", NULL};
    rig_open(&rig, settings);
    rig_join(&rig, 0);
    const struct store_ops *ops = rig.store->ops;
    struct store_ops refusing = *ops;
    refusing.snapshot_remove = stays;
    rig.store->ops = &refusing;
    for (int round = 0; round < 4; round++) {
        rig_assigned(&rig, 0);
        rig_deliver_all(&rig, 1, 1);
    }
    assert_int_equal(listed(ops->snapshot_list), 5);
    assert_int_equal(listed(ops->segment_list), 6);
    rig_restart(&rig, false, 0); /* all of it fits together */
    refusing.snapshot_remove = ops->snapshot_remove;
    refusing.segment_remove = stays;
    rig_join(&rig, 0);
    for (int round = 0; round < 2; round++) {
        rig_assigned(&rig, 0);
        rig_deliver_all(&rig, 1, 1);
    }
    assert_int_equal(listed(ops->snapshot_list), 2);
    assert_int_equal(listed(ops->segment_list), 8);
    rig.store->ops = ops;
    rig_restart(&rig, false, 0);
    rig_join(&rig, 0);
    assert_int_equal(listed(ops->snapshot_list), 2);
    assert_int_equal(listed(ops->segment_list), 2);
    rig_close(&rig);
}

/* A worker that saves its state every third round may come back as it was two rounds ago. */
static void test_kept_for_states_that_are_older(void **state)
{
    (void)state;
    const char *settings[] = {"checkpoint.every=1", "checkpoint.keep=1", "checkpoint.worker_every=3",
                              "train.max_steps=40", NULL};
    uint64_t list[64];
    size_t n;
    rig_open(&rig, settings);
    rig_join(&rig, 0);
    for (uint64_t round = 0; round < 8; round++) {
        rig_assigned(&rig, 0);
        for (uint32_t f = 0; f < 2; f++) assert_int_equal(rig_deliver(&rig, 0, f, 1).type, MSG_CREDIT);
        rig_catch_up(&rig, 0);
        assert_int_equal(rig.store->ops->snapshot_list(rig.store, list, 64, &n, NULL), STATUS_OK);
        assert_int_equal(list[0], round / 3 * 3);
        assert_int_equal(list[n - 1], round + 1);
    }
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parked_get),
        cmocka_unit_test(test_full_lane),
        cmocka_unit_test(test_lane_full_for_long),
        cmocka_unit_test(test_snapshot_bytes),
        cmocka_unit_test(test_kept_for_those_behind),
        cmocka_unit_test(test_not_kept_for_the_late),
        cmocka_unit_test(test_many_files),
        cmocka_unit_test(test_cannot_be_removed),
        cmocka_unit_test(test_kept_for_states_that_are_older),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
