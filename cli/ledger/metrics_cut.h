/* metrics.jsonl of a run that was taken back: the curves show the history that the run has now.
 *
 * - Rollback: the steps, rounds and evaluations behind the kept rounds go.
 * - Exclude: evaluations behind them go, and the steps of the excluded worker. A round stays, with the loss, tokens and
 *   deltas that are left.
 * - A line "rollback" or "exclude" stands where the old history ended. Other events stay. */
#ifndef CLI_METRICS_CUT_H
#define CLI_METRICS_CUT_H

#include "common/base/status.h"
#include "coordinator/ledger/history/history.h"

/* Writes the lines of `from` to `to`. A missing file gives a file with the one new line. */
enum status metrics_cut(const char *from, const char *to, const struct history *h, struct err *err) MUST_CHECK;

#endif
