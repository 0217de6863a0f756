/* Staging of unpinned host memory: it crosses the bus through two pinned buffers in turn, on a queue of its own. While
 * one buffer is in transfer, the host fills or empties the other. */
#ifndef GPU_CUDA_STAGE_H
#define GPU_CUDA_STAGE_H

#include "gpu/cuda/cuda_impl.h"

enum status cuda_stage_open(struct cuda_device *cuda) MUST_CHECK;
void cuda_stage_close(struct cuda_device *cuda);

#endif
