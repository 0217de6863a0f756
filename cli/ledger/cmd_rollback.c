/* atoll rollback: a stopped run stands again where it stood after an earlier round. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/ledger/take_run_back.h"
#include "cli/verbs.h"
#include "common/base/text.h"
#include "common/base/units.h"
#include "common/config/options.h"

static void done(const struct history *h, const char *run, const char *suffix)
{
    if (h->rounds)
        printf("kept    rounds 1 to %" PRIu64 ": theta %016" PRIx64 "\n", h->rounds, h->theta_hash);
    else
        printf("kept    no round: the run stands at its beginning\n");
    printf("taken   rounds %" PRIu64 " to %" PRIu64 ": %" PRIu64 " update%s, %s tokens\n", h->rounds + 1, h->before,
           h->updates, h->updates == 1 ? "" : "s", units_count((double)(h->tokens - h->kept_tokens)).text);
    for (size_t i = 0; i < h->n_workers; i++)
        if (h->workers[i].deltas)
            text_print(stdout, "taken   %" PRIu64 " delta%s of %s\n", h->workers[i].deltas,
                       h->workers[i].deltas == 1 ? "" : "s", h->workers[i].name);
    text_print(stdout, "moved   the old journal, checkpoints and metrics to %s/*%s\n", run, suffix);
    take_back_print_next(run);
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    const uint64_t *to = ctx;
    if (*to == UINT64_MAX) return err_set(err, STATUS_INVALID, "--to ROUND is missing: the number of rounds that stay");
    struct take_back_request request = {.history.round = *to, .to_do = "then roll the run back", .done = done};
    return take_run_back(o->args[0], &request, err);
}

int cmd_rollback(int argc, char **argv)
{
    uint64_t to = UINT64_MAX;
    const struct option_spec specs[] = {
        {"to", OPTION_COUNT, &to, "ROUND", "the number of rounds that stay (required)"},
    };
    struct options o = {
        .program = "atoll rollback",
        .usage = "RUN --to ROUND",
        .about =
            "Take the newest rounds of a stopped run back: it stands again where it stood after round ROUND, and\n"
            "continues from there. The round must lie behind the oldest checkpoint that the run still has. Nothing is\n"
            "deleted: the old journal, checkpoints and metrics get names that end in .taken-back-DATE.",
        OPTION_SPECS(specs),
        .args_min = 1,
        .args_max = 1,
    };
    return options_main(&o, argc, argv, run, &to);
}
