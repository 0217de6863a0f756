#include "cli/ledger/take_run_back.h"

#include "cli/ledger/metrics_cut.h"
#include "cli/ledger/stopped_run.h"
#include "cli/progress.h"
#include "common/base/text.h"
#include "coordinator/ledger/history/take_back.h"
#include "coordinator/ledger/store_disk.h"
#include "coordinator/run_folder.h"
#include "coordinator/settings.h"

enum { PATIENCE_US = 500000 };

static void show(void *ctx, uint64_t done, uint64_t total)
{
    progress_show_bytes(ctx, "replaying the journal:", done, total);
}

static enum status write_metrics(const char *run, const struct history *h, struct err *err)
{
    char from[FILEIO_PATH_MAX], to[FILEIO_PATH_MAX];
    TRY(run_folder_path(from, sizeof from, run, "metrics.jsonl", err));
    TRY(run_folder_path(to, sizeof to, run, "metrics.jsonl" STORE_NEXT, err));
    return metrics_cut(from, to, h, err);
}

void take_back_print_next(const char *run)
{
    const char *program = run_folder_has(run, "launch.lock") ? "atoll launch" : "atoll-coordinator";
    text_print(stdout,
               "Continue the run with: %s --dir %s\n"
               "Workers whose state belongs to the old rounds load a snapshot, and begin with fresh moments.\n",
               program, run);
}

static enum status exchange(const char *run, const struct take_back_request *request, struct history *h,
                            struct store *store, struct progress *progress, struct err *err)
{
    char suffix[64];
    enum status status = take_back_prepare(run, h, store, err);
    if (status == STATUS_OK) status = write_metrics(run, h, err);
    if (status == STATUS_OK && request->ready) status = request->ready(h, run, err);
    if (status == STATUS_OK) status = take_back_commit(run, suffix, sizeof suffix, err);
    progress_end(progress);
    if (status == STATUS_OK)
        request->done(h, run, suffix);
    else
        take_back_abort(run);
    return status;
}

enum status take_run_back(const char *path, const struct take_back_request *request, struct err *err)
{
    struct stopped_run stopped;
    struct store *store;
    enum status status = stopped_run_open(&stopped, path, request->to_do, err);
    if (status == STATUS_OK) status = store_disk_open(&store, stopped.dir, err);
    if (status == STATUS_OK) {
        struct history h;
        struct progress progress = {0};
        struct history_request history = request->history;
        const struct history_watch watch = {show, &progress};
        history.watch = &watch;
        history.min_workers = settings_begun_workers(stopped.dir);
        progress_begin(&progress, PATIENCE_US);
        status = history_plan(&h, &history, store, err);
        if (status == STATUS_OK) status = exchange(stopped.dir, request, &h, store, &progress, err);
        progress_end(&progress);
        history_finish(&h);
        store->ops->close(store);
    }
    stopped_run_close(&stopped);
    return status;
}
