/* One rank's part of an optimizer step, common to ranks that share memory (worker/inner/inner_opt.c) and ranks with
 * their own memory (worker/inner/inner_shard.c). */
#ifndef WORKER_INNER_STEP_H
#define WORKER_INNER_STEP_H

#include "gpu/device.h"
#include "gpu/moment_rules.h"
#include "worker/inner/inner_opt.h"

/* All pointers are borrowed; m, v, momentum and scalars are memory of dev. */
struct inner_step {
    struct device *dev;
    const struct adamw_span *spans; /* [n_spans] elements to update with AdamW or SGD */
    size_t n_spans;
    const struct muon_plan *muon; /* NULL: no matrices */
    void *m, *v, *momentum;
    float *scalars; /* [SCALARS], as in struct inner_opt_slice */
};

/* The step count inside scalars[SCALARS]. */
struct step_count *inner_step_count(float *scalars);
/* Submits the step. scalars[SCALAR_SUMSQ] holds the sum of squares of the whole gradient; grad is not changed. */
void inner_step_apply(const struct inner_step *s, const struct inner_opt_config *config, float *theta,
                      const float *grad, double lr);

#endif
