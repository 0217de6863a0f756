/* Shared by the kernels of the outer path: a value of the fragment's delta. */
#ifndef GPU_CUDA_DELTA_H
#define GPU_CUDA_DELTA_H

#include "gpu/cuda/kernels/cuda_kernel.h"
#include "gpu/delta_rules.h"

/* x = (anchor - theta) + decay * residual, each operation rounded. Adds the square of anchor - theta to *square.
 * Without anchor the delta is theta. */
DEVICE float delta_at(const struct cuda_delta_args *a, uint64_t at, double *square)
{
    float delta = a->anchor ? a->anchor[at] - a->theta[at] : a->theta[at];
    *square += (double)delta * (double)delta;
    return a->residual ? delta + a->decay * a->residual[at] : delta;
}

#endif
