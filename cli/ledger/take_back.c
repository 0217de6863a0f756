#include "cli/ledger/take_back.h"

#include <stdio.h>

#include "cli/ledger/metrics_cut.h"
#include "cli/ledger/stopped_run.h"
#include "common/base/mem.h"
#include "coordinator/ledger/history/take_back.h"

static enum status write_metrics(const struct take_back *t, const struct history *h, struct err *err)
{
    char from[FILEIO_PATH_MAX + 32], to[FILEIO_PATH_MAX + 32];
    snprintf(from, sizeof from, "%s/metrics.jsonl", t->run);
    snprintf(to, sizeof to, "%s/metrics.jsonl", t->new_run);
    return metrics_cut(from, to, h, err);
}

static enum status exchange(const char *run, const struct take_back_request *request, struct history *h,
                            struct store *store, struct err *err)
{
    struct take_back *t = mem_alloc(1, sizeof *t);
    char aside[64];
    if (!t) return err_set(err, STATUS_NOMEM, "no memory to take the run back");
    enum status status = take_back_prepare(t, run, h, store, err);
    if (status == STATUS_OK) status = write_metrics(t, h, err);
    if (status == STATUS_OK && request->ready) status = request->ready(h, run, err);
    if (status == STATUS_OK) status = take_back_commit(t, aside, sizeof aside, err);
    if (status == STATUS_OK)
        request->done(h, run, aside);
    else
        take_back_abort(t);
    mem_free(t);
    return status;
}

enum status take_back(const char *path, const struct take_back_request *request, struct err *err)
{
    struct stopped_run stopped;
    struct store *store;
    enum status status = stopped_run_open(&stopped, path, request->to_do, err);
    if (status == STATUS_OK) status = store_disk_open(&store, stopped.dir, err);
    if (status == STATUS_OK) {
        struct history h;
        status = history_plan(&h, &request->history, store, err);
        if (status == STATUS_OK) status = exchange(stopped.dir, request, &h, store, err);
        history_finish(&h);
        store->ops->close(store);
    }
    stopped_run_close(&stopped);
    return status;
}
