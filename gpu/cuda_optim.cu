/* Gradient clipping and AdamW; nothing comes back to the host. */
#include <float.h>

#include "gpu/cuda_act.h"

KERNEL(cuda_clip, cuda_clip_args, 32)
{
    if (threadIdx.x) return;
    float norm = sqrtf(*a.sumsq), scale = a.max_norm > 0 && norm > a.max_norm ? a.max_norm / norm : 1.0f;
    *a.norm = norm;
    if (scale < FLT_MIN) scale = FLT_MIN; /* zero is for refused steps alone */
    *a.scale = norm - norm == 0 ? scale : 0.0f; /* infinity or NaN: the step is refused */
}

KERNEL(cuda_count_step, cuda_count_args, 32)
{
    if (threadIdx.x || *a.scale == 0) return;
    double step = (double)++*a.steps;
    a.correct[0] = (float)(1 / (1 - pow((double)a.beta1, step)));
    a.correct[1] = (float)(1 / (1 - pow((double)a.beta2, step)));
}

KERNEL(cuda_sgd, cuda_sgd_args, CUDA_BLOCK)
{
    size_t i = global_index();
    float scale = a.scale ? *a.scale : 1.0f;
    if (i < a.n && scale != 0) a.theta[i] = fmaf(-a.lr * scale, a.grad[i], a.theta[i] * a.keep);
}

/* The same operations in the same order as the CPU's adamw_run. A block lies in one span: the last one that begins at
 * or before it. */
KERNEL(cuda_adamw, cuda_adamw_args, CUDA_BLOCK)
{
    float scale = a.scale ? *a.scale : 1.0f;
    size_t low = 0, high = a.n_spans;
    if (scale == 0) return;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (a.spans[middle].block <= blockIdx.x) low = middle;
        else high = middle;
    }
    const struct cuda_adamw_span *span = &a.spans[low];
    size_t first = (blockIdx.x - span->block) * CUDA_BLOCK * CUDA_ADAMW_EACH + threadIdx.x;
    float keep = span->decay ? a.keep : 1.0f;
    float correct1 = a.correct ? a.correct[0] : a.correct1, correct2 = a.correct ? a.correct[1] : a.correct2;
    float g[CUDA_ADAMW_EACH] = {0}, m[CUDA_ADAMW_EACH] = {0}, v[CUDA_ADAMW_EACH] = {0}, theta[CUDA_ADAMW_EACH] = {0};
    UNROLL for (unsigned k = 0; k < CUDA_ADAMW_EACH; k++)
    { /* all on their way before the first is needed: behind a store nothing is loaded early */
        size_t at = first + k * CUDA_BLOCK, i = span->offset + at, j = i - span->skipped;
        if (at >= span->count) continue;
        g[k] = a.grad[i];
        m[k] = a.m[j];
        v[k] = a.v[j];
        theta[k] = a.theta[i];
    }
    UNROLL for (unsigned k = 0; k < CUDA_ADAMW_EACH; k++)
    {
        size_t at = first + k * CUDA_BLOCK, i = span->offset + at, j = i - span->skipped;
        if (at >= span->count) continue;
        g[k] *= scale;
        m[k] = fmaf(a.beta1, m[k], (1 - a.beta1) * g[k]);
        v[k] = fmaf(a.beta2, v[k], (1 - a.beta2) * (g[k] * g[k]));
        float step = m[k] / (sqrtf(v[k] * correct2) + a.eps);
        theta[k] = fmaf(-a.lr * correct1, step, theta[k] * keep);
        a.theta[i] = theta[k];
        a.m[j] = m[k];
        a.v[j] = v[k];
        if (a.image) a.image[i] = bf16_of(theta[k]);
    }
}
