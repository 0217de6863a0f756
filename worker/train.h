/* Runs one worker: join, train, send deltas, apply updates, evaluate, until the run is done or a signal stops it. */
#ifndef WORKER_TRAIN_H
#define WORKER_TRAIN_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "wire/join_target.h"
#include "wire/msg.h"
#include "wire/transport.h"

struct train_options {
    const struct config *local;           /* defaults, environment and flags; only its local keys are used */
    const struct config_sources *sources; /* of local */
    struct transport_worker self;         /* its key and name */
    char dir[CONFIG_PATH_MAX];            /* the worker's folder, with its saved state */
    char join[JOIN_LINE_MAX];             /* join line */
    /* If joined by a run folder on this machine: */
    char run_dir[CONFIG_PATH_MAX];           /* "": joined by a join line */
    char address_file[CONFIG_PATH_MAX + 16]; /* file with the join line, which may change */
    uint8_t run_id[WIRE_UUID];               /* of the run in the folder; zeros: unknown */
    uint64_t max_wait_us;          /* stop if the coordinator does not answer for this long; UINT64_MAX: no limit */
    bool supervised;               /* by atoll launch: wait for a coordinator that cannot be reached */
    void (*end)(const char *line); /* exits when a GPU hangs (replica.h) */
};

/* Catches SIGINT, SIGTERM, and SIGHUP if it is not ignored. Call it before any wait and before files are made. */
void train_catch_signals(void);
/* INTERRUPTED: one of these signals arrived. */
enum status train_check_stop(struct err *err) MUST_CHECK;
/* Runs until the run is done; these signals stop it after the current inner step. Returns EXIT_DONE, or the exit code
 * of the process, and err says why. */
enum exit_code train_run(const struct train_options *options, struct err *err);

#endif
