/* Inner and outer learning rate as functions of the position in the run. Pure functions.
 *
 * The position counts optimizer steps as a real number. Workers of different speed share one schedule, which follows
 * the tokens that all of them have processed: a worker may be at step 12.5. */
#ifndef COMMON_SCHEDULE_H
#define COMMON_SCHEDULE_H

#include "common/config/config.h"

struct lr_schedule {
    enum schedule kind;
    double base;         /* peak learning rate */
    double min_fraction; /* final learning rate / base (constant: unused) */
    double warmup_steps;
    double total_steps;
};

/* Warmup: base * (step + 1) / warmup, at most base. Then
 *   constant  base;
 *   linear    straight from base to min;
 *   cosine    min + (base - min) (1 + cos(pi x)) / 2, x = progress after warmup (Loshchilov and Hutter, 1608.03983);
 *   wsd       base, then over the last 20 % min + (base - min) (1 - sqrt(x)) (Hägele et al., 2405.18392).
 * After the end the last value holds. A negative step counts as 0. */
double lr_schedule_at(const struct lr_schedule *schedule, double step);

/* The rate of an outer step by outer.schedule, from outer.learning_rate:
 *   constant   rate;
 *   cosine     rate (0.1 + 0.9 (1 + cos(pi x)) / 2), x = progress of the run in [0, 1];
 *   transient  rate / (1 - outer.momentum^(age + 1)), age = earlier momentum steps. Undoes the small start of the
 *              momentum; the first step has the rate / (1 - momentum). (Bias correction as in Kingma and Ba,
 * 1412.6980.) Coordinator, and workers that take the outer step of a relayed update. */
double outer_rate(const struct config *config, double progress, uint64_t age);
/* The same for the update that makes `version` of a fragment, in a run with a barrier. Rounds before train.start_step
 * (version <= start_step) have rate 1 instead. Of the R rounds after them, the one after n others has x = n / R. */
double outer_rate_of_version(const struct config *config, uint64_t version);
/* The peak of the inner learning rate: learning_rate * f(scaling_workers), f = 1, the square root, or the number itself
 * (inner.scaling). Gradient noise falls with the workers; linear: Goyal et al. 1706.02677, sqrt: Krizhevsky 1404.5997.
 */
double lr_inner_peak(const struct config *config);
/* The schedule of the inner learning rate. */
struct lr_schedule lr_inner_schedule(const struct config *config);

#endif
