/* One worker at work: join, train, send, apply, evaluate, until the run is done or it is told to stop. */
#ifndef WORKER_TRAIN_H
#define WORKER_TRAIN_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "wire/msg.h"
#include "wire/transport.h"

struct train_options {
    const struct config *local;           /* defaults, environment and flags: its local keys count */
    const struct config_sources *sources; /* of local */
    uint8_t uuid[WIRE_UUID];
    char name[WIRE_NAME_MAX];
    char dir[CONFIG_PATH_MAX]; /* the worker's own folder; its state lies there */
    char join[1024];           /* join line */
    /* Joined by its run folder on this machine: */
    char run_dir[CONFIG_PATH_MAX];           /* "": not so */
    char address_file[CONFIG_PATH_MAX + 16]; /* where the join line may change */
    uint8_t run_id[WIRE_UUID];               /* of the run the folder holds; zeros: not known */
    uint64_t max_wait_us; /* a coordinator that does not answer for so long is waited for no more; UINT64_MAX: never */
    void (*end)(const char *line); /* replica.h */
};

/* From here on SIGINT, SIGTERM, and SIGHUP where it is not ignored, are a wish to stop, which train_check_stop tells of
 * (INTERRUPTED). Before anything is made or waited for. */
void train_catch_signals(void);
enum status train_check_stop(struct err *err) MUST_CHECK;
/* Runs until the end; those signals stop it after the inner step in hand. DONE: code is EXIT_DONE. Otherwise err
 * says why and code is what the process should exit with. */
enum exit_code train_run(const struct train_options *options, struct err *err);

#endif
