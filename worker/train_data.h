/* The token shards a worker trains and evaluates on. */
#ifndef WORKER_TRAIN_DATA_H
#define WORKER_TRAIN_DATA_H

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/tensor/tokens.h"

/* Open the shards that data.train and data.val name, with the key's name in what is wrong: INVALID when there are none.
 * Without data.val: those beside the training shards that have "val" where those have "train" in their names; the
 * configuration gets the pattern. Nothing stays open on failure. */
enum status train_data_open(struct tokens *train, struct tokens *val, struct config *config,
                            struct err *err) MUST_CHECK;
/* INVALID when one of the two has no sample of model.block_size, or a token outside model.vocab_size. */
enum status train_data_check(const struct tokens *train, const struct tokens *val, const struct config *config,
                             struct err *err) MUST_CHECK;

#endif
