/* Puts a new history (coordinator/ledger/history/history.h) in the place of the old one, in a run folder.
 *
 *     RUN/take-back.tmp/    is prepared: journal/, checkpoints/ and metrics.jsonl of the new history in new/. What both
 *                           histories have is linked, not copied
 *     RUN/take-back/        the same, complete: take_back_commit renamed it. From here on the new history counts
 *     RUN/taken-back-DATE/  the old journal, checkpoints, metrics.jsonl and summary.json
 *
 * A crash before the rename leaves the old run; the next start removes what was prepared. A crash after it leaves the
 * new one: whoever takes the lock of the run folder next finishes the move (store_disk_switch). */
#ifndef COORDINATOR_TAKE_BACK_H
#define COORDINATOR_TAKE_BACK_H

#include "common/base/status.h"
#include "common/os/fileio.h"
#include "coordinator/ledger/history/history.h"

struct take_back {
    char run[FILEIO_PATH_MAX]; /* RUN */
    char new_run[FILEIO_PATH_MAX]; /* RUN/take-back.tmp/new: a run folder with the new history */
};

/* Writes journal and checkpoints of the new history beside the old ones. `store`: of RUN. UNSUPPORTED: parts of the run
 * folder are on other disks. */
enum status take_back_prepare(struct take_back *t, const char *run, struct history *h, struct store *store,
                              struct err *err) MUST_CHECK;
/* The caller may have put more files into t->new_run. Writes the name of the folder with the old history to
 * aside[cap]. */
enum status take_back_commit(const struct take_back *t, char *aside, size_t cap, struct err *err) MUST_CHECK;
/* Removes what was prepared, if it was not committed. */
void take_back_abort(const struct take_back *t);

#endif
