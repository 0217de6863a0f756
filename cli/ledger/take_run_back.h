/* atoll rollback and atoll exclude: the same steps with another history. */
#ifndef CLI_TAKE_RUN_BACK_H
#define CLI_TAKE_RUN_BACK_H

#include "common/base/status.h"
#include "coordinator/ledger/history/history.h"

/* Takes rounds of the stopped run in folder `path` back. `ready` is called when the new history is complete, before it
 * counts; `done` prints the result. `suffix`: what the names of the old history got. */
struct take_back_request {
    struct history_request history;
    const char *to_do;                                                               /* "then roll it back" */
    enum status (*ready)(const struct history *h, const char *run, struct err *err); /* or NULL */
    void (*done)(const struct history *h, const char *run, const char *suffix);
};

/* Prints how the run continues, and what its workers do. */
void take_back_print_next(const char *run);

enum status take_run_back(const char *path, const struct take_back_request *request, struct err *err) MUST_CHECK;

#endif
