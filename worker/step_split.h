/* A worker's own split of an inner step into micro-steps. The run fixes the samples of a step, train.batch_size x
 * train.grad_accum; a worker may split them otherwise to use less memory. Gradients are sums over the tokens of a step,
 * so another split changes results by rounding only. */
#ifndef WORKER_STEP_SPLIT_H
#define WORKER_STEP_SPLIT_H

#include <stdbool.h>

#include "common/config/config.h"

/* Whether a key of the table is train.batch_size or train.grad_accum. */
bool step_split_has(int index);
/* Puts the keys that `own` has from the command line into the run's configuration. The other of the two keys follows.
 * INVALID, with both products in err: the samples of a step differ from the run's. */
enum status step_split_apply(struct config *config, struct config_sources *sources, const struct config *own,
                             const struct config_sources *own_sources, struct err *err) MUST_CHECK;

#endif
