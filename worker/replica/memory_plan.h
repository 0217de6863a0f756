/* Plans a rank's device memory before anything is allocated, and picks the level of recompute (model.h) that costs the
 * least time and fits. A shortage is reported in one line at the start instead of in the middle of a run.
 *
 * Pure: numbers in, numbers out; the device is only queried for sizes. If ranks share one memory (CPU), the plan covers
 * all of them. */
#ifndef WORKER_MEMORY_PLAN_H
#define WORKER_MEMORY_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "worker/model/model.h"

/* Classes of memory in a plan. */
enum memory_class {
    MEMORY_PARAMS,       /* fp32; on the host a second copy if evaluations read one */
    MEMORY_BF16_WEIGHTS, /* parameters in the precision of the activations */
    MEMORY_GRADIENT,
    MEMORY_MOMENTS,  /* inner optimizer */
    MEMORY_ANCHOR,   /* outer loop: parameters at the start of a round */
    MEMORY_RESIDUAL, /* outer loop: the residual; two copies on a device, which commits late */
    MEMORY_MESSAGES, /* outer loop: deltas and updates in transit */
    MEMORY_ACTIVATIONS,
    MEMORY_LOGITS,
    MEMORY_WORKSPACE, /* attention, tokens, losses, sums */
    MEMORY_PINNED,    /* host buffers for transfers to and from a GPU */
    MEMORY_CLASSES
};

/* Bytes of the outer loop in one memory. */
struct memory_outer {
    uint64_t anchor, residual, messages;
    bool optional; /* the host computes deltas if the device has no room */
};

struct memory_request {
    const struct model_family *family;
    const struct model_config *model;
    struct device *dev;
    uint64_t fixed[MEMORY_CLASSES]; /* bytes independent of batch and level; outer classes: 0 */
    struct memory_outer outer;
    size_t seq;
    size_t row_bytes;                 /* workspace of one sequence, without attention and head */
    uint32_t ranks;                   /* ranks in this memory; >= 1 */
    uint32_t batch_size, batch_unit;  /* train.batch_size, and its granularity: the worker's ranks */
    unsigned uses;                    /* enum model_use, without a level */
    uint64_t free_bytes, total_bytes; /* of the memory; 0: unknown, everything fits */
    uint64_t
        coordinator;  /* bytes reserved for a coordinator in the same memory; not part of free_bytes and total_bytes */
    uint32_t workers; /* workers that share the memory; free_bytes and total_bytes are one worker's part; 0 or 1: not
                         shared */
};

/* Workers that start together on one machine each see all of its memory as free. `atoll launch` therefore announces in
 * the environment the number of workers (common/config/gpu_share.h), the free bytes of the host before the first start,
 * and the bytes of the coordinator. The names must not begin with a section of the configuration, because such
 * variables are read as keys. */
#define MEMORY_HOST_ENV "ATOLL_HOST_FREE"
#define MEMORY_COORDINATOR_ENV "ATOLL_HOST_COORDINATOR"
/* Reduces free_bytes and total_bytes of `request` to this worker's part if workers share the memory, and sets
 * coordinator and workers.
 * - Host memory is shared by all workers of the launch, a GPU by `sharers` of them (0: not shared).
 * - Host values are at most one part of the free bytes that launch announced, so a restarted worker gets the same part.
 * - INVALID for a malformed variable in the environment. */
enum status memory_request_share(struct memory_request *request, bool of_host, uint32_t sharers,
                                 struct err *err) MUST_CHECK;

struct memory_plan {
    uint64_t bytes[MEMORY_CLASSES];
    uint64_t total;                             /* sum of bytes */
    uint64_t free_bytes, total_bytes, reserve;  /* reserve: kept free for the GPU's libraries */
    uint64_t levels[MODEL_RECOMPUTE_BLOCK + 1]; /* the total at each level */
    enum model_recompute level;
    bool outer_left_out; /* the optional outer bytes did not fit and are not in the plan */
};

/* `want`: a level, or RECOMPUTE_AUTO for the first level that fits. Optional outer bytes are dropped last. NOMEM if it
 * does not fit now, UNSUPPORTED if it would not fit in all of total_bytes; `err` names the largest train.batch_size
 * that fits. */
enum status memory_plan_make(struct memory_plan *plan, const struct memory_request *request, enum recompute want,
                             struct err *err) MUST_CHECK;

/* Plans the host memory of a worker with GPUs: the sum of request->fixed, and whether it fits. Reads dev, fixed and the
 * memory fields of `request`. NOMEM, UNSUPPORTED as above; `err` names the classes and a remedy. */
enum status memory_plan_host(struct memory_plan *plan, const struct memory_request *request,
                             struct err *err) MUST_CHECK;

/* Writes the classes that are not empty, in MiB: "parameters 474, gradient 474, ..., total 3174 MiB of 143155 free".
 * Returns out. */
const char *memory_plan_text(const struct memory_plan *plan, char *out, size_t cap);
/* The value of train.recompute: "none" to "block", or "auto". */
const char *memory_level_name(enum recompute level);

#endif
