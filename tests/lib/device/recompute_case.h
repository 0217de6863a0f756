/* Levels of recompute against each other on one device: each takes less memory than the one before, and losses and
 * gradients do not change by a bit, over micro-steps that overwrite and that add. */
#ifndef TESTS_LIB_RECOMPUTE_CASE_H
#define TESTS_LIB_RECOMPUTE_CASE_H

#include "worker/model/model.h"

void recompute_case(struct device *dev, const struct model_family *family, const struct model_config *config,
                    size_t batch, size_t seq);

#endif
