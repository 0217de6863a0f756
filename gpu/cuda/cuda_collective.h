/* Collectives between the GPUs of one worker: `collective` of gpu/device.h. */
#ifndef GPU_CUDA_COLLECTIVE_H
#define GPU_CUDA_COLLECTIVE_H

#include "gpu/cuda/cuda_impl.h"

enum status cuda_collective_open(struct device *const *devices, int n_ranks, void (*end)(const char *line),
                                 struct collective *out, struct err *err) MUST_CHECK;

#endif
