/* Measures an incoming delta in one pass over its decoded values: size and norm. */
#ifndef COORDINATOR_DELTA_MEASURE_H
#define COORDINATOR_DELTA_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/outer/outer_state.h"

struct delta_measure {
    bool in_range; /* all values are below 2^64; larger ones are damage, such as a flipped exponent bit */
    double norm;   /* L2 norm of the delta; parameters: of theta - parameters */
};

/* Measures an open payload of a fragment. Deltas of parameters are computed against the current theta. The norm is the
 * same for any number of threads. */
struct delta_measure delta_measure(const struct outer_state *s, uint32_t fragment, const struct codec_view *view);

#endif
