/* A run of three workers on a disk, which a test takes back: rollback, exclude and audit. The workers' deltas depend on
 * worker and round alone, so runs with other parameters get the same ones. */
#ifndef TESTS_LIB_HISTORY_RIG_H
#define TESTS_LIB_HISTORY_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/ledger/history/audit.h"
#include "coordinator/ledger/history/history.h"
#include "tests/lib/rigs/engine_rig.h"

enum { WORKERS = 3 };

extern struct rig rig;         /* of the open run */
extern struct err err;         /* of the last call */
extern bool assigned[WORKERS]; /* and not delivered */

/* Settings of a run of three, in which two are a quorum; `more` replaces some. Valid until the next call. */
const char *const *settings_of(const char *const *more);
/* The path of a run. */
const char *at(const char *run);
void open_run(const char *run, const char *const *settings);
void close_run(void);
/* Rounds of the open run. */
uint64_t rounds(void);
void take_tasks(void);
void deliver(int worker);
/* Lets `n` of the workers 0, 1, 2 deliver until the run has `to` rounds. */
void play(uint64_t to, int n);
/* A run of three workers, of which `n` deliver, after `to` rounds; it is open. */
void play_run(const char *run, const char *const *settings, uint64_t to, int n);
/* The hash at round `to` of a run that continues with workers 0 and 1, all of them with fresh sessions. */
uint64_t continue_run(const char *run, const char *const *settings, uint64_t to);

enum status try_take_back(const char *run, const struct history_request *request, struct history *h);
/* The same; fails the test if it does not succeed. */
void take_back(const char *run, const struct history_request *request, struct history *h);
void audit(const char *run, struct audit *a);
/* Nothing differs in a run that was taken back once and has `to` rounds. */
void check_audit(const char *run, uint64_t to);
void remove_run(const char *run);

#endif
