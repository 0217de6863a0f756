/* Loss and gradient of the classifier, one block per row, and reductions to a scalar. */
#include "gpu/cuda/kernels/cuda_act.h"

enum { WARPS = CUDA_BLOCK / 32, XENT_WARPS = CUDA_XENT_THREADS / 32, XENT_STEP = CUDA_XENT_THREADS * WIDE };

/* e^(x - top). exp2f adds four instructions to the GPU's power of 2 for results below 2^-126. With bf16 they are left
 * out, so that the kernel waits for memory and not for instructions. [derived from the code for sm_90: 16 instructions
 * per logit, 23 with exp2f; the memory of an H200 leaves time for 27] */
DEVICE float power(float x, float top, const int bf16)
{
    if (bf16) return power_of_2(fmaf(x, LOG2_E, -(top * LOG2_E)));
    return exp2f((x - top) * LOG2_E);
}

/* Maximum over a block of `warps` warps; every thread gets it. The caller may reuse `scratch` after its next
 * __syncthreads. */
DEVICE float block_max(float x, const unsigned warps, float *scratch)
{
    x = warp_max(x);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    x = scratch[0];
    for (unsigned i = 1; i < warps; i++) x = fmaxf(x, scratch[i]);
    return x;
}

/* Loads WIDE logits from i on; -infinity after the last one. */
DEVICE void xent_load(const struct cuda_xent_args *a, size_t base, size_t i, const int bf16, float *x)
{
    if (i < a->v) act_load(a->logits, base + i, bf16, WIDE, x);
    if (i + WIDE <= a->v) return;
    UNROLL for (int k = 0; k < WIDE; k++)
    {
        if (i + k >= a->v) x[k] = -INFINITY;
    }
}

/* Maximum and sum of exponentials over a thread's part of the row, in one pass (Milakov and Gimelshein, arXiv
 * 1805.02867), two loads at a time. */
DEVICE float xent_max_sum(const struct cuda_xent_args *a, size_t base, const int bf16, float *top_out)
{
    float x[2 * WIDE], top = -INFINITY, sum = 0;
    for (size_t i = threadIdx.x * (size_t)WIDE; i < a->v; i += 2 * XENT_STEP) {
        float higher = top;
        xent_load(a, base, i, bf16, x);
        xent_load(a, base, i + XENT_STEP, bf16, x + WIDE);
        UNROLL for (int k = 0; k < 2 * WIDE; k++) higher = fmaxf(higher, x[k]);
        if (higher > top) sum *= power(top, higher, bf16);
        top = higher;
        UNROLL for (int k = 0; k < 2 * WIDE; k++) sum += power(x[k], top, bf16);
    }
    *top_out = top;
    return sum;
}

/* In place: (softmax - onehot) dscale, zero after the last logit. The rare cases are tested once per WIDE numbers. */
DEVICE void xent_grad(const struct cuda_xent_args *a, size_t i, size_t target, float lse, const int bf16, float *x)
{
    UNROLL for (int k = 0; k < WIDE; k++) x[k] = power(x[k], lse, bf16) * a->dscale;
    if (i + WIDE > a->v) UNROLL for (int k = 0; k < WIDE; k++) x[k] = i + k < a->v ? x[k] : 0.0f;
    if (target - i >= WIDE) return;
    UNROLL for (int k = 0; k < WIDE; k++) x[k] -= i + k == target ? a->dscale : 0.0f;
}

/* Starts at the end of the row, which the first pass read last and which is still in the cache. */
DEVICE void xent_write(const struct cuda_xent_args *a, size_t base, size_t target, float lse, const int bf16)
{
    float x[WIDE], y[WIDE];
    for (size_t round = (a->ld + 2 * XENT_STEP - 1) / (2 * XENT_STEP); round-- > 0;) {
        size_t i = round * 2 * XENT_STEP + threadIdx.x * (size_t)WIDE, j = i + XENT_STEP;
        if (i >= a->ld) continue;
        act_load(a->logits, base + i, bf16, WIDE, x);
        if (j < a->ld) act_load(a->logits, base + j, bf16, WIDE, y);
        xent_grad(a, i, target, lse, bf16, x);
        act_store(a->logits, base + i, bf16, WIDE, x);
        if (j >= a->ld) continue;
        xent_grad(a, j, target, lse, bf16, y);
        act_store(a->logits, base + j, bf16, WIDE, y);
    }
}

DEVICE void xent_zero(const struct cuda_xent_args *a, size_t base, const int bf16)
{
    const float zero = 0;
    for (size_t i = threadIdx.x; i < a->ld; i += CUDA_XENT_THREADS) act_store(a->logits, base + i, bf16, 1, &zero);
}

/* loss = lse - logit[target], and unless loss_only the gradient. Grid: one block of 16 warps per row. Two blocks fit a
 * multiprocessor, so that rows in progress stay in the cache until their second read. [derived: 264 rows of 100 KB on
 * an H100, which has 50 MB; with 128256 words they take 68 MB, and the later half stays] */
ACT_KERNEL(cuda_xent, cuda_xent_args, CUDA_XENT_THREADS)
{
    __shared__ float tops[XENT_WARPS];
    __shared__ double sums[XENT_WARPS];
    __shared__ float lse;
    size_t base = blockIdx.x * a.ld;
    int32_t target = a.targets[blockIdx.x];
    if (target < 0) {
        if (threadIdx.x == 0) a.loss[blockIdx.x] = 0;
        if (!a.loss_only) xent_zero(&a, base, bf16);
        return; /* uniform in the block */
    }
    float own, sum = xent_max_sum(&a, base, bf16, &own), top = block_max(own, XENT_WARPS, tops);
    sum = own > -INFINITY ? sum * power(own, top, bf16) : sum; /* a thread without logits has sum 0 */
    warps_sum(sum, sums);
    __syncthreads();
    if (threadIdx.x == 0) { /* one thread alone, because a logarithm in fp64 is slow on many GPUs */
        lse = top + (float)log(sum_of(sums, XENT_WARPS));
        a.loss[blockIdx.x] = lse - act_one(a.logits, base + (size_t)target, bf16);
    }
    if (a.loss_only) return;
    __syncthreads(); /* lse is written, and logit[target] has been read */
    xent_write(&a, base, (size_t)target, lse, bf16);
}

/* Sum of a thread's part of a segment, WIDE numbers at a time, in one order for wide and single loads. */
DEVICE double segment_part(const struct cuda_reduce_args *a)
{
    size_t begin = blockIdx.x * a->segment, end = begin + a->segment < a->n ? begin + a->segment : a->n;
    double sum = 0;
    for (size_t i = begin + threadIdx.x * (size_t)WIDE; i < end; i += CUDA_BLOCK * WIDE) {
        float x[WIDE];
        if (a->wide && i + WIDE <= end)
            act_load(a->x, i, 0, WIDE, x);
        else
            UNROLL for (int k = 0; k < WIDE; k++) x[k] = i + k < end ? a->x[i + k] : 0.0f;
        UNROLL for (int k = 0; k < WIDE; k++) sum += a->square ? (double)x[k] * (double)x[k] : (double)x[k];
    }
    return sum;
}

/* sums[block] = sum of one segment, or of its squares, in fp64. */
KERNEL(cuda_reduce, cuda_reduce_args, CUDA_BLOCK)
{
    __shared__ double sums[WARPS];
    double sum = block_sum(segment_part(&a), WARPS, sums);
    if (threadIdx.x == 0) a.sums[blockIdx.x] = sum;
}

/* *out = sum of all segments; one block. */
KERNEL(cuda_reduce_end, cuda_reduce_args, CUDA_BLOCK)
{
    __shared__ double sums[WARPS];
    double sum = 0;
    for (size_t i = threadIdx.x; i < a.segments; i += CUDA_BLOCK) sum += a.sums[i];
    sum = block_sum(sum, WARPS, sums);
    if (threadIdx.x == 0) *a.out = (float)sum;
}
