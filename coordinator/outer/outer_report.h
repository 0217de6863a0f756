/* What the outer steps of a round tell about the run: direction and gain of the momentum, agreement of the workers, and
 * the gradient noise scale. Runs with a barrier; trained tensors only. Pure.
 *
 *     rho        cos(v, D), v: outer momentum before the step, D: merged delta
 *     gain       A = 1 + mu + mu^2 <v, D> / |D|^2: the Nesterov step along D is lr A D. Above lr A = 2 it overshoots.
 *     agreement  |D|^2 / mean |D_i|^2: 1 if all deltas are equal, 1 / n if they are orthogonal
 *     noise      S / |G|^2 in tokens, the critical batch (McCandlish et al., 1812.06162, appendix A) with
 *                |G|^2 = (big |D|^2 - small mean |D_i|^2) / (big - small),
 *                S     = (mean |D_i|^2 - |D|^2) / (1 / small - 1 / big),
 *                small: tokens of one delta (harmonic mean), big: tokens of the merged one. An estimate, because deltas
 *                are pseudo-gradients. S and |G|^2 are averaged over rounds, with decay.
 * agreement and noise need two deltas and the plain mean of them. */
#ifndef COORDINATOR_OUTER_REPORT_H
#define COORDINATOR_OUTER_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/config/config.h"

/* Of one outer step. */
struct outer_sums {
    double vv, vd, dd; /* dot products of momentum (0: none) and merged delta, before the step */
    double squares;    /* mean of |D_i|^2 */
    double small, big; /* tokens */
    double lr;         /* rate of the step */
    bool nesterov;     /* the step had momentum */
    uint32_t deltas;   /* 0: no trained tensors, or async */
};

struct outer_report {
    struct outer_sums round;          /* over the fragments of the round */
    double signal, scatter;           /* of the round: |G|^2 and S */
    bool alone;                       /* a fragment of the round had one delta, or another rule than the mean */
    double mean_signal, mean_scatter; /* over rounds; both have the same factor */
};

/* NaN: unknown. */
struct outer_signs {
    double rho, gain, agreement, noise_tokens;
    double length; /* rate times gain */
};

/* Adds |D_i| = norm of the delta of one worker, before the step's own sums are known. */
void outer_sums_add(struct outer_sums *sums, double norm, uint64_t tokens);
/* Completes the means over the deltas. */
void outer_sums_end(struct outer_sums *sums);
/* Adds a step to the round. */
void outer_report_add(struct outer_report *r, const struct config *config, const struct outer_sums *sums);
/* Ends the round and begins the next one. */
struct outer_signs outer_report_end(struct outer_report *r, const struct config *config);

#endif
