/* A model small enough for a thousand simulated runs: each sample pulls theta towards its own target.
 * A worker's delta depends on its samples, their order, the start theta and the inner optimizer state. Every
 * function is pure. */
#ifndef TESTS_LIB_TOY_H
#define TESTS_LIB_TOY_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/tensor/layout.h"

struct toy {
    uint64_t seed;
    uint64_t train_samples, val_samples;
    uint32_t sample_tokens;
    uint32_t n_tensors;
    uint32_t scale; /* tensor i has (5, 12 or 19) * scale floats */
};

/* Initialize and fill `layout`, split as config->train says (the caller finishes it); toy.0 and toy.1 count as
 * embeddings. */
enum status toy_layout(const struct toy *toy, const struct config *config, struct layout *layout) MUST_CHECK;

/* Add the mean gradient over the training samples at positions [start, start + count) of the endless order to
 * grad[n_params], with weight count. Returns the loss summed over samples. */
double toy_gradient_add(const struct toy *toy, const float *theta, size_t n_params, uint64_t position, uint64_t count,
                        double *grad);
/* Loss summed over validation windows [start, start + count). */
double toy_val_loss(const struct toy *toy, const float *theta, size_t n_params, uint64_t start, uint64_t count);

#endif
