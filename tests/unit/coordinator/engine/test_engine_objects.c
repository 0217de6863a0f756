/* Objects that workers download from the engine: parked requests, full lanes, snapshots, and updates kept for
 * workers that are behind. */

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "coordinator/ledger/store.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/store/store_mem.h"
#include "tests/lib/test.h"
#include "wire/object.h"

static struct rig rig;

static size_t listed(store_list_fn list)
{
    uint64_t *numbers;
    size_t n;
    assert_int_equal(store_list(rig.store, list, &numbers, &n, NULL), STATUS_OK);
    mem_free(numbers);
    return n;
}

/* A round closes without worker-1, whose delta is refused when it is ready with the next one. */
static void round_without_late_worker(bool catches_up)
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

/* No update is kept for a worker that is late in every round, nor for one that keeps training from its old version when
 * a snapshot is shorter than they are: it joins again. */
TEST(test_updates_are_not_kept_for_late_worker)
{
    const char *settings[] = {"checkpoint.every=1",   "checkpoint.keep=1",   "coordinator.min_workers=2",
                              "coordinator.quorum=1", "train.max_steps=200", NULL};
    uint8_t object[8192];
    struct msg m;
    rig_open_with(&rig, settings, 2, true);
    rig_deliver_all(&rig, 2, 1); /* once in time */
    for (int round = 0; round < 6; round++) {
        round_without_late_worker(true);
        assert_true(listed(rig.store->ops->checkpoint_list) <= 3);
    }
    for (int round = 0; round < 40; round++) {
        round_without_late_worker(false);
        assert_true(listed(rig.store->ops->checkpoint_list) <= 5);
    }
    assert_int_equal(rig_get(&rig, 1, OBJECT_UPDATE, 0, 8, object, sizeof object), 0);
    rig_expect(&rig, 1, MSG_REFUSE, &m);
    assert_int_equal(m.refuse.code, REFUSE_GONE);
    rig_restart(&rig, false, 0);
    rig_close(&rig);
}

/* A worker keeps old checkpoints for as long as the disk has room for them, and one in any case. */
TEST(test_a_full_disk_keeps_few_checkpoints)
{
    const char *settings[] = {"checkpoint.every=1",   "checkpoint.keep=1",   "coordinator.min_workers=2",
                              "coordinator.quorum=1", "train.max_steps=200", NULL};
    static const struct {
        uint64_t free;
        size_t most;
    } cases[] = {{1 << 20, 14}, {10000, 3}, {0, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig_open_with(&rig, settings, 2, true);
        store_mem_set_free(rig.store, cases[i].free);
        rig_deliver_all(&rig, 2, 1);
        size_t most = 0;
        for (int round = 0; round < 12; round++) {
            rig_say_join(&rig, 2); /* it needs the newest snapshot, and never gets on */
            round_without_late_worker(false);
            size_t n = listed(rig.store->ops->checkpoint_list);
            if (n > most) most = n;
        }
        assert_int_equal(most, cases[i].most);
        rig_close(&rig);
    }
}

/* The same after a restart, before the next checkpoint. */
TEST(test_a_disk_that_fills_up_keeps_few_checkpoints_after_a_restart)
{
    const char *settings[] = {"checkpoint.every=1",   "checkpoint.keep=1",   "coordinator.min_workers=2",
                              "coordinator.quorum=1", "train.max_steps=200", NULL};
    rig_open_with(&rig, settings, 2, true);
    rig_deliver_all(&rig, 2, 1);
    for (int round = 0; round < 12; round++) {
        rig_say_join(&rig, 2);
        round_without_late_worker(false);
    }
    assert_true(listed(rig.store->ops->checkpoint_list) > 10);
    store_mem_set_free(rig.store, 0);
    rig_restart(&rig, false, 0);
    rig_join(&rig, 0);
    assert_int_equal(listed(rig.store->ops->checkpoint_list), 2);
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

/* A checkpoint.keep of 0 keeps every checkpoint. */
static size_t snapshot_bytes(int worker, uint64_t version, const float *theta)
{
    size_t all = 0;
    for (uint32_t f = 0; f < 2; f++) {
        static uint8_t object[8192];
        const struct fragment *frag = &rig.layout.fragments[f];
        size_t size = rig_get(&rig, worker, OBJECT_SNAPSHOT, f, version, object, sizeof object);
        assert_int_equal(size, SNAPSHOT_HEAD_BYTES + frag->count * 4);
        assert_memory_equal(object + SNAPSHOT_HEAD_BYTES, theta + frag->offset, frag->count * 4);
        all += size;
    }
    return all;
}

static void play_rounds(int n)
{
    for (int i = 0; i < n; i++) {
        rig_assigned(&rig, 0);
        rig_deliver_all(&rig, 1, 1);
    }
}

/* A late joiner loads theta of the current versions, not the newest checkpoint and all updates after it. */
TEST(test_late_joiner_gets_fresh_snapshot)
{
    const char *settings[] = {"checkpoint.every=100", "train.max_steps=100", NULL};
    struct msg m;
    rig_open_with(&rig, settings, 1, false);
    play_rounds(5);
    rig_assigned(&rig, 0);
    assert_int_equal(rig_deliver(&rig, 0, 0, 1).type,
                     MSG_CREDIT); /* in the middle of a round: one fragment is closed */
    uint64_t hash = rig_theta_hash(&rig), spooled = store_mem_counts(rig.store).spooled;
    rig_join(&rig, 1);
    assert_false(rig.workers[1].resume);
    assert_int_equal(rig.workers[1].versions[0], 6);
    assert_int_equal(rig.workers[1].versions[1], 5);
    assert_int_equal(store_mem_counts(rig.store).spooled - spooled, RIG_PARAMS * sizeof(float));
    assert_true(rig_theta_hash(&rig) == hash);
    assert_int_equal(rig_deliver(&rig, 0, 1, 1).type, MSG_CREDIT);
    rig_catch_up(&rig, 0);
    rig_catch_up(&rig, 1);
    rig_assigned(&rig, 0);
    /* The next joiner uses the same snapshot while that saves bytes. */
    spooled = store_mem_counts(rig.store).spooled;
    rig_join(&rig, 2);
    assert_int_equal(rig.workers[2].versions[1], 5);
    assert_int_equal(store_mem_counts(rig.store).spooled, spooled);
    rig_close(&rig);
    /* A worker that still loads it keeps it. After that a new one replaces it, and the old one is gone. */
    rig_open_with(&rig, settings, 1, false);
    play_rounds(3);
    rig_join(&rig, 1);
    rig_beat(&rig, 1, WORKER_CATCHING_UP);
    float theta[RIG_PARAMS];
    memcpy(theta, engine_theta(rig.engine), sizeof theta);
    play_rounds(1);
    assert_int_equal(snapshot_bytes(1, 3, theta), 2 * SNAPSHOT_HEAD_BYTES + sizeof theta);
    rig_join(&rig, 2);
    assert_int_equal(rig.workers[2].versions[0], 3);
    rig_beat(&rig, 1, WORKER_READY);
    rig_beat(&rig, 2, WORKER_READY);
    play_rounds(1);
    rig_join(&rig, 3);
    assert_int_equal(rig.workers[3].versions[0], 5);
    snapshot_bytes(3, 5, engine_theta(rig.engine));
    m = (struct msg){.type = MSG_GET,
                     .get = {.session = rig.workers[1].session, .kind = OBJECT_SNAPSHOT, .version = 3, .length = 99}};
    rig_say(&rig, rig.workers[1].control, &m);
    rig_expect(&rig, 1, MSG_REFUSE, &m);
    assert_int_equal(m.refuse.code, REFUSE_GONE);
    rig_close(&rig);
}

/* Small updates: the checkpoint and a few of them are less than another snapshot. */
TEST(test_small_updates_need_no_fresh_snapshot)
{
    const char *settings[] = {"checkpoint.every=100", "train.max_steps=100", "codec.up=int8:16", "codec.down=int8:16",
                              NULL};
    rig_open_with(&rig, settings, 1, false);
    play_rounds(1);
    rig_join(&rig, 1);
    assert_int_equal(rig.workers[1].versions[0], 0);
    rig_close(&rig);
}

TEST(test_keep_0_keeps_every_checkpoint)
{
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

/* A file that cannot be deleted stays, and the run continues: a checkpoint with all later segments, a segment until
 * the next start. The next start deletes them. */
TEST(test_undeletable_files_do_not_stop_run)
{
    const char *settings[] = {"checkpoint.every=1", "checkpoint.keep=1", "train.max_steps=20", NULL};
    rig_open_with(&rig, settings, 1, false);
    const struct store_ops *ops = rig.store->ops;
    struct store_ops refusing = *ops;
    refusing.checkpoint_remove = stays;
    rig.store->ops = &refusing;
    for (int round = 0; round < 4; round++) {
        rig_assigned(&rig, 0);
        rig_deliver_all(&rig, 1, 1);
    }
    assert_int_equal(listed(ops->checkpoint_list), 5);
    assert_int_equal(listed(ops->segment_list), 6);
    rig_restart(&rig, false, 0); /* checkpoints and segments are consistent */
    refusing.checkpoint_remove = ops->checkpoint_remove;
    refusing.segment_remove = stays;
    rig_join(&rig, 0);
    for (int round = 0; round < 2; round++) {
        rig_assigned(&rig, 0);
        rig_deliver_all(&rig, 1, 1);
    }
    assert_int_equal(listed(ops->checkpoint_list), 2);
    assert_int_equal(listed(ops->segment_list), 8);
    rig.store->ops = ops;
    rig_restart(&rig, false, 0);
    rig_join(&rig, 0);
    assert_int_equal(listed(ops->checkpoint_list), 2);
    assert_int_equal(listed(ops->segment_list), 2);
    rig_close(&rig);
}

/* A worker that saves its state every third round may return with the state of two rounds ago. */
TEST(test_updates_are_kept_for_older_states)
{
    const char *settings[] = {"checkpoint.every=1", "checkpoint.keep=1", "checkpoint.worker_every=3",
                              "train.max_steps=40", NULL};
    uint64_t list[64];
    size_t n;
    rig_open_with(&rig, settings, 1, false);
    for (uint64_t round = 0; round < 8; round++) {
        rig_assigned(&rig, 0);
        for (uint32_t f = 0; f < 2; f++) assert_int_equal(rig_deliver(&rig, 0, f, 1).type, MSG_CREDIT);
        rig_catch_up(&rig, 0);
        assert_int_equal(rig.store->ops->checkpoint_list(rig.store, list, 64, &n, NULL), STATUS_OK);
        assert_int_equal(list[0], round / 3 * 3);
        assert_int_equal(list[n - 1], round + 1);
    }
    rig_close(&rig);
}

TEST_MAIN(NULL, NULL)
