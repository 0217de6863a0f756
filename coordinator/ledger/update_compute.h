/* Computes the update of a closed fragment: merge and outer step. The live run and replay call the same function, so
 * replay can compare the recomputed update with the published one. */
#ifndef COORDINATOR_UPDATE_COMPUTE_H
#define COORDINATOR_UPDATE_COMPUTE_H

#include "common/base/status.h"
#include "coordinator/ledger/ledger.h"

/* Merges the parts that `close` names, read from the journal, and takes the outer step.
 * - Changes theta and the outer state of the fragment, and l->down_ways; the rest of the ledger stays.
 * - *u describes the update. u->named is l->named; the payload is in l->outer.payload, with space for the object head
 *   before it. Both are valid until the next call.
 * - NONFINITE: the step would make parameters NaN or infinite. IO, CORRUPT, NOMEM. After an error the caller must not
 *   use the ledger again. */
enum status update_compute(struct ledger *l, const struct round_close *close, struct update *u,
                           struct err *err) MUST_CHECK;

#endif
