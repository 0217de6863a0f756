/* What a replica takes of its devices' memory: the plan of worker/memory_plan.h for its configuration. */
#ifndef WORKER_REPLICA_MEMORY_H
#define WORKER_REPLICA_MEMORY_H

#include "common/layout.h"
#include "worker/memory_plan.h"
#include "worker/replica.h"

/* For each rank of devices[0 .. config->ranks-1], as on the one that has least free; or, where ranks share the host's
 * memory, for all of them. Nothing of the replica has been allocated yet. NOMEM: it does not fit. */
enum status replica_memory_plan(struct memory_plan *plan, const struct replica_config *config,
                                const struct layout *layout, struct device *const *devices, struct err *err) MUST_CHECK;

#endif
