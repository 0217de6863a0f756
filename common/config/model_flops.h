/* How large a model is, and what a token costs to train on. */
#ifndef COMMON_MODEL_FLOPS_H
#define COMMON_MODEL_FLOPS_H

#include "common/config/config.h"

/* Weights of the layers' products and of the output layer, from the model section of a resolved configuration: all of a
 * model but vectors, positions, and a token embedding that is not the output layer. */
double model_weights(const struct config *config);

/* FLOP of one token of a training step: 6 for each of those weights (2 forward, 4 backward), and causal attention over
 * block_size positions counted once. What is computed again for want of memory does not count, so this over the time is
 * the rate that MFU is of (Chowdhery et al., arXiv 2204.02311, appendix B; causal halves their attention term, as llm.c
 * has it). */
double model_flops_per_token(const struct config *config);

#endif
