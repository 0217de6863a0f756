/* One worker at work: join, train, send, apply, evaluate, until the run is done or it is told to stop. */
#ifndef WORKER_TRAIN_H
#define WORKER_TRAIN_H

#include <stdint.h>

#include "common/config.h"
#include "common/options.h"
#include "common/status.h"
#include "wire/msg.h"
#include "wire/transport.h"

struct train_options {
    const struct config *local;           /* defaults, environment and flags: its local keys count */
    const struct config_sources *sources; /* of local */
    uint8_t uuid[WIRE_UUID];
    char name[WIRE_NAME_MAX];
    char dir[CONFIG_PATH_MAX]; /* the worker's own folder; its state lies there */
    char address_file[CONFIG_PATH_MAX +
                      16]; /* where the join line may change (a run folder on this machine); "": never */
    char join[1024];       /* join line */
    void (*end)(const char *line); /* replica.h */
};

/* Runs until the end; SIGINT and SIGTERM stop it after the inner step in hand. DONE: code is EXIT_DONE. Otherwise err
 * says why and code is what the process should exit with. */
enum exit_code train_run(const struct train_options *options, struct err *err);

#endif
