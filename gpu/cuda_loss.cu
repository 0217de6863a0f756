/* The classifier's loss and gradient, a block a row, and reductions to a scalar. */
#include "gpu/cuda_kernel.h"

enum { WARPS = CUDA_BLOCK / 32 };

/* Over a block; every thread gets it. `scratch` is free again after the caller's next __syncthreads. */
DEVICE float block_max(float x, float *scratch)
{
    x = warp_max(x);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    x = scratch[0];
    for (unsigned i = 1; i < WARPS; i++) x = fmaxf(x, scratch[i]);
    return x;
}

DEVICE double block_sum(double x, double *scratch)
{
    x = warp_sum_double(x);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    x = scratch[0];
    for (unsigned i = 1; i < WARPS; i++) x += scratch[i];
    return x;
}

/* loss = lse - logit[target]; unless loss_only, in place: (softmax - onehot) dscale. */
KERNEL(cuda_xent, cuda_xent_args, CUDA_BLOCK)
{
    __shared__ float tops[WARPS];
    __shared__ double sums[WARPS];
    float *row = a.logits + blockIdx.x * a.ld;
    int32_t target = a.targets[blockIdx.x];
    if (target < 0) {
        if (threadIdx.x == 0) a.loss[blockIdx.x] = 0;
        for (size_t i = threadIdx.x; i < a.ld && !a.loss_only; i += CUDA_BLOCK) row[i] = 0;
        return; /* the whole block */
    }
    float top = -INFINITY, sum = 0;
    for (size_t i = threadIdx.x; i < a.v; i += CUDA_BLOCK) top = fmaxf(top, row[i]);
    top = block_max(top, tops);
    for (size_t i = threadIdx.x; i < a.v; i += CUDA_BLOCK) sum += expf(row[i] - top);
    float lse = top + (float)log(block_sum(sum, sums));
    float logit = row[target];
    if (threadIdx.x == 0) a.loss[blockIdx.x] = lse - logit;
    if (a.loss_only) return;
    __syncthreads(); /* all have read logit[target] */
    for (size_t i = threadIdx.x; i < a.ld; i += CUDA_BLOCK) {
        float p = i < a.v ? expf(row[i] - lse) * a.dscale : 0.0f;
        row[i] = i == (size_t)target ? p - a.dscale : p;
    }
}

KERNEL(cuda_reduce, cuda_reduce_args, CUDA_BLOCK)
{
    __shared__ double sums[WARPS];
    size_t begin = blockIdx.x * a.segment, end = begin + a.segment < a.n ? begin + a.segment : a.n;
    double sum = 0;
    for (size_t i = begin + threadIdx.x; i < end; i += CUDA_BLOCK) {
        double x = a.x[i];
        sum += a.square ? x * x : x;
    }
    sum = block_sum(sum, sums);
    if (threadIdx.x == 0) a.sums[blockIdx.x] = sum;
}

KERNEL(cuda_reduce_end, cuda_reduce_args, CUDA_SEGMENTS)
{
    __shared__ double sums[WARPS];
    double sum = block_sum(a.sums[threadIdx.x], sums);
    if (threadIdx.x == 0) *a.out = (float)sum;
}
