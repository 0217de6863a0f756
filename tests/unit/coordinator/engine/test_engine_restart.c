/* Recovery: at every truncation of the journal, after power cuts, with full disks, damage and other settings. An
 * update is durable before it is visible. ctest: timeout=180 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "coordinator/ledger/journal.h"
#include "coordinator/ledger/record.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/store/store_mem.h"
#include "wire/object.h"

static struct rig rig;

#if defined(__SANITIZE_ADDRESS__)
enum { STRIDE = 5 };
#else
enum { STRIDE = 1 };
#endif

enum { MARKS_MAX = 512 };

/* The state after each message, by the size of the journal's last segment at that time. */
struct mark {
    uint64_t segment, size, theta, committed, versions[2], done_rounds;
};

static struct mark marks[MARKS_MAX];
static size_t n_marks;

static uint64_t last_segment(struct store *s, size_t *size)
{
    uint64_t list[64];
    size_t n;
    assert_int_equal(s->ops->segment_list(s, list, 64, &n, NULL), STATUS_OK);
    assert_non_null(store_mem_segment(s, list[n - 1], size, NULL));
    return list[n - 1];
}

static struct mark look(void)
{
    struct mark mark = {.theta = engine_theta(rig.engine) ? rig_theta_hash(&rig) : 0,
                        .committed = engine_samples_committed(rig.engine)};
    struct engine_summary sum;
    size_t size;
    mark.segment = last_segment(rig.store, &size);
    mark.size = size;
    engine_summary(rig.engine, &sum);
    mark.done_rounds = sum.rounds;
    for (uint32_t f = 0; f < 2 && engine_theta(rig.engine); f++) mark.versions[f] = engine_version(rig.engine, f);
    return mark;
}

/* The store before the last message of the run: its last segment is full of records. */
static struct store *copy_of_store;
static uint64_t total_rounds;

static void note(void)
{
    struct engine_summary sum;
    assert_true(n_marks < MARKS_MAX);
    marks[n_marks++] = look();
    engine_summary(rig.engine, &sum);
    if (sum.rounds == total_rounds) return;
    size_t live = mem_live_bytes();
    store_mem_destroy(copy_of_store);
    assert_int_equal(store_mem_copy(&copy_of_store, rig.store), STATUS_OK);
    rig.live += mem_live_bytes() - live;
}

static void begin(const char *const *settings)
{
    rig_open(&rig, settings);
    rig_join(&rig, 0);
    rig_join(&rig, 1);
}

static const char *const diloco[] = {"coordinator.min_workers=2",
                                     "codec.up=int8:16",
                                     "codec.down=int8:16",
                                     "checkpoint.every=3",
                                     "train.eval_every=1",
                                     "train.max_steps=10",
                                     NULL};
static const char *const ddp[] = {"train.method=ddp", "coordinator.min_workers=2", "train.max_steps=5",
                                  "checkpoint.every=3", NULL};
static const char *const async[] = {"train.method=async", "coordinator.min_workers=2", "codec.down=int8:16",
                                    "checkpoint.every=4", "train.max_steps=12",        NULL};
static const char *const *const methods[] = {diloco, ddp, async};

static uint64_t calm_theta(const char *const *settings)
{
    begin(settings);
    rig_play(&rig, NULL);
    uint64_t theta = rig_theta_hash(&rig);
    rig_close(&rig);
    return theta;
}

/* Cuts the journal at every byte. Recovery must give the state after the last whole record, and the continued run
 * must end with the same bits. */
static void truncate_everywhere(const char *const *settings)
{
    size_t size;
    uint64_t theta = calm_theta(settings);
    n_marks = 0;
    copy_of_store = NULL;
    begin(settings);
    total_rounds = rig.config.train.max_steps / (rig.config.train.method == METHOD_DDP ? 1 : 2);
    note();
    rig_play(&rig, note);
    assert_true(rig_theta_hash(&rig) == theta);
    rig_close(&rig);
    struct store *whole = copy_of_store;
    uint64_t segment = last_segment(whole, &size);
    assert_true(size > 1000);
    int played = 0;
    for (size_t cut = 0; cut <= size; cut += STRIDE) {
        struct mark *expect = NULL, *next = NULL;
        for (size_t i = 0; i < n_marks; i++) {
            if (marks[i].segment < segment || (marks[i].segment == segment && marks[i].size <= cut)) expect = &marks[i];
            if (!next && marks[i].segment == segment && marks[i].size > cut) next = &marks[i];
        }
        rig_open(&rig, settings);
        engine_destroy(rig.engine);
        store_mem_destroy(rig.store);
        rig.engine = NULL;
        assert_int_equal(store_mem_copy(&rig.store, whole), STATUS_OK);
        store_mem_cut(rig.store, segment, cut);
        rig_forget(&rig);
        struct err err = {0};
        if (rig_start(&rig, &err) != STATUS_OK) fail_msg("cut at byte %zu of %zu: %s", cut, size, err.msg);
        struct mark found = look();
        /* Several records are written between two messages: the state is one of those between. */
        bool low = expect && found.theta == expect->theta && found.committed == expect->committed;
        bool between = expect && next && found.versions[0] >= expect->versions[0] &&
                       found.versions[0] <= next->versions[0] && found.versions[1] >= expect->versions[1] &&
                       found.versions[1] <= next->versions[1];
        if (!low && !between) fail_msg("cut at byte %zu of %zu: a state that never existed", cut, size);
        if (expect && found.theta != expect->theta && next && found.versions[0] == expect->versions[0] &&
            found.versions[1] == expect->versions[1])
            fail_msg("cut at byte %zu: other parameters at the same versions", cut);
        if (cut % 95 == 0) {
            rig_join(&rig, 0);
            rig_join(&rig, 1);
            rig_play(&rig, NULL);
            if (rig.config.train.method != METHOD_ASYNC) assert_true(rig_theta_hash(&rig) == theta);
            played++;
        }
        rig_close(&rig);
    }
    assert_true(played > 3);
    store_mem_destroy(whole);
}

static void test_truncated_journal_is_recovered(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) truncate_everywhere(methods[i]);
}

/* Restarts after every message: with a kill, with a power cut, and in order. */
enum end { END_KILL, END_POWER, END_STOP };
static enum end end;
static uint64_t draws;
static int round_events;

static void stop(void)
{
    struct err err = {0};
    if (engine_stop(rig.engine, &err) != STATUS_OK) fail_msg("%s", err.msg);
    uint64_t list[64], done = look().done_rounds;
    size_t n;
    assert_int_equal(rig.store->ops->checkpoint_list(rig.store, list, 64, &n, NULL), STATUS_OK);
    assert_int_equal(list[n - 1], done);
}

static void restart(void)
{
    struct mark before = look();
    if (end == END_STOP) stop();
    round_events += rig_events(&rig, ENGINE_EVENT_ROUND);
    rig_restart(&rig, end == END_POWER, draws++);
    struct mark after = look();
    if (end != END_POWER) {
        assert_true(after.theta == before.theta);
        assert_int_equal(after.committed, before.committed);
    }
    for (int i = 0; i < 2; i++) {
        rig_join(&rig, i);
        if (rig.at_work[i]) rig_beat(&rig, i, WORKER_SENDING);
    }
}

static void test_restart_after_any_message_ends_at_same_theta(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) { /* not async: its assignments depend on arrival times */
        uint64_t theta = calm_theta(methods[i]);
        for (int p = END_KILL; p <= END_STOP; p++) {
            end = (enum end)p;
            round_events = 0;
            begin(methods[i]);
            rig_play(&rig, restart);
            assert_true(rig_theta_hash(&rig) == theta);
            struct engine_summary sum;
            engine_summary(rig.engine, &sum);
            if (end == END_STOP) assert_int_equal(round_events + rig_events(&rig, ENGINE_EVENT_ROUND), sum.rounds);
            assert_true(sum.restarts > 5);
            assert_int_equal(sum.workers, 2);
            assert_int_equal(engine_samples_committed(rig.engine), i ? 10 : 20);
            rig_close(&rig);
        }
    }
}

/* Async has no fixed end, but a restart between two messages changes no state either. */
static void test_async_restart_keeps_samples(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        end = i ? END_STOP : END_KILL;
        begin(async);
        rig_play(&rig, restart);
        assert_int_equal(engine_samples_committed(rig.engine), 24);
        rig_close(&rig);
    }
}

/* Every update that a worker may have seen is in the synced part of the journal. */
static void check_durable(void)
{
    for (size_t i = 0; i < rig.n_out; i++) {
        const struct msg *m = rig.out[i].m;
        if (m->type != MSG_CHUNK || m->chunk.kind != OBJECT_UPDATE) continue;
        uint64_t list[64];
        size_t n, size, synced;
        bool found = false;
        assert_int_equal(rig.store->ops->segment_list(rig.store, list, 64, &n, NULL), STATUS_OK);
        for (size_t k = 0; k < n && !found; k++) {
            const uint8_t *bytes = store_mem_segment(rig.store, list[k], &size, &synced);
            found = synced >= m->chunk.size && memmem(bytes, synced, m->chunk.data, m->chunk.size);
        }
        assert_true(found);
    }
}

static void park(void)
{
    for (int i = 0; i < 2; i++)
        for (uint32_t f = 0; f < 2; f++) {
            struct msg m = {.type = MSG_GET,
                            .get = {.session = rig.workers[i].session,
                                    .kind = OBJECT_UPDATE,
                                    .fragment = f,
                                    .version = engine_version(rig.engine, f) + 1,
                                    .length = 100000}};
            rig_say(&rig, rig.workers[i].control, &m);
        }
    check_durable();
}

static void test_update_is_durable_before_visible(void **state)
{
    (void)state;
    const char *settings[] = {"coordinator.min_workers=2", "checkpoint.every=0", NULL};
    begin(settings);
    park();
    rig_play(&rig, park);
    int updates = 0;
    for (size_t i = 0; i < rig.n_out; i++) updates += rig.out[i].m->type == MSG_CHUNK;
    assert_true(updates >= 10);
    rig_close(&rig);
}

/* The disk fills up at any byte: one error line, and with new space the run continues to the same end. */
static void test_run_continues_after_full_disk(void **state)
{
    (void)state;
    uint64_t theta = calm_theta(diloco);
    for (uint64_t room = 8; room < 6000; room += 173) { /* bytes; with 8 the record of the LEAVE does not fit */
        struct err err = {0};
        struct msg m;
        begin(diloco);
        rig_assigned(&rig, 0);
        store_mem_set_room(rig.store, room);
        enum status status = STATUS_OK;
        for (uint32_t f = 0; f < 2 && status == STATUS_OK; f++)
            for (int i = 0; i < 2 && status == STATUS_OK; i++) {
                if (!f && i) rig_assigned(&rig, i);
                rig_offer_message(&rig, i, f, (float)(1 + i), &m);
                status = engine_on_message(rig.engine, rig.workers[i].control, WIRE_CONTROL, &m, ++rig.now, &err);
                if (status != STATUS_OK) break;
            }
        /* Offers write no record, nor does a heartbeat of a new worker. A LEAVE does. */
        m = (struct msg){.type = MSG_LEAVE, .leave = {.session = rig.workers[1].session}};
        status = engine_on_message(rig.engine, rig.workers[1].control, WIRE_CONTROL, &m, ++rig.now, &err);
        if (room < 60) {
            assert_int_equal(status, STATUS_IO);
            assert_non_null(strstr(err.msg, "No space left"));
            assert_null(strchr(err.msg, '\n'));
        }
        store_mem_set_room(rig.store, UINT64_MAX);
        rig_restart(&rig, false, 0);
        rig_join(&rig, 0);
        rig_join(&rig, 1);
        rig_play(&rig, NULL);
        if (status != STATUS_OK) assert_true(rig_theta_hash(&rig) == theta);
        rig_close(&rig);
    }
}

/* A quorum was complete when the coordinator died: the other deltas are still in time after the restart. */
static void test_restart_keeps_quorum_open(void **state)
{
    (void)state;
    const char *settings[] = {"coordinator.min_workers=2", "coordinator.quorum=1", NULL};
    begin(settings);
    rig_assigned(&rig, 0);
    for (uint32_t f = 0; f < 2; f++) assert_int_equal(rig_deliver(&rig, 0, f, 1).type, MSG_CREDIT);
    rig_restart(&rig, false, 0);
    rig_join(&rig, 0);
    rig_wait(&rig, 10000000);
    rig_join(&rig, 1);
    rig_assigned(&rig, 1);
    rig_wait(&rig, 10000000);
    assert_int_equal(engine_version(rig.engine, 0), 0);
    for (uint32_t f = 0; f < 2; f++) assert_int_equal(rig_deliver(&rig, 1, f, 1).type, MSG_CREDIT);
    assert_int_equal(engine_version(rig.engine, 0), 1);
    rig_close(&rig);
}

/* The run is over and the coordinator restarts with one more worker: that worker gets DONE, too, before the
 * coordinator ends. */
static void test_finished_run_sends_done_after_restart(void **state)
{
    (void)state;
    struct msg m;
    begin(diloco);
    rig_play(&rig, NULL);
    rig.config.coordinator.min_workers = 3;
    rig_restart(&rig, false, 0);
    for (int i = 0; i < 3; i++) {
        assert_false(engine_finished(rig.engine));
        rig_join(&rig, i);
        rig_beat(&rig, i, WORKER_READY);
        rig_expect(&rig, i, MSG_DONE, &m);
        m = (struct msg){.type = MSG_LEAVE, .leave = {.session = rig.workers[i].session, .finished = true}};
        rig_say(&rig, rig.workers[i].control, &m);
        rig_wait(&rig, 10);
    }
    assert_true(engine_finished(rig.engine));
    rig_close(&rig);
}

/* A signal stops recovery at any record, and the next start recovers everything. */
static void test_interrupted_recovery_changes_nothing(void **state)
{
    (void)state;
    struct err err = {0};
    size_t size, after;
    begin(diloco);
    rig_play(&rig, NULL);
    uint64_t theta = rig_theta_hash(&rig), records = 0;
    engine_destroy(rig.engine);
    rig.engine = NULL;
    rig_forget(&rig);
    last_segment(rig.store, &size);
    for (enum status status = STATUS_INTERRUPTED; status == STATUS_INTERRUPTED; records++) {
        rig.records_max = records;
        status = rig_start(&rig, &err);
        last_segment(rig.store, &after);
        if (status == STATUS_INTERRUPTED) assert_int_equal(after, size);
    }
    assert_non_null(rig.engine);
    assert_true(records > 10);
    assert_true(rig_theta_hash(&rig) == theta);
    rig_close(&rig);
}

static void test_damaged_journal_is_refused(void **state)
{
    (void)state;
    struct err err = {0};
    size_t size;
    begin(diloco);
    rig_play(&rig, NULL);
    engine_destroy(rig.engine);
    rig.engine = NULL;
    uint64_t segment = last_segment(rig.store, &size);
    uint8_t *bytes = store_mem_segment(rig.store, segment, &size, NULL);
    bytes[JOURNAL_SEGMENT_HEADER + 40] ^= 1;
    assert_int_equal(rig_start(&rig, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.msg, "damaged"));
    bytes[JOURNAL_SEGMENT_HEADER + 40] ^= 1;
    err = (struct err){0};
    rig.engine = NULL;
    if (rig_start(&rig, &err) != STATUS_OK) fail_msg("%s", err.msg);
    rig_close(&rig);
}

/* A checkpoint of another release is refused with one line; its format digit decides. */
static void test_checkpoint_of_other_format_is_refused(void **state)
{
    (void)state;
    struct err err = {0};
    char line[200];
    uint64_t round;
    begin(diloco);
    rig_play(&rig, NULL);
    uint64_t theta = rig_theta_hash(&rig);
    engine_destroy(rig.engine);
    rig.engine = NULL;
    uint8_t *bytes = store_mem_state(rig.store, &round);
    assert_non_null(bytes);
    bytes[6] = '1';
    snprintf(line, sizeof line,
             "checkpoint round_%06d has format 1, this program reads 3: continue with the release that "
             "began the run, or start a new run from the checkpoint (model.init_from)",
             (int)round);
    assert_int_equal(rig_start(&rig, &err), STATUS_UNSUPPORTED);
    assert_string_equal(err.msg, line);
    rig.engine = NULL;
    bytes[6] = 'x';
    err = (struct err){0};
    if (rig_start(&rig, &err) != STATUS_OK) fail_msg("%s", err.msg); /* damage, no format: the one before is enough */
    assert_true(rig_theta_hash(&rig) == theta);
    rig_close(&rig);
}

/* A run without a join accepts other settings and keeps them. */
static void test_settings_may_change_before_first_join(void **state)
{
    (void)state;
    struct err err = {0};
    struct msg m;
    rig_open(&rig, diloco);
    rig_hello(&rig, 0);
    rig_expect(&rig, 0, MSG_CONFIG, &m);
    uint64_t first = m.config.config_hash;
    rig.config.train.sync_every = 5;
    for (int i = 0; i < 2; i++) {
        rig_restart(&rig, true, 0);
        rig_hello(&rig, 0);
        rig_expect(&rig, 0, MSG_CONFIG, &m);
        assert_true(m.config.config_hash != first);
    }
    rig_join(&rig, 0);
    rig.config.train.sync_every = 2;
    engine_destroy(rig.engine);
    rig.engine = NULL;
    assert_int_equal(rig_start(&rig, &err), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "train.sync_every (2 here, 5 in the run)"));
    rig.engine = NULL;
    rig.config.train.sync_every = 5;
    rig_restart(&rig, true, 0);
    rig_close(&rig);
}

static void test_other_settings_are_refused(void **state)
{
    (void)state;
    struct err err = {0};
    begin(diloco);
    engine_destroy(rig.engine);
    rig.engine = NULL;
    rig.config.train.sync_every = 5;
    assert_int_equal(rig_start(&rig, &err), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "train.sync_every (5 here, 2 in the run)"));
    rig.engine = NULL;
    rig.config.train.sync_every = 2;
    err = (struct err){0};
    /* No residuals: other arrays in checkpoints. */
    snprintf(rig.config.codec.down, sizeof rig.config.codec.down, "fp32");
    assert_int_equal(rig_start(&rig, &err), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "codec.down (fp32 here, int8:16 in the run)"));
    rig.engine = NULL;
    snprintf(rig.config.codec.down, sizeof rig.config.codec.down, "int8:16");
    err = (struct err){0};
    rig.config.inner.moments = PRECISION_BF16; /* a key whose default is not written */
    assert_int_equal(rig_start(&rig, &err), STATUS_INVALID);
    assert_string_equal(err.msg, "the run folder belongs to a run with other settings: inner.moments (bf16 here, "
                                 "fp32 in the run): leave CONFIG and these settings out to continue it, or choose "
                                 "another --dir and start from this run's checkpoint (model.init_from)");
    rig.engine = NULL;
    rig.config.inner.moments = PRECISION_FP32;
    snprintf(rig.config.coordinator.listen, sizeof rig.config.coordinator.listen, "tcp://127.0.0.1:5555"); /* local */
    assert_int_equal(rig_start(&rig, &err), STATUS_OK);
    rig_close(&rig);
}

static enum status forge(void *ctx, uint16_t type, struct journal_ref at, const uint8_t *body, size_t size,
                         struct err *err)
{
    struct journal *to = ctx;
    uint8_t bytes[8192];
    struct update_named named[4];
    struct update u;
    size_t n = size;
    (void)at;
    assert_true(size <= sizeof bytes);
    memcpy(bytes, body, size);
    if (type == RECORD_UPDATE) {
        TRY(update_decode(&u, named, 4, body + RECORD_CLOCK_BYTES, size - RECORD_CLOCK_BYTES));
        u.theta_hash ^= 1;
        TRY(update_encode(&u, bytes + RECORD_CLOCK_BYTES, sizeof bytes - RECORD_CLOCK_BYTES, &n));
        n += RECORD_CLOCK_BYTES;
    }
    struct store_part part = {bytes, n};
    return journal_append(to, type, &part, 1, NULL, err);
}

/* A forged record of an outer step with valid checksums: recomputing the step detects it. */
static void test_replay_detects_forged_update(void **state)
{
    (void)state;
    struct err err = {0};
    struct journal from = {0}, to = {0};
    struct store *forged;
    begin(ddp);
    rig_assigned(&rig, 0);
    rig_assigned(&rig, 1);
    rig_deliver_all(&rig, 2, 1);
    engine_destroy(rig.engine);
    rig.engine = NULL;
    assert_int_equal(rig.store->ops->checkpoint_remove(rig.store, 0, &err), STATUS_OK); /* replay all records */
    assert_int_equal(store_mem_create(&forged), STATUS_OK);
    assert_int_equal(journal_begin(&to, forged, 0, &err), STATUS_OK);
    struct journal_tail tail = {.lost = forge};
    assert_int_equal(journal_recover(&from, rig.store, 0, forge, &tail, &to, &err), STATUS_OK);
    struct store *honest = rig.store;
    rig.store = forged;
    assert_int_equal(rig_start(&rig, &err), STATUS_MISMATCH);
    assert_non_null(strstr(err.msg, "the recomputed update differs"));
    store_mem_destroy(forged);
    rig.store = honest;
    rig.engine = NULL;
    err = (struct err){0};
    if (rig_start(&rig, &err) != STATUS_OK) fail_msg("%s", err.msg);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncated_journal_is_recovered),
        cmocka_unit_test(test_restart_after_any_message_ends_at_same_theta),
        cmocka_unit_test(test_async_restart_keeps_samples),
        cmocka_unit_test(test_update_is_durable_before_visible),
        cmocka_unit_test(test_run_continues_after_full_disk),
        cmocka_unit_test(test_restart_keeps_quorum_open),
        cmocka_unit_test(test_finished_run_sends_done_after_restart),
        cmocka_unit_test(test_interrupted_recovery_changes_nothing),
        cmocka_unit_test(test_damaged_journal_is_refused),
        cmocka_unit_test(test_checkpoint_of_other_format_is_refused),
        cmocka_unit_test(test_settings_may_change_before_first_join),
        cmocka_unit_test(test_other_settings_are_refused),
        cmocka_unit_test(test_replay_detects_forged_update),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
