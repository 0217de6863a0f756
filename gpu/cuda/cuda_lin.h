/* Linear layers of the CUDA device. */
#ifndef GPU_CUDA_LIN_H
#define GPU_CUDA_LIN_H

#include "gpu/cuda/cuda_impl.h"

enum status cuda_lin_open(struct cuda_device *cuda) MUST_CHECK;

#endif
