/* RMS norm, one warp per row and 8 rows per block. The gradient of the weight is summed over rows as in
 * gpu/cuda/kernels/cuda_norm.cu. */
#include "gpu/cuda/kernels/cuda_act.h"

DEVICE void rms_row(const struct cuda_rms_args *a, const int bf16, const int width)
{
    size_t row = (size_t)blockIdx.x * CUDA_ROW_WARPS + threadIdx.x / 32, first = threadIdx.x % 32 * width;
    if (row >= a->n) return; /* uniform in the warp */
    size_t base = row * a->c;
    float x[WIDE], w[WIDE], square = 0;
    for (size_t i = first; i < a->c; i += 32 * width) {
        act_load(a->x, base + i, bf16, width, x);
        UNROLL for (int k = 0; k < width; k++) square = fmaf(x[k], x[k], square);
    }
    float rstd = 1.0f / sqrtf(warp_sum(square) / (float)a->c + a->eps);
    for (size_t i = first; i < a->c; i += 32 * width) {
        act_load(a->x, base + i, bf16, width, x);
        weights_load(a->w, i, width, w);
        UNROLL for (int k = 0; k < width; k++) x[k] *= rstd * w[k];
        act_store(a->y, base + i, bf16, width, x);
    }
    if (threadIdx.x % 32 == 0) a->rstd_out[row] = rstd;
}

/* y = x rstd w, rstd = 1 / sqrt(mean(x^2) + eps); writes rstd. */
ACT_KERNEL(cuda_rms_fwd, cuda_rms_args, CUDA_ROW_WARPS * 32)
{
    if (a.c % WIDE)
        rms_row(&a, bf16, 1);
    else
        rms_row(&a, bf16, WIDE);
}

/* dx = dres + rstd (g - hat mean(g hat)), where g = dy w and hat = x rstd */
DEVICE void rms_backward(const struct cuda_rms_args *a, const int bf16, const int width)
{
    size_t row = (size_t)blockIdx.x * CUDA_ROW_WARPS + threadIdx.x / 32, first = threadIdx.x % 32 * width;
    if (row >= a->n) return;
    size_t base = row * a->c;
    float rstd = a->rstd[row], dot = 0, x[WIDE], dy[WIDE], w[WIDE], dx[WIDE] = {0};
    for (size_t i = first; i < a->c; i += 32 * width) {
        act_load(a->x, base + i, bf16, width, x);
        act_load(a->dy, base + i, bf16, width, dy);
        weights_load(a->w, i, width, w);
        UNROLL for (int k = 0; k < width; k++) dot = fmaf(dy[k] * w[k], x[k] * rstd, dot);
    }
    float mean = warp_sum(dot) / (float)a->c;
    for (size_t i = first; i < a->c; i += 32 * width) {
        act_load(a->x, base + i, bf16, width, x);
        act_load(a->dy, base + i, bf16, width, dy);
        if (a->dres) act_load(a->dres, base + i, bf16, width, dx);
        weights_load(a->w, i, width, w);
        UNROLL for (int k = 0; k < width; k++)
        {
            float d = (dy[k] * w[k] - x[k] * rstd * mean) * rstd;
            dx[k] = a->dres ? d + dx[k] : d;
        }
        act_store(a->dx, base + i, bf16, width, dx);
    }
}

/* dx; for rows that cuda_rms_fused cannot hold. */
ACT_KERNEL(cuda_rms_bwd, cuda_rms_args, CUDA_ROW_WARPS * 32)
{
    if (a.c % WIDE)
        rms_backward(&a, bf16, 1);
    else
        rms_backward(&a, bf16, WIDE);
}

/* dw = sum of dy hat over the rows of block blockIdx.y */
DEVICE void rms_sums(const struct cuda_rms_args *a, const int bf16, const int width)
{
    size_t column = global_index() * width, row = blockIdx.y * a->block;
    size_t end = row + a->block < a->n ? row + a->block : a->n;
    float x[WIDE], dy[WIDE], dw[WIDE] = {0};
    if (column >= a->c) return;
    for (; row < end; row++) {
        float rstd = a->rstd[row];
        act_load(a->x, row * a->c + column, bf16, width, x);
        act_load(a->dy, row * a->c + column, bf16, width, dy);
        UNROLL for (int k = 0; k < width; k++) dw[k] = fmaf(dy[k], x[k] * rstd, dw[k]);
    }
    UNROLL for (int k = 0; k < width; k++) a->partials[blockIdx.y * a->c + column + k] = dw[k];
}

ACT_KERNEL(cuda_rms_columns, cuda_rms_args, CUDA_COLUMN_THREADS)
{
    if (a.c % WIDE)
        rms_sums(&a, bf16, 1);
    else
        rms_sums(&a, bf16, WIDE);
}
