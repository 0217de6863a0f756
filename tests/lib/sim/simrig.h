/* What the written scenarios share: a cluster in a few words, and assertions that explain themselves. */
#ifndef TESTS_LIB_SIMRIG_H
#define TESTS_LIB_SIMRIG_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/lib/sim/simcluster.h"

/* A cluster with log lines among its events. Never NULL: a bad configuration ends the test. */
struct simcluster *simrig_cluster(const struct simcluster_setup *setup);
/* Start the coordinator and workers 0 .. n - 1 now. */
void simrig_start(struct simcluster *c, int n);
/* Run to the end; otherwise print why not. */
bool simrig_ends(struct simcluster *c, uint64_t within_s);
/* Run until `condition` holds. */
typedef bool (*simrig_condition_fn)(struct simcluster *c, void *ctx);
bool simrig_until(struct simcluster *c, uint64_t within_s, simrig_condition_fn condition, void *ctx);
void simrig_done(struct simcluster *c);
/* theta of the same setup without any fault. */
uint64_t simrig_calm_theta(const struct simcluster_setup *setup);

#endif
