/* One outer step on one copy of the parameters. The coordinator, every worker and every replay of the log run exactly
 * this loop on the same decoded numbers, so all copies of theta stay equal bit for bit. */
#ifndef COMMON_APPLY_H
#define COMMON_APPLY_H

#include <stdbool.h>
#include <stddef.h>

/* theta[n]: the fragment; x[n]: the decoded payload of its update. `replace` is update_form == UPDATE_PARAMETERS:
 * theta = x; otherwise theta = theta + x, one fp32 addition an element. */
void apply_update(float *theta, bool replace, const float *x, size_t n);

#endif
