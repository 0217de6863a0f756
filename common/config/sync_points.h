/* The schedule of a run: the steps of each round, when a worker of the round sends each fragment's delta, and when it
 * applies the update. Pure.
 *
 * Rounds of a run with a barrier. Before train.start_step a round has one step, and its outer step is the plain mean of
 * the workers' parameters: rate 1, no momentum, no overlap (post-local SGD, Lin et al. 1808.07217). A later round has
 * train.sync_every steps; the last one ends at train.max_steps.
 *
 * Points of a round:
 *
 *     step 0 .......... sent .... tau steps .... applied .......... steps
 *
 * - A round of `steps` inner steps has one sync point and one apply point per fragment; applied - sent = tau.
 * - tau is train.overlap, scaled if a worker takes another number of steps than train.sync_every. Without a barrier a
 *   shorter round keeps tau if that is at most half of its steps. Workers that deliver together then finish together.
 * - Without train.stagger all fragments are sent at steps - tau. With it, fragment f of F is sent at
 *   ceil((f + 1) (steps - tau) / F), so that the uploads are spread over the round (Streaming DiLoCo, 2501.18512).
 * - The delta of a round therefore contains the last steps of the round before it, which were trained after its sync
 *   point. The last round of a run and the rounds before train.start_step have no overlap: all their steps are sent.
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

struct sync_rounds {
    uint32_t sync_every, max_steps, start_step; /* of train; sync_every >= 1 */
    /* Where train.max_steps was raised: the round `again` begins after `steps` steps, whatever length the last round
     * before it had. again 0: never. A round that was open then keeps its steps. */
    uint64_t again;
    uint32_t steps, before; /* before: steps of the round `again` - 1 */
};

struct sync_round {
    uint64_t first;   /* inner steps before it, at most max_steps */
    uint32_t steps;   /* 0: the run has no such round */
    uint32_t usual;   /* steps of a whole round of its kind: the last one may be shorter */
    bool is_averaged; /* before start_step: the outer step is the plain mean */
};

struct sync_points {
    uint32_t sent, applied; /* 0 <= sent <= applied <= steps of the round */
};

struct sync_rounds sync_rounds_of(const struct config *config);
struct sync_round sync_round_at(const struct sync_rounds *r, uint64_t round);
/* The number of rounds of the run. */
uint64_t sync_rounds_count(const struct sync_rounds *r);

/* Parses train.apply. False: none of replace, correct, mix:ALPHA with 0 <= ALPHA <= 1. */
bool apply_rule_parse(const char *text, enum apply_rule *rule, double *alpha);
/* Training goes on between a fragment's sync point and the end of the round: train.overlap or train.stagger. */
bool sync_overlaps(const struct config *config);
/* tau of a round of `steps` inner steps. */
uint32_t sync_overlap_of(uint32_t overlap, uint32_t sync_every, uint32_t steps, bool barrier);
/* The points of `fragment` of n_fragments in a round of `steps` steps; whole: a round without overlap. */
struct sync_points sync_points_of(const struct config *config, uint32_t fragment, uint32_t n_fragments, uint32_t steps,
                                  bool whole);
/* Whether a round that begins at position step0 of the learning rate's schedule, with `rate` per step, has no overlap:
 * it is the last one, or it lies before train.start_step. */
bool sync_points_whole(const struct config *config, double step0, double rate, uint32_t steps);
/* Whether the round before one that begins at position step0 is averaged. Workers then take over the mean as it is,
 * whatever train.apply says. */
bool sync_points_after_mean(const struct config *config, double step0);

#endif
