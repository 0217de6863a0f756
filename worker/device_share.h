/* The GPUs of a worker of `atoll launch`: common/config/gpu_share.h with the machine's number of them. */
#ifndef WORKER_DEVICE_SHARE_H
#define WORKER_DEVICE_SHARE_H

#include "common/config/gpu_share.h"

/* Before config_resolve: train.devices and train.ranks become this worker's. auto and cuda are all GPUs there are (of
 * those that CUDA_VISIBLE_DEVICES leaves); they are counted by the plugin, which takes no memory of theirs. Says in the
 * log what was dealt, and the first worker what was not. INVALID: see gpu_share_from_env and gpu_share_apply. */
enum status device_share_take(struct gpu_share *share, struct config *config, struct config_sources *sources,
                              struct err *err) MUST_CHECK;

#endif
