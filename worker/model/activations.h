/* Places a model's activations in one block of device memory. The walk over all buffers runs twice: first to count,
 * then to place.
 *
 * train.recompute decides how much of a layer is kept for backward. The rest is recomputed layer by layer in buffers
 * that all layers share. The last layer's forward results are still in these buffers when backward starts. */
#ifndef WORKER_ACTIVATIONS_H
#define WORKER_ACTIVATIONS_H

#include <stdbool.h>
#include <stddef.h>

struct carve {
    unsigned char *base; /* NULL: only count */
    size_t used;
};

/* Returns the next `bytes`, aligned to MEM_ALIGN; NULL while counting. */
void *carve_take(struct carve *carve, size_t bytes);
/* Returns a buffer of `bytes` of layer l. A kept buffer and that of layer 0 are taken from `carve`; every other layer
 * shares `first`, the buffer of layer 0. */
void *carve_layer(struct carve *carve, size_t l, bool kept, void *first, size_t bytes);

/* Converts n activations in host memory, `act_bytes` each (4: fp32, 2: bf16), to out[n] in fp32. */
void activations_widen(const void *in, size_t act_bytes, size_t n, float *out);

#endif
