/* Muon on the CUDA device. Matrices of one shape are processed in batches, so a step takes few launches for many
 * matrices. */
#ifndef GPU_CUDA_MUON_H
#define GPU_CUDA_MUON_H

#include "gpu/cuda/cuda_impl.h"

enum { CUDA_MUON_FLOATS = 8 << 20 };

struct cuda_muon {
    size_t floats; /* of one batch of equal matrices, which has at least one matrix; tests lower it */
};

#endif
