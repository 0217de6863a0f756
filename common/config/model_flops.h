/* Size of a model in weights, and FLOP per training token. */
#ifndef COMMON_MODEL_FLOPS_H
#define COMMON_MODEL_FLOPS_H

#include "common/config/config.h"

/* Number of weights in the matrix products of the layers and the output layer, from the model section of a resolved
 * configuration. Vectors, positions, and an untied token embedding do not count. */
double model_weights(const struct config *config);

/* FLOP per token of a training step: 6 for each of these weights (2 forward, 4 backward), plus causal attention over
 * block_size positions, counted once.
 *
 * Recomputation does not count, so this rate over the time is the rate of MFU (Chowdhery et al., arXiv 2204.02311,
 * appendix B; causal attention halves their attention term, as in llm.c). */
double model_flops_per_token(const struct config *config);

#endif
