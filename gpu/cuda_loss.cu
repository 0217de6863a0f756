/* The classifier's loss and gradient, a block a row, and reductions to a scalar. */
#include "gpu/cuda_act.h"

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

/* The largest logit of a thread's part of the row and the sum of exponentials under it, in one pass (Milakov and
 * Gimelshein, arXiv 1805.02867). */
DEVICE float xent_look(const struct cuda_xent_args *a, size_t base, const int bf16, float *top_out)
{
    float x[WIDE], top = -INFINITY, sum = 0;
    for (size_t i = threadIdx.x * (size_t)WIDE; i < a->v; i += CUDA_BLOCK * WIDE) {
        float higher = top;
        act_load(a->logits, base + i, bf16, WIDE, x);
        UNROLL for (int k = 0; k < WIDE; k++)
        {
            if (i + k >= a->v) x[k] = -INFINITY;
            higher = fmaxf(higher, x[k]);
        }
        if (higher > top) sum *= expf(top - higher);
        top = higher;
        UNROLL for (int k = 0; k < WIDE; k++) sum += expf(x[k] - top);
    }
    *top_out = top;
    return sum;
}

/* In place: (softmax - onehot) dscale, zero behind the last logit. */
DEVICE void xent_write(const struct cuda_xent_args *a, size_t base, size_t target, float lse, const int bf16)
{
    float x[WIDE];
    for (size_t i = threadIdx.x * (size_t)WIDE; i < a->ld; i += CUDA_BLOCK * WIDE) {
        act_load(a->logits, base + i, bf16, WIDE, x);
        UNROLL for (int k = 0; k < WIDE; k++)
        {
            float p = i + k < a->v ? expf(x[k] - lse) * a->dscale : 0.0f;
            x[k] = i + k == target ? p - a->dscale : p;
        }
        act_store(a->logits, base + i, bf16, WIDE, x);
    }
}

DEVICE void xent_zero(const struct cuda_xent_args *a, size_t base, const int bf16)
{
    const float zero = 0;
    for (size_t i = threadIdx.x; i < a->ld; i += CUDA_BLOCK) act_store(a->logits, base + i, bf16, 1, &zero);
}

/* loss = lse - logit[target], and unless loss_only the gradient */
ACT_KERNEL(cuda_xent, cuda_xent_args, CUDA_BLOCK)
{
    __shared__ float tops[WARPS];
    __shared__ double sums[WARPS];
    size_t base = blockIdx.x * a.ld;
    int32_t target = a.targets[blockIdx.x];
    if (target < 0) {
        if (threadIdx.x == 0) a.loss[blockIdx.x] = 0;
        if (!a.loss_only) xent_zero(&a, base, bf16);
        return; /* the whole block */
    }
    float own, sum = xent_look(&a, base, bf16, &own), top = block_max(own, tops);
    sum = own > -INFINITY ? sum * expf(own - top) : sum; /* a thread without logits: zero */
    float lse = top + (float)log(block_sum(sum, sums));
    float logit = act_one(a.logits, base + (size_t)target, bf16);
    if (threadIdx.x == 0) a.loss[blockIdx.x] = lse - logit;
    if (a.loss_only) return;
    __syncthreads(); /* all have read logit[target] */
    xent_write(&a, base, (size_t)target, lse, bf16);
}

/* A thread's part of a segment, WIDE numbers at a time, in one order however they are loaded. */
DEVICE double segment_part(const struct cuda_reduce_args *a)
{
    size_t begin = blockIdx.x * a->segment, end = begin + a->segment < a->n ? begin + a->segment : a->n;
    double sum = 0;
    for (size_t i = begin + threadIdx.x * (size_t)WIDE; i < end; i += CUDA_BLOCK * WIDE) {
        float x[WIDE];
        if (a->wide && i + WIDE <= end) act_load(a->x, i, 0, WIDE, x);
        else UNROLL for (int k = 0; k < WIDE; k++) x[k] = i + k < end ? a->x[i + k] : 0.0f;
        UNROLL for (int k = 0; k < WIDE; k++) sum += a->square ? (double)x[k] * (double)x[k] : (double)x[k];
    }
    return sum;
}

KERNEL(cuda_reduce, cuda_reduce_args, CUDA_BLOCK)
{
    __shared__ double sums[WARPS];
    double sum = block_sum(segment_part(&a), sums);
    if (threadIdx.x == 0) a.sums[blockIdx.x] = sum;
}

KERNEL(cuda_reduce_end, cuda_reduce_args, CUDA_BLOCK)
{
    __shared__ double sums[WARPS];
    double sum = 0;
    for (size_t i = threadIdx.x; i < a.segments; i += CUDA_BLOCK) sum += a.sums[i];
    sum = block_sum(sum, sums);
    if (threadIdx.x == 0) *a.out = (float)sum;
}
