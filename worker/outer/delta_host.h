/* Makes deltas in host memory, the input of codec.up, if no device makes them (worker/outer/delta_device.h). The bits
 * do not depend on the number of threads (common/tensor/sum_squares.h). */
#ifndef WORKER_DELTA_HOST_H
#define WORKER_DELTA_HOST_H

#include <stdbool.h>
#include <stddef.h>

#include "common/tensor/layout.h"
#include "wire/msg.h"

struct pool;

/* Makes the delta of one fragment in out[n], by `form`:
 *   DELTA_PSEUDO_GRADIENT  base - values, subtracted in double precision and rounded once
 *   DELTA_PARAMETERS       values
 *   DELTA_GRADIENT         values
 * out NULL: nothing is made. Returns the L2 norm of base - values, for a gradient that of values. base[n] is not read
 * for a gradient. values[n]. pool NULL: the caller's thread only. */
double delta_host(struct pool *pool, enum delta_form form, const float *base, const float *values, float *out,
                  size_t n);
/* Returns whether values[n] are all finite. */
bool delta_host_finite(struct pool *pool, const float *values, size_t n);

enum { DELTA_HOST_TEXT = LAYOUT_NAME_MAX + 96 };
/* "tensor 'x' has 3 values that are NaN or infinite", of the first such tensor. False: all values[n_params] are finite.
 */
bool delta_host_nonfinite_text(const struct layout *layout, const float *values, char text[DELTA_HOST_TEXT]);

#endif
