/* One rank's part of an optimizer step, common to ranks that share memory (worker/inner/inner_opt.c) and ranks with
 * their own memory (worker/inner/inner_shard.c). */
#ifndef WORKER_INNER_STEP_H
#define WORKER_INNER_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/config/config.h"
#include "gpu/device.h"
#include "gpu/moment_rules.h"
#include "worker/inner/inner_matrices.h"

struct inner_opt_config {
    enum optimizer kind; /* OPTIMIZER_ADAMW, OPTIMIZER_MUON or OPTIMIZER_SGD */
    double beta1, beta2, eps, weight_decay;
    double grad_clip; /* limit of the global L2 norm; <= 0: no clipping */
    double muon_momentum;
    uint32_t muon_steps;            /* >= 1 */
    hidden_blocks_fn hidden_blocks; /* the model family's, for muon */
    bool bf16;                      /* moments are bf16 (gpu/moment_rules.h), not fp32 */
    uint64_t seed;                  /* run.seed; seeds the rounding of bf16 moments */
    bool unread;                    /* inner_opt_read is never called: the host keeps no copy of a GPU's moments */
};

/* Indices into the scalars of a rank; a struct step_count starts at SCALAR_COUNT. */
enum { SCALAR_SUMSQ, SCALAR_SCALE, SCALAR_NORM, SCALAR_COUNT = 4, SCALARS = 12 };

/* All pointers are borrowed; m, v, momentum and scalars are memory of dev. */
struct inner_step {
    struct device *dev;
    const struct adamw_span *spans; /* [n_spans] elements to update with AdamW or SGD */
    size_t n_spans;
    const struct muon_plan *muon; /* NULL: no matrices */
    void *m, *v, *momentum;
    float *scalars; /* [SCALARS] */
};

/* The step count inside scalars[SCALARS]. */
struct step_count *inner_step_count(float *scalars);
/* Submits the step. scalars[SCALAR_SUMSQ] holds the sum of squares of the whole gradient; grad is not changed. */
void inner_step_apply(const struct inner_step *s, const struct inner_opt_config *config, float *theta,
                      const float *grad, double lr);

#endif
