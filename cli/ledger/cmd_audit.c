/* atoll audit: computes every update of a stopped run again from its deltas. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/ledger/stopped_run.h"
#include "cli/progress.h"
#include "cli/verbs.h"
#include "common/base/text.h"
#include "common/config/options.h"
#include "coordinator/ledger/history/audit.h"
#include "coordinator/settings.h"

enum { PATIENCE_US = 500000 };

static enum status report(const char *run, const struct audit *a, struct err *err)
{
    printf("checked  rounds %" PRIu64 " to %" PRIu64 ": %" PRIu64 " updates from %" PRIu64 " deltas, %" PRIu64
           " checkpoints, %" PRIu64 " journal records\n",
           a->from + (a->from < a->to), a->to, a->updates, a->deltas, a->checkpoints, a->records);
    if (a->from)
        printf("not      rounds 1 to %" PRIu64 ": their deltas were deleted with their checkpoints\n", a->from);
    for (uint32_t i = 0; i < a->n_taken; i++) {
        const struct record_taken *t = &a->taken[i];
        if (t->what == RECORD_TAKEN_ROLLBACK)
            printf("history  rolled back from round %" PRIu64 " to round %" PRIu64 "\n", t->before, t->round);
        else
            text_print(stdout, "history  %s excluded since round %" PRIu64 ", when the run had %" PRIu64 " rounds\n",
                       t->name, t->round + 1, t->before);
    }
    if (!a->wrong) {
        text_print(stdout, "%s: every update follows from its deltas\n", run);
        return STATUS_OK;
    }
    fflush(stdout);
    return err_set(err, STATUS_CORRUPT, "%s", a->what);
}

static void show(void *ctx, uint64_t done, uint64_t total)
{
    progress_show_bytes(ctx, "auditing the journal:", done, total);
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    struct stopped_run stopped;
    struct store *store;
    struct audit a;
    (void)ctx;
    enum status status = stopped_run_open_read(&stopped, o->args[0], "then audit the run", err);
    if (status == STATUS_OK) status = store_disk_open_read(&store, stopped.dir, err);
    if (status == STATUS_OK) {
        struct progress progress = {0};
        const struct history_watch watch = {show, &progress};
        progress_begin(&progress, PATIENCE_US);
        status = audit_run(&a, store, settings_begun_workers(stopped.dir), &watch, err);
        progress_end(&progress);
        store->ops->close(store);
        if (status == STATUS_OK) status = report(stopped.dir, &a, err);
    }
    stopped_run_close(&stopped);
    return status;
}

int cmd_audit(int argc, char **argv)
{
    struct options o = {
        .program = "atoll audit",
        .usage = "RUN",
        .about =
            "Compute every update of a stopped run again, from the deltas in its journal, and compare: the updates,\n"
            "the hashes of the parameters, the checkpoints, and the checksums of all records. The first difference\n"
            "is an error, with its round, version and workers. It says which rounds the journal still holds, and\n"
            "changes nothing.",
        .args_min = 1,
        .args_max = 1,
    };
    return options_main(&o, argc, argv, run, NULL);
}
