/* The configuration of a replica, and its memory plans (worker/replica/memory_plan.h). */
#ifndef WORKER_REPLICA_MEMORY_H
#define WORKER_REPLICA_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/tensor/layout.h"
#include "worker/inner/inner_opt.h"
#include "worker/model/model.h"
#include "worker/replica/memory_plan.h"

/* Bytes of the outer loop: in host memory, and on a device that computes deltas. If the device computes deltas, the
 * host needs `base` bytes less of host.anchor and `pinned` bytes more. */
struct replica_outer {
    struct memory_outer host, device;
    uint64_t base, pinned;
    uint64_t inbox; /* of the connection: bytes of updates and snapshots that have arrived */
    uint64_t saved; /* with overlap: a copy of the outer state that is saved during training, beside the optimizer's */
};

struct pool;

struct replica_config {
    const struct model_family *family;
    struct model_config model;
    const char *device;       /* name for device_open, for each rank: "auto", "cpu", ... */
    const char *on_cpu;       /* the option or key that selects the CPU, for device_advise */
    bool bf16;                /* activations and products in bf16 if the device supports it */
    uint32_t ranks;           /* >= 1 */
    uint32_t threads;         /* compute threads of all ranks; >= 1; each rank gets at least one */
    uint32_t batch_size;      /* sequences per micro-step over all ranks; a multiple of ranks */
    uint32_t grad_accum;      /* micro-steps per step; >= 1 */
    uint64_t seed;            /* seed of the sample order */
    bool sharded;             /* each rank keeps its own theta, as GPUs do, even if ranks could share memory */
    uint64_t bucket;          /* floats per bucket of sharded ranks; 0: the default (worker/inner/shard.h) */
    bool gradients;           /* the caller uses replica_gradient, not replica_train_step */
    bool eval_only;           /* no gradients, no optimizer: replica_eval only */
    enum recompute recompute; /* recompute of activations; the default is none */
    uint32_t sharers; /* workers that `atoll launch` placed on these GPUs, including this one; 0 or 1: not shared */
    struct replica_outer outer;
    void (*end)(const char *line); /* ends the process if one of several GPUs hangs (gpu/collective.h) */
    struct inner_opt_config opt;
    struct pool *pool; /* borrowed, for copies between host and GPU (device.h, stage_plan); may be NULL */
};

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
