/* Changed bytes, missing files, and bytes that the disk cannot read, anywhere in a stopped run: the run starts, or
 * `atoll repair` makes it start, with every round before the damage, and ends at the same parameters.
 * ctest: timeout=180 */

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "coordinator/ledger/history/repair.h"
#include "coordinator/ledger/journal.h"
#include "coordinator/ledger/record.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/store/powercut.h"
#include "tests/lib/store/store_mem.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

static struct rig rig;
static struct err err;

enum { MARKS_MAX = 512, SEGMENTS_MAX = 16, BLOCK = 512 };

/* The state after each message, by the size of the journal's last segment at that time. */
struct mark {
    uint64_t segment, size, theta, versions[2], rounds;
};

static struct mark marks[MARKS_MAX];
static size_t n_marks;

static struct mark look(void)
{
    struct mark mark = {.theta = rig_theta_hash(&rig)};
    struct engine_summary sum;
    uint64_t list[SEGMENTS_MAX];
    size_t n, size;
    assert_int_equal(rig.store->ops->segment_list(rig.store, list, SEGMENTS_MAX, &n, NULL), STATUS_OK);
    mark.segment = list[n - 1];
    assert_non_null(store_mem_segment(rig.store, mark.segment, &size, NULL));
    mark.size = size;
    engine_summary(rig.engine, &sum);
    mark.rounds = sum.rounds;
    for (uint32_t f = 0; f < 2; f++) mark.versions[f] = engine_version(rig.engine, f);
    return mark;
}

static void note(void)
{
    assert_true(n_marks < MARKS_MAX);
    marks[n_marks++] = look();
}

/* Eight rounds with checkpoints 0, 3, 6, 8; all of the journal stays. */
static const char *const settings[] = {"coordinator.min_workers=2",
                                       "codec.up=int8:16",
                                       "codec.down=int8:16",
                                       "checkpoint.every=3",
                                       "checkpoint.keep=0",
                                       "train.max_steps=16",
                                       NULL};
enum { ROUNDS = 8 };

static struct store *whole;             /* of the complete run */
static uint64_t theta, last, model_end; /* model_end: the end of the MODEL record in segment 0 */
static uint64_t checkpoints[SEGMENTS_MAX];
static size_t n_checkpoints;
static char said[4096]; /* the warnings of a start */

static void keep_warnings(void *ctx, enum log_level level, const char *line)
{
    (void)ctx;
    size_t n = strlen(said);
    if (level <= LOG_WARN) snprintf(said + n, sizeof said - n, "%s\n", line);
}

static enum status find_model(void *ctx, const struct journal_record *record, struct err *why)
{
    (void)ctx, (void)why;
    if (record->type == RECORD_MODEL) model_end = record->at.offset + record->size;
    return STATUS_OK;
}

static void keep_copy(void)
{
    size_t live = mem_live_bytes();
    if (whole) store_mem_destroy(whole);
    assert_int_equal(store_mem_copy(&whole, rig.store), STATUS_OK);
    rig.live += mem_live_bytes() - live;
}

static int play_once(void **state)
{
    (void)state;
    rig_open_with(&rig, settings, 2, false);
    note();
    struct journal_source source;
    if (journal_source_of(&source, rig.store, 0, true, NULL) != STATUS_OK) return -1;
    if (journal_salvage(&source, 0, find_model, NULL, NULL) != STATUS_OK) return -1;
    rig_play(&rig, note);
    theta = rig_theta_hash(&rig);
    last = look().segment;
    if (rig.store->ops->checkpoint_list(rig.store, checkpoints, SEGMENTS_MAX, &n_checkpoints, NULL) != STATUS_OK)
        return -1;
    keep_copy();
    rig_close(&rig);
    return last >= 4 && n_checkpoints == 4 ? 0 : -1;
}

static int forget(void **state)
{
    (void)state;
    store_mem_destroy(whole);
    return 0;
}

/* A copy of the run on a stopped rig, without its newest checkpoints. */
static void take_copy_of(const char *const *how, size_t without)
{
    said[0] = '\0';
    err = (struct err){0};
    rig_open(&rig, how);
    engine_destroy(rig.engine);
    store_mem_destroy(rig.store);
    rig.engine = NULL;
    assert_int_equal(store_mem_copy(&rig.store, whole), STATUS_OK);
    rig_forget(&rig);
    for (size_t i = 0; i < without; i++)
        assert_int_equal(rig.store->ops->checkpoint_remove(rig.store, checkpoints[n_checkpoints - 1 - i], NULL),
                         STATUS_OK);
    log_set_sink(keep_warnings, NULL); /* rig_open sets another one */
}

static void take_copy(size_t without)
{
    take_copy_of(settings, without);
}

static int clear_tmpdir(void **state)
{
    (void)state;
    tmpdir_clear(tmpdir);
    return 0;
}

static void ignore_move(void *ctx, const char *from, const char *to)
{
    (void)ctx, (void)from;
    assert_non_null(strstr(to, ".damaged"));
}

static void start(const char *what)
{
    err = (struct err){0};
    if (rig_start(&rig, &err) != STATUS_OK) fail_msg("%s: %s", what, err.msg);
}

/* The newest state of the run that lies completely before this byte. */
static const struct mark *before(uint64_t segment, uint64_t at)
{
    const struct mark *found = &marks[0];
    for (size_t i = 0; i < n_marks; i++)
        if (marks[i].segment < segment || (marks[i].segment == segment && marks[i].size <= at)) found = &marks[i];
    return found;
}

/* Whether a state of these versions was ever there, with this theta. */
static bool existed(const struct mark *m)
{
    bool any = false;
    for (size_t i = 0; i < n_marks; i++) {
        if (marks[i].versions[0] != m->versions[0] || marks[i].versions[1] != m->versions[1]) continue;
        if (marks[i].theta == m->theta) return true;
        any = true;
    }
    return !any; /* between two messages */
}

/* Repairs, starts and compares. `least`: the state that must survive. */
static void repair_and_start(const char *what, const struct mark *least, bool play)
{
    struct repair r, again;
    err = (struct err){0};
    if (repair_run(&r, rig.store, ignore_move, NULL, &err) != STATUS_OK) fail_msg("%s: %s", what, err.msg);
    start(what);
    struct mark found = look();
    if (found.rounds != r.rounds_kept)
        fail_msg("%s: repair keeps %d rounds, the coordinator has %d", what, (int)r.rounds_kept, (int)found.rounds);
    if (found.versions[0] < least->versions[0] || found.versions[1] < least->versions[1])
        fail_msg("%s: version %d is lost, only %d is there", what, (int)least->versions[0], (int)found.versions[0]);
    if (!existed(&found)) fail_msg("%s: a state that never existed", what);
    assert_true(r.rounds_kept + r.rounds_lost <= ROUNDS);
    assert_int_equal(repair_run(&again, rig.store, ignore_move, NULL, &err), STATUS_OK);
    if (again.needed) fail_msg("%s: the second repair finds damage", what);
    if (play && !engine_done(rig.engine)) {
        rig_join(&rig, 0);
        rig_join(&rig, 1);
        rig_play(&rig, NULL);
        if (rig_theta_hash(&rig) != theta) fail_msg("%s: the run ends at other parameters", what);
    }
    repair_finish(&r);
    repair_finish(&again);
    rig_close(&rig);
}

enum damage { FLIP, CUT, UNREADABLE, MISSING };

/* Damages the segment; returns the byte from which it is damaged. */
static size_t damage(enum damage how, uint64_t segment, size_t at)
{
    size_t size;
    uint8_t *bytes = store_mem_segment(rig.store, segment, &size, NULL);
    assert_non_null(bytes);
    at = at < size ? at : size - 1;
    if (how == FLIP) bytes[at] ^= 0x10;
    if (how == CUT) store_mem_cut(rig.store, segment, at);
    if (how == UNREADABLE) at = at / BLOCK * BLOCK;
    if (how == UNREADABLE) store_mem_spoil(rig.store, segment, at, at + BLOCK);
    if (how == MISSING) assert_int_equal(rig.store->ops->segment_remove(rig.store, segment, NULL), STATUS_OK);
    return how == MISSING ? 0 : at;
}

/* Every segment, damaged at many places, with every number of checkpoints left. */
TEST(test_every_damage_of_the_journal)
{
    char what[128];
    int played = 0, refused = 0;
    for (size_t without = 0; without <= n_checkpoints; without++) {
        for (uint64_t segment = 0; segment <= last; segment++) {
            size_t size;
            assert_non_null(store_mem_segment(whole, segment, &size, NULL));
            for (size_t step = 0; step <= 12; step++) {
                enum damage how = step == 12 ? MISSING : step % 4 == 3 ? UNREADABLE : step % 3 == 2 ? CUT : FLIP;
                bool play = step % 4 == 1 || (how == UNREADABLE && without == 1);
                take_copy(without);
                size_t at = damage(how, segment, step * size / 12 + step);
                snprintf(what, sizeof what, "damage %d of segment %d at byte %zu, without %zu checkpoints", (int)how,
                         (int)segment, at, without);
                const struct mark *least = before(segment, at);
                struct mark round = {.versions = {least->rounds, least->rounds}};
                if (without == n_checkpoints) least = &round; /* not half of the next one */
                uint64_t base = without < n_checkpoints ? checkpoints[n_checkpoints - without - 1] : 0;
                struct mark checkpoint = {.versions = {base, base}};
                if (least->versions[0] < base) least = &checkpoint;
                /* Without a MODEL record nothing is left, and nothing is changed. */
                if (without == n_checkpoints && segment == 0 && at < model_end) {
                    struct repair r;
                    assert_int_equal(repair_run(&r, rig.store, ignore_move, NULL, &err), STATUS_NOTFOUND);
                    assert_non_null(strstr(err.msg, "no round can be kept: restore the folder from a copy"));
                    repair_finish(&r);
                    rig_close(&rig);
                    refused++;
                    continue;
                }
                repair_and_start(what, least, play);
                played += play;
            }
        }
    }
    assert_true(played > 20 && refused > 1);
}

/* The next start writes a checkpoint at the cut, from which workers without a state train the open round. */
TEST(test_cut_without_checkpoints_is_between_rounds)
{
    char what[128];
    int halves = 0;
    for (uint64_t segment = 0; segment <= last; segment++) {
        size_t size;
        assert_non_null(store_mem_segment(whole, segment, &size, NULL));
        for (size_t at = segment ? 0 : model_end; at < size; at += 37) {
            take_copy(n_checkpoints);
            damage(FLIP, segment, at);
            snprintf(what, sizeof what, "byte %zu of segment %d, without checkpoints", at, (int)segment);
            const struct mark *least = before(segment, at);
            const struct mark round = {.versions = {least->rounds, least->rounds}};
            halves += least->versions[0] != least->versions[1];
            repair_and_start(what, &round, true);
        }
    }
    assert_true(halves > 20);
}

/* Only workers that are far behind need the journal before the newest checkpoint: a start does without it. */
TEST(test_older_segments_cost_no_round)
{
    for (uint64_t segment = 0; segment < last; segment++) {
        size_t size, n;
        assert_non_null(store_mem_segment(whole, segment, &size, NULL));
        for (size_t step = 0; step < 10; step++) {
            uint64_t list[SEGMENTS_MAX];
            take_copy(0);
            damage(step % 2 ? UNREADABLE : FLIP, segment, step / 2 * (size - 1) / 4);
            start("a damaged older segment");
            assert_int_equal(look().rounds, ROUNDS);
            assert_true(rig_theta_hash(&rig) == theta);
            assert_int_equal(rig.store->ops->checkpoint_list(rig.store, list, SEGMENTS_MAX, &n, NULL), STATUS_OK);
            assert_int_equal(n, n_checkpoints - segment); /* segment i + 1 begins after checkpoint i */
            assert_int_equal(strstr(said, "recovered without it from the newest checkpoint, nothing is lost") != NULL,
                             segment > 0); /* no start reads segment 0: it ends at the oldest checkpoint */
            assert_int_equal(strstr(said, "put checkpoint round_000000 aside as ") != NULL, segment > 0);
            engine_destroy(rig.engine);
            said[0] = '\0';
            start("again");
            assert_string_equal(said, "");
            rig_close(&rig);
        }
    }
}

/* A start does without a damaged checkpoint by itself, and loses nothing. */
TEST(test_damaged_checkpoints_are_skipped)
{
    static const struct {
        size_t flip;      /* this bit of the state */
        int state, theta; /* 1: the disk cannot read the beginning; -1: nor the end (the momentum) */
    } cases[] = {{0, 0, 0}, {60, 0, 0}, {300, 0, 0}, {0, 1, 0}, {0, -1, 0}, {0, 0, 1}};
    for (size_t i = 0; i < n_checkpoints; i++)
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            uint64_t round, list[SEGMENTS_MAX], size, at;
            size_t n;
            bool newest = i + 1 == n_checkpoints;
            if (c < 3 && !newest) continue;
            take_copy(0);
            assert_int_equal(rig.store->ops->checkpoint_state_size(rig.store, checkpoints[i], &size, NULL), STATUS_OK);
            at = cases[c].state < 0 ? size - 10 : 0;
            if (c < 3) store_mem_state(rig.store, &round)[cases[c].flip] ^= 1;
            if (cases[c].state) store_mem_spoil_state(rig.store, checkpoints[i], at, at + 10);
            if (cases[c].theta) store_mem_spoil_theta(rig.store, checkpoints[i], 0, 10);
            start("a damaged checkpoint");
            assert_true(rig_theta_hash(&rig) == theta);
            assert_int_equal(look().rounds, ROUNDS);
            bool read = newest || cases[c].state > 0; /* of older ones only the head is read */
            if (!strstr(said, "nothing is lost") == read) fail_msg("case %zu of checkpoint %zu: %s", c, i, said);
            assert_int_equal(rig.store->ops->checkpoint_list(rig.store, list, SEGMENTS_MAX, &n, NULL), STATUS_OK);
            for (size_t k = 0; k < n && read; k++)
                assert_int_not_equal(list[k], checkpoints[i]); /* renamed, so that no start reads it again */
            rig_close(&rig);
        }
}

/* The report names what the cut part held. */
TEST(test_report_names_lost_work)
{
    struct repair r;
    take_copy(1); /* the base is round 6; its segment holds rounds 7 and 8 */
    size_t size;
    uint8_t *bytes = store_mem_segment(rig.store, last - 1, &size, NULL);
    bytes[JOURNAL_SEGMENT_HEADER + 4] ^= 1;
    assert_int_equal(repair_run(&r, rig.store, ignore_move, NULL, &err), STATUS_OK);
    assert_true(r.needed && r.cut && !r.missing && r.has_base);
    assert_int_equal(r.base, 6);
    assert_int_equal(r.segment, last - 1);
    assert_int_equal(r.at, JOURNAL_SEGMENT_HEADER);
    assert_int_equal(r.rounds_kept, 6);
    assert_int_equal(r.rounds_lost, 2);
    assert_int_equal(r.updates_lost, 4); /* two fragments */
    assert_int_equal(r.n_workers, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r.workers[i].deltas, 4);
        assert_string_equal(r.workers[i].name, rig.workers[i].name);
    }
    repair_finish(&r);
    start("repaired run");
    rig_close(&rig);
}

TEST(test_whole_run_needs_no_repair)
{
    struct repair r;
    take_copy(0);
    assert_int_equal(repair_run(&r, rig.store, ignore_move, NULL, &err), STATUS_OK);
    assert_false(r.needed);
    assert_int_equal(r.rounds_kept, ROUNDS);
    repair_finish(&r);
    start("whole run");
    rig_close(&rig);
}

/* checkpoints/ was deleted by hand while a delta was held: the checkpoint that the start writes is whole. */
TEST(test_lost_checkpoints_while_a_delta_is_held)
{
    rig_open_with(&rig, settings, 2, true);
    rig_deliver_all(&rig, 2, 0.5f);
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    assert_int_equal(rig_deliver(&rig, 0, 0, 0.25f).type, MSG_CREDIT);
    assert_int_equal(rig.store->ops->checkpoint_remove(rig.store, 0, &err), STATUS_OK);
    for (int i = 0; i < 3;
         i++) { /* the second time, the power failed between the copy of the delta and the checkpoint */
        uint64_t round;
        if (i == 1 && store_mem_state(rig.store, &round))
            assert_int_equal(rig.store->ops->checkpoint_remove(rig.store, round, &err), STATUS_OK);
        rig_stop(&rig);
        store_mem_crash(rig.store, false, 0);
        start("start without checkpoints");
        assert_int_equal(look().rounds, 1);
    }
    rig_join(&rig, 0);
    rig_join(&rig, 1);
    rig_play(&rig, NULL);
    rig_close(&rig);
}

/* The power fails during a repair: another repair keeps the same rounds. */
TEST_WITH(test_repair_survives_power_cut, tmpdir_make, clear_tmpdir)
{
    enum { DRAWS = POWERCUT_RANDOM + 3 };
    char root[64], image[64], path[128];
    struct repair r, again;
    struct store *store;
    snprintf(root, sizeof root, "%s/run", tmpdir);
    snprintf(image, sizeof image, "%s/image", tmpdir);
    if (store_disk_open(&store, root, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_int_equal(rig_open_on(&rig, settings, store, &err), STATUS_OK);
    for (int i = 0; i < 2; i++) rig_join(&rig, i);
    rig_play(&rig, NULL);
    rig_close_on(&rig);
    assert_int_equal(store->ops->checkpoint_remove(store, 8, &err), STATUS_OK); /* round 6 and its segment stay */
    snprintf(path, sizeof path, "%s/journal/%08d.log", root, (int)last - 1);
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    assert_int_equal(fseek(f, ftell(f) / 2, SEEK_SET), 0);
    assert_int_not_equal(fputs("damage", f), EOF);
    assert_int_equal(fclose(f), 0);

    powercut_begin(root);
    if (repair_run(&r, store, ignore_move, NULL, &err) != STATUS_OK) fail_msg("%s", err.msg);
    store->ops->close(store);
    powercut_end();
    assert_true(r.needed && r.cut && powercut_changes() > 10);
    assert_int_equal(r.n_moved, 2);
    assert_true(r.rounds_lost > 0);
    for (size_t instant = 0; instant <= powercut_changes(); instant++)
        for (uint64_t draw = 0; draw < DRAWS; draw++) {
            powercut_image(instant, draw, image);
            if (store_disk_open(&store, image, &err) != STATUS_OK) fail_msg("%s", err.msg);
            if (repair_run(&again, store, ignore_move, NULL, &err) != STATUS_OK)
                fail_msg("power cut after %zu changes, draw %d: %s", instant, (int)draw, err.msg);
            if (again.rounds_kept != r.rounds_kept)
                fail_msg("power cut after %zu changes, draw %d: %d rounds instead of %d", instant, (int)draw,
                         (int)again.rounds_kept, (int)r.rounds_kept);
            repair_finish(&again);
            assert_int_equal(rig_open_on(&rig, settings, store, &err), STATUS_OK);
            rig_close_on(&rig);
            store->ops->close(store);
            tmpdir_clear(image);
        }
    powercut_free();
    repair_finish(&r);
}

/* --- the tail of ddp, which is not synced ------------------------------------------------------------------------- */

static void note_ddp(void)
{
    struct engine_summary sum;
    engine_summary(rig.engine, &sum);
    if (sum.rounds == 5) keep_copy(); /* its last segment holds rounds 4 and 5 */
}

/* A crash cuts the last record. Where whole records follow, it is damage, and the records are kept aside. */
TEST(test_damaged_tail_is_no_incomplete_record)
{
    static const char *const ddp[] = {"train.method=ddp", "coordinator.min_workers=2", "train.max_steps=8",
                                      "checkpoint.every=3", NULL};
    uint64_t list[SEGMENTS_MAX];
    size_t size, n;
    int aside = 0, cut = 0, named = 0;
    rig_open_with(&rig, ddp, 2, false);
    rig_play(&rig, note_ddp);
    theta = rig_theta_hash(&rig);
    rig_close(&rig);
    assert_int_equal(whole->ops->segment_list(whole, list, SEGMENTS_MAX, &n, NULL), STATUS_OK);
    assert_non_null(store_mem_segment(whole, list[n - 1], &size, NULL));
    for (size_t at = 0; at < size; at += 7) {
        char line[64];
        take_copy_of(ddp, 0);
        damage(FLIP, list[n - 1], at);
        start("a damaged tail");
        uint64_t rounds = look().rounds;
        assert_in_range(rounds, 3, 5);
        snprintf(line, sizeof line, "journal/%08d.log is damaged at byte ", (int)list[n - 1]);
        const char *damaged = strstr(said, line), *incomplete = strstr(said, "the crash left an incomplete record");
        if (!damaged == !incomplete) fail_msg("byte %zu: %s", at, said);
        if (damaged) {
            assert_non_null(strstr(damaged, "; the file is kept as journal.damaged/"));
            assert_null(strstr(damaged, " 0 whole records"));
        }
        if (rounds == 3 && damaged) named += strstr(damaged, " updates, rounds 4 to 5)") != NULL;
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

TEST_MAIN(play_once, forget)
