/* Gradient clipping, SGD and AdamW. Nothing returns to the host; a scale of 0 marks a refused step on the device. */
#include <float.h>

#include "gpu/cuda/kernels/cuda_act.h"

/* Scale and norm of a step from the sum of squares; one thread. */
KERNEL(cuda_clip, cuda_clip_args, 32)
{
    if (threadIdx.x) return;
    float norm = sqrtf(*a.sumsq), scale = a.max_norm > 0 && norm > a.max_norm ? a.max_norm / norm : 1.0f;
    *a.norm = norm;
    if (scale < FLT_MIN) scale = FLT_MIN;       /* 0 is reserved for refused steps */
    *a.scale = norm - norm == 0 ? scale : 0.0f; /* refuse the step if the norm is infinite or NaN */
}

/* Counts an accepted step: bias corrections and random bits of the step; one thread. */
KERNEL(cuda_count_step, cuda_count_args, 32)
{
    if (threadIdx.x || *a.scale == 0) return;
    struct step_count *count = a.count;
    count->steps++;
    count->correct[0] = moment_correct(a.beta1, count->steps);
    count->correct[1] = moment_correct(a.beta2, count->steps);
    moment_noise(count->seed, count->steps, count->noise);
}

/* theta = theta * keep - lr * scale * grad */
KERNEL(cuda_sgd, cuda_sgd_args, CUDA_BLOCK)
{
    size_t i = global_index();
    float scale = a.scale ? *a.scale : 1.0f;
    if (i < a.n && scale != 0) a.theta[i] = fmaf(-a.lr * scale, a.grad[i], a.theta[i] * a.keep);
}

/* AdamW with the same operations in the same order as the CPU's adamw_run or, with bf16 moments, adamw_bf16. Grid: the
 * blocks of all spans, 4 elements per thread. A block lies in one span, the last one that begins at or before it. */
ACT_KERNEL(cuda_adamw, cuda_adamw_args, CUDA_BLOCK)
{
    float scale = a.scale ? *a.scale : 1.0f;
    size_t low = 0, high = a.n_spans;
    if (scale == 0) return;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (a.spans[middle].block <= blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    const struct cuda_adamw_span *span = &a.spans[low];
    size_t first = (blockIdx.x - span->block) * CUDA_BLOCK * CUDA_ADAMW_EACH + threadIdx.x;
    float keep = span->decay ? a.keep : 1.0f;
    float correct1 = a.count ? a.count->correct[0] : a.correct1;
    float correct2 = a.count ? a.count->correct[1] : a.correct2;
    uint32_t noise0 = bf16 ? a.count->noise[0] : 0, noise1 = bf16 ? a.count->noise[1] : 0;
    float g[CUDA_ADAMW_EACH] = {0}, m[CUDA_ADAMW_EACH] = {0}, v[CUDA_ADAMW_EACH] = {0}, theta[CUDA_ADAMW_EACH] = {0};
    UNROLL for (unsigned k = 0; k < CUDA_ADAMW_EACH; k++)
    { /* issue all loads before the first use, because loads do not move above stores */
        size_t at = first + k * CUDA_BLOCK, i = span->offset + at, j = i - span->skipped;
        if (at >= span->count) continue;
        g[k] = a.grad[i];
        m[k] = act_one(a.m, j, bf16);
        v[k] = act_one(a.v, j, bf16);
        theta[k] = a.theta[i];
    }
    UNROLL for (unsigned k = 0; k < CUDA_ADAMW_EACH; k++)
    {
        size_t at = first + k * CUDA_BLOCK, i = span->offset + at, j = i - span->skipped;
        if (at >= span->count) continue;
        g[k] *= scale;
        float m_new = (1 - a.beta1) * g[k], v_new = (1 - a.beta2) * (g[k] * g[k]), lr = -a.lr * correct1;
        m[k] = bf16 ? moment_drop(a.beta1 * m[k] + moment_drop(m_new)) : fmaf(a.beta1, m[k], m_new);
        v[k] = bf16 ? moment_drop(a.beta2 * v[k] + moment_drop(v_new)) : fmaf(a.beta2, v[k], v_new);
        float step = m[k] / (sqrtf(v[k] * correct2) + a.eps);
        theta[k] = bf16 ? theta[k] * keep + moment_drop(lr * step) : fmaf(lr, step, theta[k] * keep);
        a.theta[i] = theta[k];
        if (bf16) {
            uint32_t word = moment_word(noise0, noise1, i);
            ((uint16_t *)a.m)[j] = moment_round(m[k], word & 0xffff);
            ((uint16_t *)a.v)[j] = moment_round(v[k], word >> 16);
        } else {
            ((float *)a.m)[j] = m[k];
            ((float *)a.v)[j] = v[k];
        }
        if (a.image) a.image[i] = bf16_of(theta[k]);
    }
}
