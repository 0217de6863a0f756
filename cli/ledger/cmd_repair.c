/* atoll repair: keeps all rounds of a run before the damage in its journal, and puts the rest aside. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/ledger/stopped_run.h"
#include "cli/verbs.h"
#include "common/base/text.h"
#include "common/config/options.h"
#include "coordinator/ledger/history/repair.h"
#include "coordinator/ledger/store.h"

static void moved(void *ctx, const char *from, const char *to)
{
    (void)ctx;
    text_print(stdout, "moved   %s to %s\n", from, to);
}

static void report(const char *run, const struct repair *r)
{
    if (!r->needed) {
        text_print(stdout,
                   "%s: nothing to repair: every checkpoint and journal segment that a start reads is undamaged\n",
                   run);
        return;
    }
    if (r->cut && r->missing) printf("damage  journal/%08" PRIu64 ".log is missing\n", r->segment);
    if (r->cut && !r->missing) printf("damage  journal/%08" PRIu64 ".log at byte %" PRIu64 "\n", r->segment, r->at);
    printf("kept    %" PRIu64 " rounds: ", r->rounds_kept);
    if (r->has_base)
        printf("checkpoint round_%06" PRIu64 " and the undamaged journal behind it\n", r->base);
    else
        printf("the journal from its beginning\n");
    if (r->rounds_lost || r->updates_lost)
        printf("lost    rounds %" PRIu64 " to %" PRIu64 ": %" PRIu64 " readable updates\n", r->rounds_kept + 1,
               r->rounds_kept + r->rounds_lost, r->updates_lost);
    else
        printf("lost    no readable update\n");
    for (size_t i = 0; i < r->n_workers; i++) {
        if (!r->workers[i].deltas) continue;
        char number[48] = "";
        if (!r->workers[i].name[0]) snprintf(number, sizeof number, "worker number %zu", i);
        text_print(stdout, "lost    %" PRIu64 " readable deltas of %s%s\n", r->workers[i].deltas, r->workers[i].name,
                   number);
    }
    printf("Continue the run with the same command as before. Workers that are ahead load a snapshot.\n");
}

static enum status repair(const char *run, struct err *err)
{
    struct store *store;
    struct repair r;
    TRY(store_disk_open(&store, run, err));
    enum status status = repair_run(&r, store, moved, NULL, err);
    if (status == STATUS_OK) report(run, &r);
    repair_finish(&r);
    store->ops->close(store);
    return status;
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    struct stopped_run stopped;
    (void)ctx;
    enum status status = stopped_run_open(&stopped, o->args[0], "then repair the run", err);
    if (status == STATUS_OK) status = repair(stopped.dir, err);
    stopped_run_close(&stopped);
    return status;
}

int cmd_repair(int argc, char **argv)
{
    struct options o = {
        .program = "atoll repair",
        .usage = "RUN",
        .about =
            "Repair a run whose journal is damaged, so that its coordinator starts again. All rounds before the\n"
            "damage are kept. A newer undamaged checkpoint keeps more: recovery needs only the journal behind it.\n"
            "Nothing is deleted: what is cut away goes to RUN/journal.damaged-DATE, and a damaged checkpoint gets\n"
            "the name round_NUMBER.damaged-DATE. The coordinator must not run.",
        .args_min = 1,
        .args_max = 1,
    };
    return options_main(&o, argc, argv, run, NULL);
}
