/* The token shards that a worker trains and evaluates on. */
#ifndef WORKER_TRAIN_DATA_H
#define WORKER_TRAIN_DATA_H

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/tensor/tokens.h"

/* Opens the shards of data.train and data.val. An empty data.val is set to data.train with "val" for "train" in the
 * file name. INVALID: no shards. Errors name the key. On failure nothing stays open. */
enum status train_data_open(struct tokens *train, struct tokens *val, struct config *config,
                            struct err *err) MUST_CHECK;
/* INVALID: one of the two has no sample of model.block_size, or a token outside model.vocab_size. */
enum status train_data_check(const struct tokens *train, const struct tokens *val, const struct config *config,
                             struct err *err) MUST_CHECK;

#endif
