/* Measures an incoming delta in one pass over its decoded values: size, norm and direction. */
#ifndef COORDINATOR_DELTA_MEASURE_H
#define COORDINATOR_DELTA_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/outer/outer_state.h"

/* A sketch: every coordinate of theta is added, with a fixed pseudo-random sign, to one of SKETCH_FLOATS sums (Charikar
 * et al., "Finding frequent items in data streams", 2002). Dot products of sketches estimate dot products of deltas, so
 * directions can be compared without decoding a delta again. The error of a cosine is about 1 / sqrt(SKETCH_FLOATS),
 * 0.016. */
enum { SKETCH_FLOATS = 4096 };

struct delta_measure {
    bool in_range; /* all values are below 2^64; larger ones are damage, such as a flipped exponent bit */
    double norm;   /* L2 norm of the delta; parameters: of theta - parameters */
};

/* Measures an open payload of a fragment, and adds it to sketch[SKETCH_FLOATS]. Deltas of parameters are computed
 * against the current theta. The norm is the same for any number of threads. */
struct delta_measure delta_measure(const struct outer_state *s, uint32_t fragment, const struct codec_view *view,
                                   float *sketch);
double sketch_norm(const float *a); /* 0 if it is not finite */
/* sum[SKETCH_FLOATS]: the sum of several sketches, each divided by its norm. Returns the cosine of one of them with the
 * sum of the others; NaN: there is none. */
double sketch_cosine(const float *a, const float *sum);

#endif
