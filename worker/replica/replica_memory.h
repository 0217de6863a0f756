/* Memory plans (worker/replica/memory_plan.h) of a replica from its configuration. */
#ifndef WORKER_REPLICA_MEMORY_H
#define WORKER_REPLICA_MEMORY_H

#include "common/tensor/layout.h"
#include "worker/replica/memory_plan.h"
#include "worker/replica/replica.h"

/* Plans the memory of devices[config->ranks]: per rank, for the device with the least free memory; or for all ranks if
 * they share host memory. Call before anything of the replica is allocated. NOMEM, UNSUPPORTED: memory_plan_make;
 * INVALID: memory_request_share. */
enum status replica_memory_plan(struct memory_plan *plan, const struct replica_config *config,
                                const struct layout *layout, struct device *const *devices, struct err *err) MUST_CHECK;

/* Plans the host memory of a worker with GPUs: parameters for the outer loop and the caller, the saved copy of the
 * moments, the outer loop, pinned buffers. `device`: the plan above. Host memory of the CUDA libraries is unknown and
 * not counted. NOMEM, UNSUPPORTED: memory_plan_host; INVALID: memory_request_share. */
enum status replica_host_plan(struct memory_plan *plan, const struct replica_config *config,
                              const struct layout *layout, struct device *const *devices,
                              const struct memory_plan *device, struct err *err) MUST_CHECK;
/* Bytes of each pinned buffer (device.h, stage_plan) for transfers of n_params. */
size_t replica_stage_bytes(uint64_t n_params);

#endif
