/* One outer step on one copy of the parameters. The coordinator, every worker and every replay of the log run exactly
 * this loop on the same decoded numbers, so all copies of theta stay equal bit for bit. */
#ifndef COMMON_APPLY_H
#define COMMON_APPLY_H

#include <stdbool.h>
#include <stddef.h>

/* The outer step of plain SGD, elementwise in double: x[n] holds what was merged and becomes what is to be applied, the
 * increment of theta (`increment`) or the new theta itself. The gradient of an element is x, or theta - x when x is a
 * mean of parameters (`parameters`). With lr 1 a mean of parameters is the new theta, exactly. Workers repeat this step
 * when deltas are relayed to them. */
void apply_sgd(const float *theta, float *x, size_t n, double lr, bool parameters, bool increment);

/* theta[n]: the fragment; x[n]: the decoded payload of its update. `replace` is update_form == UPDATE_PARAMETERS:
 * theta = x; otherwise theta = theta + x, one fp32 addition an element. */
void apply_update(float *theta, bool replace, const float *x, size_t n);

#endif
