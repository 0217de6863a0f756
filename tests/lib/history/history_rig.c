#include "tests/lib/history/history_rig.h"

#include "common/base/log.h"
#include "coordinator/ledger/history/take_back.h"
#include "coordinator/ledger/store.h"
#include "coordinator/ledger/store_disk.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

enum { SETTINGS_MAX = 24 };

struct rig rig;
struct err err;
bool assigned[WORKERS];

/* Settings of a run of three, in which two are a quorum; `more` replaces some. */
const char *const *settings_of(const char *const *more)
{
    static const char *all[SETTINGS_MAX];
    static const char *const base[] = {
        "coordinator.min_workers=3", "coordinator.quorum=2", "codec.up=int8:16",   "codec.down=int8:16",
        "checkpoint.every=3",        "checkpoint.keep=0",    "train.max_steps=40", NULL};
    size_t n = 0;
    for (size_t i = 0; base[i]; i++) all[n++] = base[i];
    for (size_t i = 0; more && more[i]; i++) all[n++] = more[i];
    all[n] = NULL;
    assert_true(n < SETTINGS_MAX);
    return all;
}

const char *at(const char *run)
{
    return tmpdir_path(run);
}

void open_run(const char *run, const char *const *settings)
{
    struct store *store;
    err = (struct err){0};
    if (store_disk_open(&store, at(run), &err) != STATUS_OK) fail_msg("%s", err.msg);
    memset(assigned, 0, sizeof assigned);
    if (rig_open_on(&rig, settings, store, &err) != STATUS_OK) fail_msg("%s: %s", run, err.msg);
}

void close_run(void)
{
    struct store *store = rig.store;
    rig_close_on(&rig);
    store->ops->close(store);
}

uint64_t rounds(void)
{
    struct engine_summary sum;
    engine_summary(rig.engine, &sum);
    return sum.rounds;
}

void take_tasks(void)
{
    struct msg m;
    for (int i = 0; i < WORKERS; i++)
        while (rig_take(&rig, i, MSG_ASSIGN, &m)) {
            rig.workers[i].task = m.assign;
            rig.workers[i].id = m.assign.worker_id;
            assigned[i] = true;
        }
    rig_forget(&rig);
}

void deliver(int worker)
{
    take_tasks();
    bool any = assigned[worker];
    assigned[worker] = false;
    float level =
        (float)(1 + worker) * (worker == WORKERS - 1 ? -3 : 1) + 0.25f * (float)rig.workers[worker].task.round;
    for (uint32_t f = 0; any && f < rig.layout.n_fragments; f++) rig_deliver(&rig, worker, f, level);
}

/* Lets `n` of the workers 0, 1, 2 deliver until the run has `to` rounds. */
void play(uint64_t to, int n)
{
    const uint64_t turns_most = 400 + 2 * to;
    for (uint64_t turns = 0; rounds() < to; turns++) {
        if (turns > turns_most) fail_msg("the run does not go on; it waits for %s", rig_waiting(&rig));
        for (int i = 0; i < n; i++) deliver(i);
        if (rounds() < to) rig_wait(&rig, 200000);
        for (int i = 0; i < WORKERS; i++)
            if (rig.workers[i].session) rig_catch_up(&rig, i);
    }
}

/* A run of three workers, of which `n` deliver, after `to` rounds; it is open. */
void play_run(const char *run, const char *const *settings, uint64_t to, int n)
{
    open_run(run, settings);
    for (int i = 0; i < WORKERS; i++) rig_join(&rig, i);
    play(to, n);
}

/* The hash at round `to` of a run that continues with workers 0 and 1, all of them with fresh sessions. */
uint64_t continue_run(const char *run, const char *const *settings, uint64_t to)
{
    open_run(run, settings);
    for (int i = 0; i < 2; i++) rig_join(&rig, i);
    play(to, 2);
    uint64_t hash = rig_theta_hash(&rig);
    close_run();
    return hash;
}

enum status try_take_back(const char *run, const struct history_request *request, struct history *h)
{
    struct store *store;
    char suffix[64];
    err = (struct err){0};
    enum status status = store_disk_open(&store, at(run), &err);
    if (status != STATUS_OK) fail_msg("%s", err.msg);
    struct history_request of_run = *request;
    of_run.min_workers = WORKERS;
    status = history_plan(h, &of_run, store, &err);
    if (status == STATUS_OK) {
        status = take_back_prepare(at(run), h, store, &err);
        if (status == STATUS_OK) status = take_back_commit(at(run), suffix, sizeof suffix, &err);
        if (status != STATUS_OK) take_back_abort(at(run));
    }
    store->ops->close(store);
    return status;
}

void take_back(const char *run, const struct history_request *request, struct history *h)
{
    if (try_take_back(run, request, h) != STATUS_OK) fail_msg("%s", err.msg);
}

void audit(const char *run, struct audit *a)
{
    struct store *store;
    err = (struct err){0};
    assert_int_equal(store_disk_open_read(&store, at(run), &err), STATUS_OK);
    if (audit_run(a, store, WORKERS, NULL, &err) != STATUS_OK) fail_msg("%s", err.msg);
    store->ops->close(store);
}

void check_audit(const char *run, uint64_t to)
{
    struct audit a;
    audit(run, &a);
    if (a.wrong) fail_msg("%s: %s", run, a.what);
    assert_int_equal(a.to, to);
    assert_int_equal(a.n_taken, 1);
}

void remove_run(const char *run)
{
    tmpdir_clear(at(run));
}
