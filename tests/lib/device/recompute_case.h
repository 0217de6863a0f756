/* Levels of recompute against each other on one device.
 * Each level takes less memory than the previous one. Losses and gradients have the same bits, over micro-steps that
 * overwrite and micro-steps that add. */
#ifndef TESTS_LIB_RECOMPUTE_CASE_H
#define TESTS_LIB_RECOMPUTE_CASE_H

#include "worker/model/model.h"

void recompute_case(struct device *dev, const struct model_family *family, const struct model_config *config,
                    size_t batch, size_t seq);

#endif
