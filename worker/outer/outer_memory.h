/* Computes the memory of the outer loop (worker/outer/outer_loop.h), on the host and on a device that makes deltas. */
#ifndef WORKER_OUTER_MEMORY_H
#define WORKER_OUTER_MEMORY_H

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/tensor/layout.h"
#include "worker/replica/replica.h"

/* Fills *out, in bytes, for a layout with fragments. `workers`: number of workers whose deltas one update may relay; 0:
 * unknown, counted as 1. Creates and destroys the codecs without buffers; returns their errors. NOMEM. */
enum status outer_memory_bytes(struct replica_outer *out, const struct config *config, const struct layout *layout,
                               uint32_t workers, struct err *err) MUST_CHECK;

#endif
