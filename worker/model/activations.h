/* Where a model's activations lie in the one piece of device memory that it takes: a walk over all buffers, done twice,
 * first to count, then to place.
 *
 * How much of a layer is kept for the way back is the level of train.recompute; the rest is made again, layer by layer,
 * in buffers that all layers share. So the last layer finds its own there still. */
#ifndef WORKER_ACTIVATIONS_H
#define WORKER_ACTIVATIONS_H

#include <stdbool.h>
#include <stddef.h>

struct carve {
    unsigned char *base; /* NULL: only count */
    size_t used;
};

/* The next `bytes`, aligned to MEM_ALIGN; NULL while counting. */
void *carve_take(struct carve *carve, size_t bytes);
/* The same buffer of layer l: of its own if it is kept, otherwise the first layer's, `of_first`, which all use in
 * turn. */
void *carve_layer(struct carve *carve, size_t l, bool kept, void *of_first, size_t bytes);

/* out[n] of host memory from n activations of `act_bytes` each, as a device leaves them. */
void activations_widen(const void *in, size_t act_bytes, size_t n, float *out);

#endif
