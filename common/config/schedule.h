/* Inner learning rate as a function of the position in the run. Pure functions.
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

/* Reads inner.scaling: none, sqrt, linear, sqrt:WORKERS or linear:WORKERS; *workers_p: 0 without a number. False: the
 * text is not valid. */
bool scaling_parse(const char *text, enum scaling *scaling_p, uint32_t *workers_p);
/* The peak of the inner learning rate: learning_rate * f(workers), f = 1, the square root, or the number itself
 * (inner.scaling). Gradient noise falls with the workers; linear: Goyal et al. 1706.02677, sqrt: Krizhevsky 1404.5997.
 */
double lr_inner_peak(const struct config *config);
/* The schedule of the inner learning rate. */
struct lr_schedule lr_inner_schedule(const struct config *config);

#endif
