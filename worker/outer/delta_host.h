/* Deltas made in host memory, where no device makes them (worker/outer/delta_device.h): what codec.up gets, by several
 * threads (the same bits by any number of them: common/base/sum_squares.h). */
#ifndef WORKER_DELTA_HOST_H
#define WORKER_DELTA_HOST_H

#include <stdbool.h>
#include <stddef.h>

#include "wire/msg.h"

struct pool;

/* Of one fragment: out[n] is what is sent as `form`, the pseudo-gradient base - values (subtracted in double precision,
 * rounded once) or the values themselves (parameters, or a gradient). Returns the L2 norm of the delta: of base -
 * values, or for a gradient of the values. base, values [n]; base is not read for a gradient. pool NULL: the caller
 * alone. */
double delta_host(struct pool *pool, enum delta_form form, const float *base, const float *values, float *out,
                  size_t n);
/* No NaN and no infinity in values[n]. */
bool delta_host_finite(struct pool *pool, const float *values, size_t n);

#endif
