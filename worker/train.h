/* Runs one worker: join, train, send deltas, apply updates, evaluate, until the run is done or a signal stops it. */
#ifndef WORKER_TRAIN_H
#define WORKER_TRAIN_H

#include "common/base/status.h"
#include "common/config/config.h"
#include "worker/session/worker_session.h"

struct train_options {
    const struct config *local;            /* defaults, environment and flags; only its local keys are used */
    const struct config_sources *sources;  /* of local */
    struct worker_session_options session; /* train_run sets host_ctx, check_stop and on_config */
    void (*end)(const char *line);         /* exits when a GPU hangs (replica.h) */
};

/* Catches SIGINT, SIGTERM, and SIGHUP if it is not ignored. Call it before any wait and before files are made. */
void train_catch_signals(void);
/* INTERRUPTED: one of these signals arrived. */
enum status train_check_stop(struct err *err) MUST_CHECK;
/* Runs until the run is done; these signals stop it after the current inner step. Returns EXIT_DONE, or the exit code
 * of the process, and err says why. */
enum exit_code train_run(struct train_options *options, struct err *err);

#endif
