/* A region's membership in the run upstream. It is a worker's session, which this folder must not know: cli/region/
 * defines region_upstream, and only the program atoll-coordinator is linked with it. */
#ifndef COORDINATOR_REGION_H
#define COORDINATOR_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"

struct engine;
struct region; /* opaque */

struct region_upstream {
    /* `join`: as for atoll-worker --join, a word of the command line, or NULL. Locks and makes RUN/upstream. Without a
     * run in the folder it waits for the settings of the run upstream, at most max_wait_us, and writes them to
     * settings_path[cap], a file in RUN/upstream; otherwise settings_path is "".
     * INVALID: the join line or the run upstream does not suit a region. CLOSED, INTERRUPTED: no answer. */
    enum status (*find)(struct region **region_p, char *join, const char *run_dir, uint64_t max_wait_us, bool begun,
                        char *settings_path, size_t cap, struct err *err);
    /* INVALID: a region cannot take part in such a run. */
    enum status (*check)(const struct config *config, struct err *err);
    /* Starts the thread that takes part upstream. wake: called from it when region_turn has work. */
    enum status (*start)(struct region *region, const struct config *config, void (*wake)(void *ctx), void *wake_ctx,
                         struct err *err);
    /* The main loop calls it after every turn, and when it was woken. An error ends the region. */
    enum status (*turn)(struct region *region, struct engine *engine, uint64_t now_us, struct err *err);
    /* Leaves upstream without a message, as a process that is killed: a restart continues. NULL is allowed. */
    void (*close)(struct region *region);
};

extern const struct region_upstream region_upstream;

#endif
