/* Computes the memory of the outer loop (worker/outer/outer_loop.h), on the host and on a device that makes deltas. */
#ifndef WORKER_OUTER_MEMORY_H
#define WORKER_OUTER_MEMORY_H

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/tensor/layout.h"
#include "worker/replica/replica.h"

/* Fills *out, in bytes, for a layout with fragments. `workers`: number of workers whose deltas one update may relay; 0:
 * unknown, counted as 1. lent: the program lends theta and change (outer_model.theta); both are counted, as anchor and
 * as residual if outer_loop_adds. Creates and destroys the codecs without buffers; returns their errors. NOMEM. */
enum status outer_memory_bytes(struct replica_outer *out, const struct config *config, const struct layout *layout,
                               uint32_t workers, bool lent, struct err *err) MUST_CHECK;
/* Whether the delta of a fragment, of means or of trained tensors, is made in a copy before it is encoded. adds: the
 * caller adds its changes to the residuals. */
bool outer_copies_delta(const struct config *config, bool mean, bool adds);

#endif
