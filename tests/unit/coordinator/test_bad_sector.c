/* Bytes that the disk cannot read, and changed bytes, in any file of a stopped run: the run starts, or `atoll repair`
 * makes it start, with all rounds before the damage. ctest: timeout=180 */

#include "common/base/log.h"
#include "common/base/mem.h"
#include "coordinator/ledger/repair.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/store/store_mem.h"
#include "tests/lib/test.h"

enum { SEGMENTS_MAX = 16, ROUNDS = 8, BLOCK = 512 };

static struct rig rig;
static struct err err;
static struct store *whole; /* a stopped run: eight rounds with checkpoints 0, 3, 6, 8; all of the journal is there */
static uint64_t theta;
static uint64_t segments[SEGMENTS_MAX], checkpoints[SEGMENTS_MAX];
static size_t n_segments, n_checkpoints;
static char said[4096]; /* the warnings */

static const char *const diloco[] = {"coordinator.min_workers=2",
                                     "codec.up=int8:16",
                                     "codec.down=int8:16",
                                     "checkpoint.every=3",
                                     "checkpoint.keep=0",
                                     "train.max_steps=16",
                                     NULL};
static const char *const ddp[] = {"train.method=ddp", "coordinator.min_workers=2", "train.max_steps=8",
                                  "checkpoint.every=3", NULL};

static void keep_warnings(void *ctx, enum log_level level, const char *line)
{
    (void)ctx;
    size_t n = strlen(said);
    if (level <= LOG_WARN) snprintf(said + n, sizeof said - n, "%s\n", line);
}

static void list_files(struct store *store)
{
    assert_int_equal(store->ops->segment_list(store, segments, SEGMENTS_MAX, &n_segments, NULL), STATUS_OK);
    assert_int_equal(store->ops->checkpoint_list(store, checkpoints, SEGMENTS_MAX, &n_checkpoints, NULL), STATUS_OK);
}

static void copy_store(void)
{
    size_t live = mem_live_bytes();
    if (whole) store_mem_destroy(whole);
    assert_int_equal(store_mem_copy(&whole, rig.store), STATUS_OK);
    rig.live += mem_live_bytes() - live;
}

static void play(const char *const *settings, void (*note)(void))
{
    rig_open(&rig, settings);
    rig_join(&rig, 0);
    rig_join(&rig, 1);
    rig_play(&rig, note);
    theta = rig_theta_hash(&rig);
    if (!note) copy_store();
    list_files(whole);
    rig_close(&rig);
}

/* A copy of the run on a stopped rig. */
static void take_copy(const char *const *settings)
{
    said[0] = '\0';
    err = (struct err){0};
    rig_open(&rig, settings);
    engine_destroy(rig.engine);
    store_mem_destroy(rig.store);
    rig.engine = NULL;
    assert_int_equal(store_mem_copy(&rig.store, whole), STATUS_OK);
    rig_forget(&rig);
    log_set_sink(keep_warnings, NULL); /* rig_open sets another one */
}

static void start(const char *what)
{
    if (rig_start(&rig, &err) != STATUS_OK) fail_msg("%s: %s", what, err.msg);
}

static uint64_t rounds(void)
{
    struct engine_summary sum;
    engine_summary(rig.engine, &sum);
    return sum.rounds;
}

static void stop(void)
{
    engine_destroy(rig.engine);
    rig.engine = NULL;
}

enum { FLIP, UNREADABLE, DAMAGES };

static void damage(int how, uint64_t segment, size_t at)
{
    size_t size;
    uint8_t *bytes = store_mem_segment(rig.store, segment, &size, NULL);
    assert_true(bytes && at < size);
    if (how == FLIP)
        bytes[at] ^= 4;
    else
        store_mem_spoil(rig.store, segment, at / BLOCK * BLOCK, at / BLOCK * BLOCK + BLOCK);
}

/* Only workers that are far behind need the journal before the newest checkpoint. */
TEST(test_older_segments_cost_no_round)
{
    char what[64];
    size_t size, left;
    for (size_t i = 0; i + 1 < n_segments; i++) {
        assert_non_null(store_mem_segment(whole, segments[i], &size, NULL));
        for (size_t step = 0; step < 5 * DAMAGES; step++) {
            take_copy(diloco);
            damage((int)(step % DAMAGES), segments[i], step / DAMAGES * (size - 1) / 4);
            snprintf(what, sizeof what, "segment %d, damage %zu", (int)segments[i], step);
            start(what);
            assert_int_equal(rounds(), ROUNDS);
            assert_true(rig_theta_hash(&rig) == theta);
            list_files(rig.store);
            left = n_checkpoints;
            list_files(whole);
            assert_int_equal(left, n_checkpoints - i); /* segment i + 1 begins after checkpoint i */
            assert_int_equal(strstr(said, "recovered without it from the newest checkpoint, nothing is lost") != NULL,
                             i > 0); /* no start reads segment 0: it ends at the oldest checkpoint */
            assert_int_equal(strstr(said, "put checkpoint round_000000 aside as ") != NULL, i > 0);
            stop();
            said[0] = '\0';
            start("again");
            assert_string_equal(said, "");
            rig_close(&rig);
        }
    }
}

TEST(test_unreadable_checkpoints_are_skipped)
{
    char what[64];
    for (size_t i = 0; i < n_checkpoints; i++)
        for (int file = 0; file < 3; file++) {
            uint64_t size, at = 0;
            take_copy(diloco);
            assert_int_equal(rig.store->ops->checkpoint_state_size(rig.store, checkpoints[i], &size, NULL), STATUS_OK);
            if (file == 1) at = size - 10; /* in the momentum */
            (file < 2 ? store_mem_spoil_state : store_mem_spoil_theta)(rig.store, checkpoints[i], at, at + 10);
            snprintf(what, sizeof what, "file %d of checkpoint %d", file, (int)checkpoints[i]);
            start(what);
            assert_int_equal(rounds(), ROUNDS);
            assert_true(rig_theta_hash(&rig) == theta);
            bool newest = i + 1 == n_checkpoints, read = newest || file == 0; /* of older ones only the head is read */
            if (!strstr(said, "nothing is lost") == read) fail_msg("%s: %s", what, said);
            rig_close(&rig);
        }
}

static void ignore_move(void *ctx, const char *from, const char *to)
{
    (void)ctx, (void)from, (void)to;
}

/* The journal behind the only checkpoint that is left: repair cuts it at the damage. */
TEST(test_unreadable_journal_is_repaired)
{
    uint64_t segment = segments[n_segments - 2], least = 6, most = 6;
    size_t size;
    assert_non_null(store_mem_segment(whole, segment, &size, NULL));
    assert_true(size > 4 * (size_t)BLOCK);
    for (size_t at = 0; at < size; at += BLOCK) {
        struct repair r;
        take_copy(diloco);
        assert_int_equal(rig.store->ops->checkpoint_remove(rig.store, 8, NULL), STATUS_OK);
        damage(UNREADABLE, segment, at);
        assert_int_equal(rig_start(&rig, &err), STATUS_CORRUPT);
        assert_non_null(strstr(err.msg, ", which the disk cannot read, before records that were synced: restore it"));
        rig.engine = NULL;
        if (repair_run(&r, rig.store, ignore_move, NULL, &err) != STATUS_OK) fail_msg("byte %zu: %s", at, err.msg);
        assert_true(r.cut && r.at <= at && r.rounds_kept >= least && r.rounds_kept + r.rounds_lost <= ROUNDS);
        most = r.rounds_kept > most ? r.rounds_kept : most;
        start("after repair");
        assert_int_equal(rounds(), r.rounds_kept);
        rig_join(&rig, 0);
        rig_join(&rig, 1);
        rig_play(&rig, NULL);
        assert_true(rig_theta_hash(&rig) == theta);
        repair_finish(&r);
        rig_close(&rig);
    }
    assert_true(most > least);
}

static void note_ddp(void)
{
    struct engine_summary sum;
    engine_summary(rig.engine, &sum);
    if (sum.rounds == 5) copy_store(); /* its last segment holds rounds 4 and 5, which are not synced */
}

/* ddp: a crash cuts the last record. Where whole records follow, it is damage, and the records are kept aside. */
TEST(test_damaged_tail_is_no_incomplete_record)
{
    size_t size;
    int aside = 0, cut = 0, named = 0;
    play(ddp, note_ddp);
    uint64_t segment = segments[n_segments - 1];
    assert_non_null(store_mem_segment(whole, segment, &size, NULL));
    for (size_t at = 0; at < size; at += 7) {
        char line[64];
        take_copy(ddp);
        damage(FLIP, segment, at);
        start("a damaged tail");
        assert_true(rounds() >= 3 && rounds() <= 5);
        snprintf(line, sizeof line, "journal/%08d.log is damaged at byte ", (int)segment);
        const char *damaged = strstr(said, line), *incomplete = strstr(said, "the crash left an incomplete record");
        if (!damaged == !incomplete) fail_msg("byte %zu: %s", at, said);
        if (damaged) {
            assert_non_null(strstr(damaged, "; the file is kept as journal.damaged/"));
            assert_null(strstr(damaged, " 0 whole records"));
        }
        if (rounds() == 3 && damaged) named += strstr(damaged, " updates, rounds 4 to 5)") != NULL;
        aside += damaged != NULL;
        cut += incomplete != NULL;
        if (incomplete) assert_true(at > size / 2);
        rig_join(&rig, 0);
        rig_join(&rig, 1);
        rig_play(&rig, NULL);
        assert_true(rig_theta_hash(&rig) == theta);
        rig_close(&rig);
    }
    assert_true(aside > 10 && cut > 3 && named > 3);
}

static int play_once(void **state)
{
    (void)state;
    play(diloco, NULL);
    return n_checkpoints == 4 && n_segments == 5 ? 0 : -1;
}

static int forget(void **state)
{
    (void)state;
    store_mem_destroy(whole);
    return 0;
}

TEST_MAIN(play_once, forget)
