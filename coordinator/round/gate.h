/* The gate of async runs: the norm that the other workers expect of a delta. Pure.
 *
 * Barrier methods compare the deltas of one round with each other (compress/merge.h). An async merge has often one
 * delta, so its norm is compared with the last deltas of all members:
 *
 * - A sample is the norm of a delta and its reach: the sum of the scheduled learning rates of its steps, before any
 *   decay. A delta grows at least as the square root of its reach (steps in random directions) and at most in
 *   proportion to it (steps in one direction).
 * - So each sample predicts the norm of another delta: norm * (reach / its reach)^p, with p = 1 if the other delta
 *   reaches further, and 1/2 if not (0 with a sparse codec: its residual does not shrink). This covers warm-up, a short
 *   last round and workers of all speeds.
 * - The expected norm is the median of the predictions, the lower one of two. Each member has one vote, so a worker
 *   that delivers often cannot move it. It is known as soon as two members have delivered.
 *
 * No finite delta is refused. A delta beyond the tolerance of merge.clip is scaled down to the expected norm. */
#ifndef COORDINATOR_GATE_H
#define COORDINATOR_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/config/config.h"

enum {
    GATE_MEMBERS_MIN = 3, /* fewer workers have no majority */
    GATE_STRIKES = 3,     /* deltas in a row that are not finite put a member aside */
};

/* What the inner optimizer says about the deltas of a run. */
struct gate_rule {
    double learning_rate; /* peak of the schedule; model.family external, whose schedule is unknown: 1 */
    double warmup_steps;
    bool sparse;
};

/* Zeroed: none. */
struct gate_sample {
    float norm, reach;
};

struct gate_rule gate_rule_of(const struct config *config);
/* peak: of the learning rate when the steps were assigned. step0, rate: position of the first step in the schedule, and
 * the distance between two steps. */
double gate_reach(const struct gate_rule *rule, double peak, double step0, double rate, uint32_t steps);
/* The expected norm of a delta of this reach. Changes and sorts samples[n]. 0: unknown, with fewer than two samples. */
double gate_expected(const struct gate_rule *rule, struct gate_sample *samples, uint32_t n, double reach);

#endif
