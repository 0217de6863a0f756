/* The coordinator as a process: run folder, socket, signals, event loop around the engine. */
#ifndef COORDINATOR_SERVER_H
#define COORDINATOR_SERVER_H

#include "common/base/status.h"
#include "common/config/config.h"

struct server_options {
    const struct config *config; /* resolved */
    const struct config_sources *sources;
    const char *run_dir;
};

/* Serve the run in run_dir until it is done, a signal stops it (SIGINT, SIGTERM: EXIT_RESUMABLE) or something fails
 * (EXIT_FAILED, EXIT_USAGE; err holds one line). Installs handlers for the two signals. */
enum exit_code server_run(const struct server_options *options, struct err *err);

#endif
