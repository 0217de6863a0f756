/* One outer step: the update that follows from the deltas of a fragment that is closed. Live and in recovery alike, so
 * that the outcome of a journal's records can be compared with what was published. */
#ifndef COORDINATOR_UPDATE_COMPUTE_H
#define COORDINATOR_UPDATE_COMPUTE_H

#include "common/base/status.h"
#include "coordinator/ledger/ledger.h"

/* Merge the parts that `close` names, which the journal holds, and take the step: theta and the outer state of the
 * fragment move. *u describes the update; its `named` is l->named, and its payload lies in l->outer.payload, with room
 * for its head in front; both stay as they are until the next call. l->down_ways is set, the rest of the ledger stays.
 * NONFINITE when the step would make parameters NaN or infinite, IO, CORRUPT, NOMEM; after an error the ledger may not
 * be used. */
enum status update_compute(struct ledger *l, const struct round_close *close, struct update *u,
                           struct err *err) MUST_CHECK;

#endif
