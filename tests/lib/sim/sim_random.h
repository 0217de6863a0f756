/* Random runs of the simulated cluster. The method, codecs, links, speeds, joins and faults of a run all follow from
 * its seed.
 * After some virtual time the faults stop; the run must then end. */
#ifndef TESTS_LIB_SIM_RANDOM_H
#define TESTS_LIB_SIM_RANDOM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "tests/lib/sim/sim_cluster.h"

/* Half more than one update for each beat: before the speeds are known there is no beat, and speeds differ by ten. */
#define SIM_RANDOM_UPDATES_MOST 1.5

struct sim_random_plan {
    char text[512];  /* summary in one line */
    bool comparable; /* must end at the theta of the run without faults, unless a worker was evicted */
    /* outer.grace auto: updates of the run without faults if one is published for each train.sync_every x
     * coordinator.min_workers steps; 0: another rule */
    double updates;
};

struct sim_random_outcome {
    bool ended;
    struct sim_cluster_result result;
    struct sim_check_counts checks;
    struct sim_net_counts net;
    uint64_t kills, long_works;
};

enum sim_random_flags {
    SIM_RANDOM_HARSH = 1, /* another distribution: more workers, fragments, quorums, evictions, losses and faults */
    SIM_RANDOM_CALM = 2,  /* the same run without faults */
    SIM_RANDOM_TRACE = 4, /* prints every event */
};

/* Run seed `seed`; flags: enum sim_random_flags, or-ed. explain: where to print a failure (NULL: nowhere). */
enum status sim_random_run(uint64_t seed, unsigned flags, FILE *explain, struct sim_random_plan *plan,
                           struct sim_random_outcome *outcome) MUST_CHECK;

#endif
