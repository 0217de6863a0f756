/* atoll exclude: merges the rounds of a stopped run again, without the deltas of one worker. */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/ledger/take_run_back.h"
#include "cli/verbs.h"
#include "common/base/text.h"
#include "common/base/units.h"
#include "common/config/options.h"
#include "coordinator/admission/worker_list.h"
#include "coordinator/run_dir.h"
#include "coordinator/run_folder.h"

static void set_revoked(struct listed_worker *w)
{
    w->revoked = true;
}

/* Its keys go, and so does the join line that it knows. */
static enum status revoke_worker(const struct history *h, const char *run, struct err *err)
{
    struct worker_list list;
    int lock;
    TRY(worker_list_lock(run, &lock, err));
    enum status status = worker_list_load(&list, run, err);
    if (status == STATUS_OK) {
        size_t n = worker_list_each(&list, h->request.exclude, set_revoked);
        if (n) status = run_dir_renew_enrolment(run, err);
        if (n && status == STATUS_OK) status = worker_list_save(&list, run, err);
        worker_list_free(&list);
    }
    close(lock);
    return status;
}

static void done(const struct history *h, const char *run, const char *suffix)
{
    const char *name = h->request.exclude;
    uint64_t deltas = 0;
    for (size_t i = 0; i < h->n_workers; i++) deltas += h->workers[i].deltas;
    text_print(stdout, "excluded  %" PRIu64 " delta%s of %s since round %" PRIu64 ", %s tokens\n", deltas,
               deltas == 1 ? "" : "s", name, h->kept + 1, units_count((double)(h->tokens - h->new_tokens)).text);
    if (h->rounds < h->before || h->async)
        printf("the run has %" PRIu64 " rounds now, %" PRIu64 " before\n", h->rounds, h->before);
    else
        printf("merged    rounds %" PRIu64 " to %" PRIu64 " again: theta %016" PRIx64 "\n", h->kept + 1, h->rounds,
               h->theta_hash);
    text_print(stdout, "moved     the old journal, checkpoints and metrics to %s/*%s\n", run, suffix);
    if (h->request.keep_member)
        text_print(stdout, "%s keeps its key, and may take part again\n", name);
    else
        text_print(stdout, "revoked   the keys of %s; new workers need the new join line, from the next start on\n",
                   name);
    if (!h->request.keep_member && run_folder_has(run, "launch.lock"))
        text_print(stdout, "Remove %s/workers/%s, so that a new worker takes its name.\n", run, name);
    take_back_print_next(run);
}

struct request {
    uint64_t since;
    bool keep;
};

static enum status run(struct options *o, void *ctx, struct err *err)
{
    const struct request *r = ctx;
    if (!r->since) return err_set(err, STATUS_INVALID, "--since: rounds are counted from 1");
    struct take_back_request request = {
        .history = {.exclude = o->args[1], .round = r->since == UINT64_MAX ? 0 : r->since, .keep_member = r->keep},
        .to_do = "then exclude the worker",
        .ready = r->keep ? NULL : revoke_worker,
        .done = done};
    return take_run_back(o->args[0], &request, err);
}

int cmd_exclude(int argc, char **argv)
{
    struct request r = {.since = UINT64_MAX};
    const struct option_spec specs[] = {
        {"since", OPTION_COUNT, &r.since, "ROUND", "the first round without it (default: all of its rounds)"},
        {"keep", OPTION_FLAG, &r.keep, NULL, "leave its key valid, so that it may take part again"},
    };
    struct options o = {
        .program = "atoll exclude",
        .usage = "RUN NAME [--since ROUND] [--keep]",
        .about =
            "Take the deltas of a worker out of a stopped run: the rounds since then are merged again from the deltas\n"
            "of the other workers, and the run continues from the result. The journal must still hold those rounds.\n"
            "The worker's keys are revoked. Nothing is deleted: the old journal, checkpoints and metrics get names\n"
            "that end in .taken-back-DATE. What the others learned from parameters with its part in them stays.",
        OPTION_SPECS(specs),
        .args_min = 2,
        .args_max = 2,
    };
    return options_main(&o, argc, argv, run, &r);
}
