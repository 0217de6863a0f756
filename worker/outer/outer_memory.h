/* What the outer path (worker/outer/outer_loop.h) will take of memory: of the host, and of a device that makes deltas.
 */
#ifndef WORKER_OUTER_MEMORY_H
#define WORKER_OUTER_MEMORY_H

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/tensor/layout.h"
#include "worker/replica/replica.h"

/* For a layout cut into fragments. `workers`: those whose deltas one update may relay, as many as are known of; 0: this
 * one. Codecs are made and thrown away; what they say, or NOMEM. */
enum status outer_memory_bytes(struct replica_outer *out, const struct config *config, const struct layout *layout,
                               uint32_t workers, struct err *err) MUST_CHECK;

#endif
