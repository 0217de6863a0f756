/* What an update does to a fragment of theta, by several threads: each takes some of the codec's parts (or of the
 * floats), and every coordinate is computed alone, so any number of threads makes the same bits
 * (common/tensor/apply.h). In one pass: a part's floats are decoded and added while they are in cache, and of a sparse
 * payload only those it names are touched. */
#ifndef WORKER_APPLY_UPDATE_H
#define WORKER_APPLY_UPDATE_H

#include <stdbool.h>
#include <stddef.h>

#include "compress/codec.h"

struct pool;

/* theta[codec_count], as common/tensor/apply.h's apply_update with the decoded values of the view. pool NULL: the
 * caller alone. */
void apply_update_view(struct pool *pool, const struct codec_view *view, bool replace, float *theta);

/* The outer step of relayed deltas, apply_sgd and apply_update: x[n] holds their merge, and is written over. */
struct apply_update_sgd {
    double lr;
    bool parameters, increment; /* as apply_sgd has them */
};
void apply_update_step(struct pool *pool, const struct apply_update_sgd *step, float *x, float *theta, size_t n);

#endif
