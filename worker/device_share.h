/* The GPUs of one worker of `atoll launch`: common/config/gpu_share.h for the number of GPUs of this machine. */
#ifndef WORKER_DEVICE_SHARE_H
#define WORKER_DEVICE_SHARE_H

#include "common/config/gpu_share.h"

/* Sets train.devices and train.ranks to this worker's share; called before config_resolve. `auto` and `cuda` are all
 * GPUs that CUDA_VISIBLE_DEVICES allows. The plugin counts them without using their memory. Logs the share; the first
 * worker also logs idle GPUs. INVALID: see gpu_share_from_env and gpu_share_apply. */
enum status device_share_take(struct gpu_share *share, struct config *config, struct config_sources *sources,
                              struct err *err) MUST_CHECK;

#endif
