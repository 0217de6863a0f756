/* The coordinator's process around the engine: run folder, socket, signals, event loop. */
#ifndef COORDINATOR_SERVER_H
#define COORDINATOR_SERVER_H

#include "common/base/status.h"
#include "common/config/config.h"

struct region;
struct region_upstream;

struct server_options {
    const struct config *config; /* resolved */
    const struct config_sources *sources;
    const char *run_dir;
    const char *const *changes; /* [n_changes] of --change */
    size_t n_changes;
    struct region *region; /* its membership in the run upstream (coordinator/region.h); NULL: a run of its own */
    const struct region_upstream *upstream; /* what serves it */
};

/* Serves the run in run_dir. Returns when the run is done, when SIGINT or SIGTERM stops it (EXIT_RESUMABLE), or after a
 * failure (EXIT_FAILED, EXIT_USAGE; err has one line). Installs handlers for the two signals. */
enum exit_code server_run(const struct server_options *options, struct err *err);

#endif
