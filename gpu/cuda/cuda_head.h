/* The output layer of the CUDA device: logits in chunks of rows, losses, and their gradients. */
#ifndef GPU_CUDA_HEAD_H
#define GPU_CUDA_HEAD_H

#include "gpu/cuda/cuda_impl.h"

struct cuda_head {
    void *logits;
    size_t bytes, most; /* of logits: allocated, and allowed; tests lower `most` to get more chunks */
};

#endif
