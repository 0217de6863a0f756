/* Vectors of the CUDA device: fill, sums, and the optimizers but Muon. */
#ifndef GPU_CUDA_VECTORS_H
#define GPU_CUDA_VECTORS_H

#include "gpu/cuda/cuda_impl.h"

enum status cuda_vectors_open(struct cuda_device *cuda) MUST_CHECK;
void cuda_vectors_close(struct cuda_device *cuda);

#endif
