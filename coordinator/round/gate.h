/* The gate: how large an honest delta can be. Pure.
 *
 * - A sample is the norm of a merged delta and its reach: the sum of the scheduled learning rates of its steps, before
 *   any decay. A delta grows at least as the square root of its reach (steps in random directions) and at most in
 *   proportion to it (steps in one direction).
 * - Each sample therefore predicts the norm of another delta: norm * (reach / its reach)^p, with p = 1 if the other
 *   delta reaches further, and 1/2 if not (0 with a lossy codec: its residual does not shrink). This covers warm-up, a
 *   short last round and async workers of all speeds.
 * - limit = median of the predictions * max(factor, exp(8 * MAD of their logarithms)), at most 3 * factor. The factor
 *   is 16 for gradients (ddp) and for model.family external, where the learning rate is unknown, and 4 otherwise.
 * Medians keep their meaning while fewer than half of the samples lie (Yin et al., "Byzantine-robust distributed
 * learning", 1803.01498). A delta beyond the limit is refused, not scaled as in EDiT (2412.07210): the coordinator
 * cannot scale a payload that it relays.
 * - Before GATE_SAMPLES_MIN deltas were merged there is no limit from history, only the others of the round and the
 *   bound of the inner optimizer (gate_bound).
 *
 * docs/results.md has the measured spreads behind the constants. */
#ifndef COORDINATOR_GATE_H
#define COORDINATOR_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/config/config.h"

enum {
    GATE_SAMPLES = 32,
    GATE_SAMPLES_MIN = 8,
    GATE_ROUND_MIN = 3, /* fewer deltas of one round have no majority */
    GATE_STRIKES = 3,   /* refused deltas in a row that put a member aside */
    GATE_COSINES = 16,  /* rounds that show whether a member opposes the others */
};

/* What the inner optimizer says about the deltas of a run. */
struct gate_rule {
    double learning_rate; /* peak of the schedule */
    double warmup_steps;
    bool gradient;  /* deltas are gradients (ddp): the reach is 1 and there is no bound */
    double by_root; /* bound of a delta / (reach * sqrt(count)); infinite: none */
    double by_clip; /* bound of a delta / reach; infinite: none */
    double decay;   /* inner.weight_decay */
    double factor;  /* the limit is at least this many medians */
    bool carries;   /* workers have residuals: a delta carries the late ones before it */
};

struct gate_sample {
    float log_norm, log_reach; /* natural logarithms */
};

/* The latest GATE_SAMPLES merged deltas of a fragment. Zeroed: none. */
struct gate {
    struct gate_sample samples[GATE_SAMPLES]; /* ring */
    uint32_t n, next;
};

struct gate_limit {
    double limit;  /* largest accepted norm; infinite: no limit */
    double median; /* of the predictions */
    uint32_t n;    /* predictions */
};

/* Ignores a norm of 0: a worker whose rate is 0 says nothing about other deltas. */
void gate_add(struct gate *g, double norm, double reach);
/* The limit for a delta of this reach; infinite before GATE_SAMPLES_MIN samples. */
struct gate_limit gate_history(const struct gate_rule *rule, const struct gate *g, double reach);
/* The same from n >= 1 deltas of one round; changes and sorts `samples`. */
struct gate_limit gate_limit_of(const struct gate_rule *rule, struct gate_sample *samples, uint32_t n, double reach);
struct gate_sample gate_sample_of(double norm, double reach);

struct gate_rule gate_rule_of(const struct config *config);
/* peak: of the learning rate when the steps were assigned. step0, rate: position of the first step in the schedule, and
 * the distance between two steps. */
double gate_reach(const struct gate_rule *rule, double peak, double step0, double rate, uint32_t steps);
/* The largest norm that the inner optimizer can make of `count` parameters:
 * - adamw, muon: each step moves a parameter by at most about learning rate * c, in the mean over time,
 *   c = (1 - b1) / sqrt((1 - b2) (1 - b1^2 / b2)) (Cauchy-Schwarz on the two moments; Kingma and Ba, 1412.6980, 2.1).
 * - sgd with inner.grad_clip: each step moves the vector by at most learning rate * clip.
 * Both with room for usual weight decay, rounding and the residual of a lossy codec. sgd without clipping and ddp have
 * no bound: infinite. theta_norm: of these parameters, which weight decay shrinks in proportion; 0: leave that out. */
double gate_bound(const struct gate_rule *rule, double reach, uint64_t count, double theta_norm);

/* The latest cosines of a member's deltas with those of the others. Zeroed: none. */
struct gate_cosines {
    float values[GATE_COSINES]; /* ring */
    uint32_t n, next;
};

void gate_add_cosine(struct gate_cosines *c, double cosine);
/* Sets *mean_p and returns true if GATE_COSINES rounds are known and their mean is below -0.1 and below minus one
 * standard deviation, which are four standard errors. A single round says little: the gradients of small batches oppose
 * each other by chance. */
bool gate_opposes(const struct gate_cosines *c, double *mean_p);

#endif
