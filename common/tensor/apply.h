/* Apply one outer step to one copy of the parameters.
 *
 * The coordinator, every worker and every replay of the journal run exactly these loops on the same decoded values. So
 * all copies of theta stay equal bit for bit. */
#ifndef COMMON_APPLY_H
#define COMMON_APPLY_H

#include <stdbool.h>
#include <stddef.h>

/* Outer step of plain SGD, elementwise in double precision: x[n] holds the merged values and is replaced by the update.
 *
 * - Gradient g of an element: x; or theta - x if x is a mean of parameters (`parameters`).
 * - Update: -lr g, the increment of theta, if `increment`; otherwise the new theta, theta - lr g.
 * - With lr 1 and no `increment`, a mean of parameters is the new theta, exactly. Workers repeat this step when the
 *   coordinator relays deltas to them. */
void apply_sgd(const float *theta, float *x, size_t n, double lr, bool parameters, bool increment);

/* Apply the decoded payload x[n] of an update to the fragment theta[n]. `replace` (update_form UPDATE_PARAMETERS):
 * theta = x; otherwise theta = theta + x, one fp32 addition an element. */
void apply_update(float *theta, bool replace, const float *x, size_t n);

#endif
