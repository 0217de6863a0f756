/* A step of the inner optimizer on what one rank holds: done alike by ranks that share everything
 * (worker/inner/inner_opt.c) and by ranks with memory of their own (worker/inner/inner_shard.c). */
#ifndef WORKER_INNER_STEP_H
#define WORKER_INNER_STEP_H

#include "gpu/device.h"
#include "gpu/moment_rules.h"
#include "worker/inner/inner_opt.h"

/* All borrowed; m, v, momentum and scalars are memory of dev. */
struct inner_step {
    struct device *dev;
    const struct adamw_span *spans; /* of m and v; with SGD: what is to be moved */
    size_t n_spans;
    const struct muon_plan *muon; /* NULL: no matrices */
    void *m, *v, *momentum;
    float *scalars; /* [SCALARS], as in struct inner_opt_slice */
};

/* The count of steps among the scalars. */
struct step_count *inner_step_count(float *scalars);
/* Submit it. The sum of squares of the whole gradient is in the scalars; grad is not changed. */
void inner_step_apply(const struct inner_step *s, const struct inner_opt_config *config, float *theta,
                      const float *grad, double lr);

#endif
