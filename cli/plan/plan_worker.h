/* What a worker of a configuration needs: memory, and the time of an inner step on this machine. */
#ifndef CLI_PLAN_WORKER_H
#define CLI_PLAN_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/tensor/layout.h"
#include "worker/replica/replica.h"

struct plan_memory {
    uint64_t worker_bytes;      /* on its device; 0: unknown, the model is a program's */
    uint64_t worker_free_bytes; /* of this machine's device; 0: unknown */
    uint64_t host_bytes;        /* host memory of a worker with GPUs; 0: none beside worker_bytes */
    uint64_t coordinator_bytes;
    char device[96];
    char short_of[512]; /* why a worker does not fit into this machine's memory; "": it fits */
};

/* Allocates nothing of the model. */
enum status plan_memory_make(struct plan_memory *memory, const struct config *config, const struct layout *layout,
                             const struct replica_config *replica, uint32_t workers, struct err *err) MUST_CHECK;
/* Trains on random tokens for about `seconds` and returns the median time of an inner step. NOMEM, UNSUPPORTED: the
 * model does not fit. */
enum status plan_step_measure(double *step_s, const struct config *config, const struct layout *layout,
                              const struct replica_config *replica, double seconds, struct err *err) MUST_CHECK;

#endif
