/* The schedule of a round: when a worker sends each fragment's delta, and when it applies the update. Pure.
 *
 *     step 0 .......... sent .... tau steps .... applied .......... steps
 *
 * - A round of `steps` inner steps has one sync point and one apply point per fragment; applied - sent = tau.
 * - tau is train.overlap, scaled if a worker takes another number of steps than train.sync_every. Without a barrier it
 *   stays up to half of the steps: workers that deliver together then also finish together.
 * - Without train.stagger all fragments are sent at steps - tau. With it, fragment f of F is sent at
 *   ceil((f + 1) (steps - tau) / F), so that the uploads are spread over the round (Streaming DiLoCo, 2501.18512).
 * - The delta of a round therefore contains the last steps of the round before it, which were trained after its sync
 *   point. The last round of a run has no overlap: all its steps are sent.
 * - tau = 0 without stagger is plain DiLoCo: everything is sent and applied after the last step. */
#ifndef COMMON_SYNC_POINTS_H
#define COMMON_SYNC_POINTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/config/config.h"

enum apply_rule {
    APPLY_REPLACE, /* theta = update; only with tau 0 */
    APPLY_CORRECT, /* theta = update + (now - sent): keeps the tau steps (2605.20866) */
    APPLY_MIX,     /* theta = alpha now + (1 - alpha) update (Streaming DiLoCo, 2501.18512) */
};

struct sync_points {
    uint32_t sent, applied; /* 0 <= sent <= applied <= steps of the round */
};

/* Parses train.apply. False: none of replace, correct, mix:ALPHA with 0 <= ALPHA <= 1. */
bool apply_rule_parse(const char *text, enum apply_rule *rule, double *alpha);
/* tau of a round of `steps` inner steps. */
uint32_t sync_overlap_of(uint32_t overlap, uint32_t sync_every, uint32_t steps, bool barrier);
/* The points of `fragment` of n_fragments in a round of `steps` steps; last: the last round of the run. */
struct sync_points sync_points_of(const struct config *config, uint32_t fragment, uint32_t n_fragments, uint32_t steps,
                                  bool last);
/* Whether a round that begins at position step0 of the learning rate's schedule, with `rate` per step, is the last. */
bool sync_points_last(const struct config *config, double step0, double rate, uint32_t steps);

#endif
