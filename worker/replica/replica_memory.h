/* What a replica takes of its devices' memory: the plan of worker/replica/memory_plan.h for its configuration. */
#ifndef WORKER_REPLICA_MEMORY_H
#define WORKER_REPLICA_MEMORY_H

#include "common/tensor/layout.h"
#include "worker/replica/memory_plan.h"
#include "worker/replica/replica.h"

/* For each rank of devices[0 .. config->ranks-1], as on the one that has least free; or, where ranks share the host's
 * memory, for all of them. Nothing of the replica has been allocated yet. NOMEM: it does not fit; INVALID:
 * memory_ask_share. */
enum status replica_memory_plan(struct memory_plan *plan, const struct replica_config *config,
                                const struct layout *layout, struct device *const *devices, struct err *err) MUST_CHECK;

/* The same of the host's memory, for a worker whose devices are GPUs: parameters as the outer loop and the caller have
 * them, the moments' copy that is saved, the outer path, pinned buffers. `device`: the plan above. What the CUDA
 * libraries take of the host by themselves is not known and not counted. NOMEM, UNSUPPORTED: memory_plan_host; INVALID:
 * memory_ask_share. */
enum status replica_host_plan(struct memory_plan *plan, const struct replica_config *config,
                              const struct layout *layout, struct device *const *devices,
                              const struct memory_plan *device, struct err *err) MUST_CHECK;
/* Bytes of each pinned buffer (device.h, stage_plan) that n_params go through. */
size_t replica_stage_bytes(uint64_t n_params);

#endif
