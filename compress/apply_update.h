/* Applies an update to a fragment of theta with several threads. Threads share the codec's parts (or the floats), and
 * every coordinate is computed independently: the bits do not depend on the number of threads (common/tensor/apply.h).
 * One pass decodes a part and adds it while it is in cache. A sparse payload touches only the coordinates it lists. */
#ifndef COMPRESS_APPLY_UPDATE_H
#define COMPRESS_APPLY_UPDATE_H

#include <stdbool.h>
#include <stddef.h>

#include "compress/codec.h"

struct pool;

/* theta[codec_count] = the decoded values of the view if `replace`, else theta + values: apply_update of
 * common/tensor/apply.h. pool NULL: the caller's thread only. */
void apply_update_view(struct pool *pool, const struct codec_view *view, bool replace, float *theta);

/* The outer step for relayed deltas: apply_sgd, then apply_update. x[n] holds the merged deltas and is overwritten. */
struct apply_update_sgd {
    double lr;
    bool parameters, increment; /* arguments of apply_sgd */
};
void apply_update_step(struct pool *pool, const struct apply_update_sgd *step, float *x, float *theta, size_t n);

#endif
