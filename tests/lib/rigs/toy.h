/* A model small enough to simulate a thousand runs: theta is pulled towards a point that depends on the sample, so what
 * a worker's delta is depends on exactly which samples it trained on, in which order, from which theta and with which
 * inner optimizer state. Every function is a pure function of its arguments. */
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

/* Initialises and fills `layout` (the caller finishes it), cut as config->train says; toy.0 and toy.1 pass
 * for its embeddings. */
enum status toy_layout(const struct toy *toy, const struct config *config, struct layout *layout) MUST_CHECK;

/* Mean gradient over the training samples at positions [start, start + count) of the endless order, added to
 * grad[n_params] with weight count; returns the loss summed over samples. */
double toy_gradient_add(const struct toy *toy, const float *theta, size_t n_params, uint64_t position, uint64_t count,
                        double *grad);
/* Loss summed over validation windows [start, start + count). */
double toy_val_loss(const struct toy *toy, const float *theta, size_t n_params, uint64_t start, uint64_t count);

#endif
