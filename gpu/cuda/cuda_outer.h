/* The outer path of the CUDA device: deltas as quantized values, and updates of the anchor. */
#ifndef GPU_CUDA_OUTER_H
#define GPU_CUDA_OUTER_H

#include "gpu/cuda/cuda_impl.h"

enum status cuda_outer_open(struct cuda_device *cuda) MUST_CHECK;

#endif
