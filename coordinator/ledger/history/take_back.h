/* Puts a new history (coordinator/ledger/history/history.h) in the place of the old one, in a run folder.
 *
 *     RUN/journal.take-back/, checkpoints.take-back/, metrics.jsonl.take-back     the new history; what both have is
 *                                                                                linked, not copied
 *     RUN/take-back                                                              from here on the new history counts
 *     RUN/journal.taken-back-DATE/, checkpoints.taken-back-DATE/, ...             the old history
 *
 * A crash before RUN/take-back exists leaves the old run; the next holder of the run folder's lock removes what was
 * prepared. A crash after it leaves the new run: that holder finishes the renames (store_disk_switch). */
#ifndef COORDINATOR_TAKE_BACK_H
#define COORDINATOR_TAKE_BACK_H

#include "common/base/status.h"
#include "coordinator/ledger/history/history.h"

/* Writes journal and checkpoints of the new history beside the old ones. `store`: of RUN. UNSUPPORTED: they are links
 * or on other disks. */
enum status take_back_prepare(const char *run, struct history *h, struct store *store, struct err *err) MUST_CHECK;
/* The caller has written RUN/metrics.jsonl.take-back. Writes the suffix of the old names to suffix[cap]. */
enum status take_back_commit(const char *run, char *suffix, size_t cap, struct err *err) MUST_CHECK;
/* Removes what was prepared, if it does not count yet. */
void take_back_abort(const char *run);

#endif
