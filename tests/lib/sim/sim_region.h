/* A region of the simulated run: its engine is that of a cluster of its own (struct sim_cluster, `region`), which
 * shares the clock; to the cluster upstream it is one of the workers. Engine and client are one process: they die
 * together.
 *
 * The checker upstream holds the region to all that it asks of a worker: the bytes it offers follow from what the
 * region merged, its residual and its saved state. The checker of the region's cluster compares each update with
 * upstream's. */
#ifndef TESTS_LIB_SIM_REGION_H
#define TESTS_LIB_SIM_REGION_H

#include "cli/region/region_loop.h"
#include "tests/lib/sim/sim_cluster.h"

struct sim_region {
    struct sim_cluster *up, *down;
    int client; /* of `up` */
    struct region_loop core;
    struct outer_loop *loop; /* NULL: not running */
    struct transport *transport;
    struct config config;
    struct layout layout;
    bool built, polling;
    float *values;
    uint64_t wake_us, life;
    struct sim_disk disk;
    uint64_t again_rounds; /* deltas that were only a residual */
    uint64_t idle_us;      /* since when no worker is here; 0: some are */
};

/* Makes cluster `down` a region, in the place of worker `client` of `up`. */
void sim_region_init(struct sim_region *r, struct sim_cluster *up, int client, struct sim_cluster *down);
void sim_region_finish(struct sim_region *r);
/* Erases the client's saved state. */
void sim_region_forget(struct sim_region *r);

/* From the clusters: a message has arrived, or the engine has changed; it started; it stops. */
void sim_region_ready(struct sim_region *r);
void sim_region_engine_started(struct sim_region *r);
void sim_region_engine_stopped(struct sim_region *r);

#endif
