/* Recovery: a signal meanwhile, another format, forged records, other settings. Crashes, power cuts and damage are in
 * tests/sim, test_powercut and test_repair. */

#include "common/base/mem.h"
#include "coordinator/ledger/journal.h"
#include "coordinator/ledger/record.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/store/store_mem.h"
#include "tests/lib/test.h"
#include "wire/object.h"

static struct rig rig;

static uint64_t last_segment(struct store *s, size_t *size)
{
    uint64_t list[64];
    size_t n;
    assert_int_equal(s->ops->segment_list(s, list, 64, &n, NULL), STATUS_OK);
    assert_non_null(store_mem_segment(s, list[n - 1], size, NULL));
    return list[n - 1];
}

static void begin(const char *const *settings)
{
    rig_open_with(&rig, settings, 2, false);
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
/* The run is over and the coordinator restarts with one more worker: that worker gets DONE, too, before the
 * coordinator ends. */
TEST(test_finished_run_sends_done_after_restart)
{
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
/* Reading a large run takes seconds: the first tick comes long after the time of engine_create. So does one after a
 * pause without any worker. */
TEST(test_slow_restart_evicts_nobody)
{
    const char *const settings[] = {"coordinator.min_workers=2", NULL};
    struct err err = {0};
    rig_open_with(&rig, settings, 2, true);
    rig_restart(&rig, false, 1);
    for (int i = 0; i < 2; i++) {
        rig.now += 5000000;
        assert_int_equal(engine_tick(rig.engine, rig.now, &err), STATUS_OK);
        assert_int_equal(rig_events(&rig, ENGINE_EVENT_EVICT), 0);
    }
    rig_close(&rig);
}

TEST(test_interrupted_recovery_changes_nothing)
{
    struct err err = {0};
    size_t size, after;
    begin(diloco);
    rig_play(&rig, NULL);
    uint64_t theta = rig_theta_hash(&rig), records = 0;
    rig_stop(&rig);
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

/* A checkpoint of another release is refused with one line; its format digit decides. */
TEST(test_checkpoint_of_other_format_is_refused)
{
    struct err err = {0};
    char line[200];
    uint64_t round;
    begin(diloco);
    rig_play(&rig, NULL);
    uint64_t theta = rig_theta_hash(&rig);
    rig_stop(&rig);
    uint8_t *bytes = store_mem_state(rig.store, &round);
    assert_non_null(bytes);
    bytes[6] = '1';
    snprintf(line, sizeof line,
             "checkpoint round_%06d has format 1, this program reads 4 to 7: continue with the release that "
             "began the run, or start a new run from the checkpoint (model.init_from)",
             (int)round);
    rig_start_fails(&rig, STATUS_UNSUPPORTED, line);
    bytes[6] = 'x';
    err = (struct err){0};
    if (rig_start(&rig, &err) != STATUS_OK) fail_msg("%s", err.msg); /* damage, no format: the one before is enough */
    assert_true(rig_theta_hash(&rig) == theta);
    rig_close(&rig);
}

/* A run without a join accepts other settings and keeps them. */
TEST(test_settings_may_change_before_first_join)
{
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
    rig_stop(&rig);
    rig_start_fails(&rig, STATUS_INVALID, "train.sync_every (2 here, 5 in the run)");
    rig.config.train.sync_every = 5;
    rig_restart(&rig, true, 0);
    rig_close(&rig);
}

TEST(test_other_settings_are_refused)
{
    struct err err = {0};
    begin(diloco);
    rig_stop(&rig);
    rig.config.train.sync_every = 5;
    rig_start_fails(&rig, STATUS_INVALID, "train.sync_every (5 here, 2 in the run)");
    rig.config.train.sync_every = 2;
    err = (struct err){0};
    /* No residuals: other arrays in checkpoints. */
    snprintf(rig.config.codec.down, sizeof rig.config.codec.down, "fp32");
    rig_start_fails(&rig, STATUS_INVALID, "codec.down (fp32 here, int8:16 in the run)");
    snprintf(rig.config.codec.down, sizeof rig.config.codec.down, "int8:16");
    err = (struct err){0};
    rig.config.inner.moments = PRECISION_BF16; /* a key whose default is not written */
    rig_start_fails(&rig, STATUS_INVALID,
                    "the run folder belongs to a run with other settings: inner.moments (bf16 here, "
                    "fp32 in the run): leave CONFIG and these settings out to continue it, or choose "
                    "another --dir and start from this run's checkpoint (model.init_from)");
    rig.config.inner.moments = PRECISION_FP32;
    snprintf(rig.config.coordinator.listen, sizeof rig.config.coordinator.listen, "tcp://127.0.0.1:5555"); /* local */
    assert_int_equal(rig_start(&rig, &err), STATUS_OK);
    rig_close(&rig);
}

static enum status forge(void *ctx, const struct journal_record *record, struct err *err)
{
    struct journal *to = ctx;
    uint8_t bytes[8192];
    struct update_named named[4];
    struct update u;
    size_t n = record->size;
    assert_true(n <= sizeof bytes);
    memcpy(bytes, record->body, n);
    if (record->type == RECORD_UPDATE) {
        TRY(update_decode(&u, named, 4, record->body + RECORD_CLOCK_BYTES, n - RECORD_CLOCK_BYTES));
        u.theta_hash ^= 1;
        TRY(update_encode(&u, bytes + RECORD_CLOCK_BYTES, sizeof bytes - RECORD_CLOCK_BYTES, &n));
        n += RECORD_CLOCK_BYTES;
    }
    struct store_part part = {bytes, n};
    return journal_append(to, record->type, &part, 1, NULL, err);
}

/* A forged record of an outer step with valid checksums: recomputing the step detects it. */
TEST(test_replay_detects_forged_update)
{
    struct err err = {0};
    struct journal from = {0}, to = {0};
    struct store *forged;
    begin(ddp);
    rig_assigned(&rig, 0);
    rig_assigned(&rig, 1);
    rig_deliver_all(&rig, 2, 1);
    rig_stop(&rig);
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

TEST_MAIN(NULL, NULL)
