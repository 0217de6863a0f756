/* Helpers of the scripted scenarios: creates a cluster, runs it, and prints the events of a failure. */
#ifndef TESTS_LIB_SIM_RIG_H
#define TESTS_LIB_SIM_RIG_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/lib/sim/sim_cluster.h"

/* Create a cluster with log lines among its events. Never returns NULL: an invalid configuration ends the test. */
struct sim_cluster *sim_rig_cluster(const struct sim_cluster_setup *setup);
/* Start the coordinator and workers 0 .. n - 1 now. */
void sim_rig_start(struct sim_cluster *c, int n);
/* Run to the end; on failure print the reason. */
bool sim_rig_ends(struct sim_cluster *c, uint64_t within_s);
/* Run until `condition` holds. */
typedef bool (*sim_rig_condition_fn)(struct sim_cluster *c, void *ctx);
bool sim_rig_until(struct sim_cluster *c, uint64_t within_s, sim_rig_condition_fn condition, void *ctx);
void sim_rig_done(struct sim_cluster *c);
/* Return theta of the same setup without faults. */
uint64_t sim_rig_calm_theta(const struct sim_cluster_setup *setup);

#endif
