/* atoll rollback and atoll exclude are cut short at every change that they make to the disk, or one of their calls
 * fails: the next start finds the old run or the new one, whole. The disk is tests/lib/store/powercut.h.
 * ctest: timeout=240 */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/os/fileio.h"
#include "coordinator/ledger/history/audit.h"
#include "coordinator/ledger/history/take_back.h"
#include "coordinator/ledger/store_disk.h"
#include "coordinator/run_dir.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/store/powercut.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

#if defined(__SANITIZE_ADDRESS__)
enum { STRIDE = 5 };
#else
enum { STRIDE = 1 };
#endif

enum { ROUNDS = 6, KEPT = 3, DRAWS = POWERCUT_RANDOM + 2 };

static const char *const settings[] = {
    "coordinator.min_workers=2", "coordinator.quorum=1", "codec.up=int8:16",   "codec.down=int8:16",
    "checkpoint.every=2",        "checkpoint.keep=0",    "train.max_steps=12", NULL};

static struct rig rig;
static struct err err;
static char root[FILEIO_PATH_MAX], image[FILEIO_PATH_MAX];
static uint64_t old_theta, new_theta, new_rounds;
static size_t instant;
static uint64_t draw;

static void quiet(void *ctx, enum log_level level, const char *line)
{
    (void)ctx, (void)level, (void)line;
}

static void make_run(const char *run)
{
    struct store *store;
    if (file_exists(run)) tmpdir_clear(run);
    assert_int_equal(mkdir(run, 0777), 0);
    assert_int_equal(store_disk_open(&store, run, &err), STATUS_OK);
    assert_int_equal(rig_open_on(&rig, settings, store, &err), STATUS_OK);
    for (int i = 0; i < 2; i++) rig_join(&rig, i);
    rig_play(&rig, NULL);
    old_theta = rig_theta_hash(&rig);
    rig_close_on(&rig);
    store->ops->close(store);
    char path[FILEIO_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/summary.json", run);
    assert_int_equal(file_write(path, "{}\n", 3, &err), STATUS_OK);
}

/* As the verb does it, with a metrics file of its own. */
static enum status take_back(const char *run, const struct history_request *request)
{
    struct store *store;
    struct history h = {0};
    char suffix[64], metrics[FILEIO_PATH_MAX + 32];
    int lock = -1;
    err = (struct err){0};
    snprintf(metrics, sizeof metrics, "%s/metrics.jsonl" STORE_NEXT, run);
    TRY(run_dir_lock(run, &lock, &err));
    enum status status = store_disk_open(&store, run, &err);
    if (status == STATUS_OK) {
        status = history_plan(&h, request, store, &err);
        if (status == STATUS_OK) status = take_back_prepare(run, &h, store, &err);
        if (status == STATUS_OK) status = file_write(metrics, "new\n", 4, &err);
        if (status == STATUS_OK) status = take_back_commit(run, suffix, sizeof suffix, &err);
        if (status != STATUS_OK) take_back_abort(run);
        if (status == STATUS_OK) {
            new_theta = h.theta_hash;
            new_rounds = h.rounds;
        }
        history_finish(&h);
        store->ops->close(store);
    }
    close(lock);
    return status;
}

static void check_names(const char *run, const char *what)
{
    DIR *dir = opendir(run);
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir));)
        if (strstr(e->d_name, "take-back") && !strstr(e->d_name, ".tmp-")) /* this process lives: it keeps those */
            fail_msg("%s: %s is left", what, e->d_name);
    closedir(dir);
}

/* Starts the run. Returns whether it has the new history. */
static bool start(const char *run, const char *what)
{
    struct store *store;
    struct audit a;
    struct engine_summary sum;
    struct stat st;
    char path[FILEIO_PATH_MAX + 32];
    int lock = -1;
    err = (struct err){0};
    if (run_dir_lock(run, &lock, &err) != STATUS_OK) fail_msg("%s: %s", what, err.msg);
    check_names(run, what);
    if (store_disk_open(&store, run, &err) != STATUS_OK) fail_msg("%s: %s", what, err.msg);
    if (audit_run(&a, store, 0, NULL, &err) != STATUS_OK) fail_msg("%s: %s", what, err.msg);
    if (a.wrong) fail_msg("%s: %s", what, a.what);
    if (rig_open_on(&rig, settings, store, &err) != STATUS_OK) fail_msg("%s: %s", what, err.msg);
    log_set_sink(quiet, NULL);
    engine_summary(rig.engine, &sum);
    bool new = a.n_taken == 1;
    uint64_t theta = rig_theta_hash(&rig);
    if (sum.rounds != (new ? new_rounds : ROUNDS) || theta != (new ? new_theta : old_theta) || sum.done == new)
        fail_msg("%s: round %d, neither the old run nor the new one", what, (int)sum.rounds);
    snprintf(path, sizeof path, "%s/summary.json", run);
    if (!stat(path, &st) == new) fail_msg("%s: summary.json", what);
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    if (!stat(path, &st) != new) fail_msg("%s: metrics.jsonl", what);
    rig_close_on(&rig);
    store->ops->close(store);
    close(lock);
    return new;
}

static void power_fails_while(const struct history_request *request)
{
    char what[128];
    int old = 0, new = 0;
    snprintf(root, sizeof root, "%s", tmpdir_path("root"));
    snprintf(image, sizeof image, "%s", tmpdir_path("image"));
    make_run(root);
    powercut_begin(root);
    if (take_back(root, request) != STATUS_OK) fail_msg("%s", err.msg);
    powercut_end();
    const size_t changes = powercut_changes();
    assert_true(changes > 20);
    for (instant = 0; instant <= changes; instant += STRIDE)
        for (draw = 0; draw < DRAWS; draw++) {
            bool most = instant == changes || powercut_syncs(instant);
            if (!most && draw != POWERCUT_RANDOM) continue;
            powercut_image(instant, draw, image);
            snprintf(what, sizeof what, "power fails after %zu of %zu changes, draw %d", instant, changes, (int)draw);
            bool is_new = start(image, what);
            if (instant == changes && !is_new) fail_msg("%s: the old run", what);
            if (new && !is_new && draw == POWERCUT_EVERYTHING) fail_msg("%s: the old run again", what);
            old += !is_new;
            new += is_new;
            tmpdir_clear(image);
        }
    powercut_free();
    assert_true(old > 10 / STRIDE && new > 5 / STRIDE);
    start(root, "after it");
    tmpdir_clear(root);
}

static void each_call_fails_once(const struct history_request *request)
{
    char what[64];
    int old = 0, new = 0;
    bool reached = true;
    for (size_t call = 0; reached; call += STRIDE) {
        make_run(root);
        powercut_begin(root);
        powercut_fail(call);
        enum status status = take_back(root, request);
        reached = powercut_failed();
        powercut_end();
        powercut_free();
        snprintf(what, sizeof what, "call %zu fails", call);
        if (reached && status != STATUS_OK && !err.msg[0]) fail_msg("%s without a line", what);
        bool is_new = start(root, what);
        if (status == STATUS_OK && !is_new) fail_msg("%s: it was said to be done", what);
        old += !is_new;
        new += is_new;
    }
    assert_true(old > 10 / STRIDE && new > 0);
    tmpdir_clear(root);
}

TEST(test_rollback_cut_short_leaves_a_whole_run)
{
    const struct history_request request = {.round = KEPT};
    power_fails_while(&request);
    each_call_fails_once(&request);
}

TEST(test_exclude_cut_short_leaves_a_whole_run)
{
    const struct history_request request = {.exclude = "worker-1", .round = KEPT};
    power_fails_while(&request);
    each_call_fails_once(&request);
}

TEST_MAIN(tmpdir_make, tmpdir_remove)
