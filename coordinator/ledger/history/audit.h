/* Computes every update of a stopped run again, from its deltas, as far as the journal reaches, and compares:
 * - each record with its checksums,
 * - each update and the hash of its parameters with the result,
 * - each checkpoint with its own hashes, and with the state of the replay at its place.
 * Changes nothing. */
#ifndef COORDINATOR_AUDIT_H
#define COORDINATOR_AUDIT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "coordinator/ledger/history/history.h"
#include "coordinator/ledger/ledger.h"
#include "coordinator/ledger/store.h"

struct audit {
    uint64_t from, to;                              /* rounds done at the first checkpoint, and at the end */
    uint64_t records, deltas, updates, checkpoints; /* that were compared */
    struct record_taken taken[LEDGER_TAKEN_MAX];    /* [n_taken] what was taken back */
    uint32_t n_taken;
    bool wrong;
    char what[1200]; /* the first difference: one line */
};

/* OK also if something differs: a->wrong. NOTFOUND: the run has no checkpoint. min_workers: as of history_request. */
enum status audit_run(struct audit *a, struct store *store, uint32_t min_workers, const struct history_watch *watch,
                      struct err *err) MUST_CHECK;

#endif
