/* Private to coordinator/ledger/history: a ledger that follows the journal of a stopped run.
 *
 * A part calls only parts further down in this list.
 *
 *     repair.c          cuts a damaged journal
 *     take_back.c       gives the new history the names of the old one
 *     audit.c           computes every update again
 *     history_plan.c    where the old history ends
 *     history_write.c   the new history
 *     past.c            reads checkpoints and journal of a stopped run */
#ifndef COORDINATOR_HISTORY_IMPL_H
#define COORDINATOR_HISTORY_IMPL_H

#include "common/config/config.h"
#include "coordinator/ledger/checkpoint.h"
#include "coordinator/ledger/history/history.h"
#include "coordinator/ledger/ledger.h"

/* Checkpoints and segments of a stopped run, and a ledger that follows them. */
struct past {
    struct store *store;
    const struct history_watch *watch;   /* or NULL */
    struct checkpoint_info *checkpoints; /* [n_checkpoints] ascending, without the damaged ones; owned */
    size_t n_checkpoints;
    uint64_t *segments; /* [n_segments] ascending; owned */
    size_t n_segments;
    struct config *config;
    struct ledger ledger;
    bool loaded; /* `ledger` is initialised */
};

/* Lists what is there. min_workers: as of history_request. NOTFOUND: no undamaged checkpoint. */
enum status past_open(struct past *p, struct store *store, uint32_t min_workers, const struct history_watch *watch,
                      struct err *err) MUST_CHECK;
void past_close(struct past *p);
/* Loads a checkpoint into the ledger, whose deltas are in `deltas` (a store with the same segments). */
enum status past_load(struct past *p, const struct checkpoint_info *from, struct store *deltas,
                      struct err *err) MUST_CHECK;
/* The newest checkpoint of at most `round` rounds; NULL: all are newer. */
const struct checkpoint_info *past_before(const struct past *p, uint64_t round);
/* Calls `visit` for each record from byte `from` on, up to `to` (segment UINT64_MAX: the end of the journal).
 * CORRUPT: damage, or a missing segment. */
enum status past_read(const struct past *p, struct journal_ref from, struct journal_ref to, journal_visit_fn visit,
                      void *ctx, struct err *err) MUST_CHECK;
/* The first byte of a record, of which `at` is the body. */
struct journal_ref past_begin(struct journal_ref at);
/* a lies before b. */
bool past_less(struct journal_ref a, struct journal_ref b);

#endif
