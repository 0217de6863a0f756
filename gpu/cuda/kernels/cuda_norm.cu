/* Layer norm and RMS norm, one warp per row and 8 rows per block, and column sums. Column sums cut the rows into blocks
 * that depend on the shape alone, and add the blocks in order, so the bits do not depend on the device. */
#include "gpu/cuda/kernels/cuda_act.h"

DEVICE void norm_row(const struct cuda_norm_args *a, const int bf16, const int rms, const int width)
{
    size_t row = (size_t)blockIdx.x * CUDA_ROW_WARPS + threadIdx.x / 32, first = threadIdx.x % 32 * width;
    if (row >= a->n) return; /* uniform in the warp */
    size_t base = row * a->c;
    float x[WIDE], w[WIDE], b[WIDE], sum = 0, square = 0, inverse = 1.0f / (float)a->c;
    for (size_t i = first; i < a->c && !rms; i += 32 * width) {
        act_load(a->x, base + i, bf16, width, x);
        UNROLL for (int k = 0; k < width; k++) sum += x[k];
    }
    float mean = rms ? 0.0f : warp_sum(sum) * inverse;
    for (size_t i = first; i < a->c; i += 32 * width) {
        act_load(a->x, base + i, bf16, width, x);
        UNROLL for (int k = 0; k < width; k++) square = fmaf(x[k] - mean, x[k] - mean, square);
    }
    square = warp_sum(square);
    float rstd = 1.0f / sqrtf((rms ? square / (float)a->c : square * inverse) + a->eps);
    for (size_t i = first; i < a->c; i += 32 * width) {
        act_load(a->x, base + i, bf16, width, x);
        weights_load(a->w, i, width, w);
        if (!rms) weights_load(a->b, i, width, b);
        UNROLL for (int k = 0; k < width; k++) x[k] =
            rms ? x[k] * (rstd * w[k]) : fmaf((x[k] - mean) * rstd, w[k], b[k]);
        act_store(a->y, base + i, bf16, width, x);
    }
    if (threadIdx.x % 32) return;
    if (!rms) a->mean_out[row] = mean;
    a->rstd_out[row] = rstd;
}

/* y = (x - mean) rstd w + b, rstd = 1 / sqrt(variance + eps); writes mean and rstd. Two passes for mean and variance.
 * RMS norm: y = x rstd w, rstd = 1 / sqrt(mean(x^2) + eps). */
WIDE_KERNEL(cuda_norm_fwd, cuda_norm_args, CUDA_ROW_WARPS * 32, a.c % WIDE == 0, norm_row(&a, bf16, 0, width))
WIDE_KERNEL(cuda_rms_fwd, cuda_norm_args, CUDA_ROW_WARPS * 32, a.c % WIDE == 0, norm_row(&a, bf16, 1, width))

/* dx = dres + rstd (g - mean(g) - hat mean(g hat)), where g = dy w and hat = (x - mean) rstd; RMS norm has no mean and
 * no mean(g) */
DEVICE void norm_backward(const struct cuda_norm_args *a, const int bf16, const int rms, const int width)
{
    size_t row = (size_t)blockIdx.x * CUDA_ROW_WARPS + threadIdx.x / 32, first = threadIdx.x % 32 * width;
    if (row >= a->n) return;
    size_t base = row * a->c;
    float mean = rms ? 0.0f : a->mean[row], rstd = a->rstd[row], sum = 0, dot = 0, inverse = 1.0f / (float)a->c;
    float x[WIDE], dy[WIDE], w[WIDE], dx[WIDE] = {0};
    for (size_t i = first; i < a->c; i += 32 * width) {
        act_load(a->x, base + i, bf16, width, x);
        act_load(a->dy, base + i, bf16, width, dy);
        weights_load(a->w, i, width, w);
        UNROLL for (int k = 0; k < width; k++)
        {
            float g = dy[k] * w[k];
            if (!rms) sum += g;
            dot = fmaf(g, (x[k] - mean) * rstd, dot);
        }
    }
    float mean_g = rms ? 0.0f : warp_sum(sum) * inverse;
    float mean_gh = rms ? warp_sum(dot) / (float)a->c : warp_sum(dot) * inverse;
    for (size_t i = first; i < a->c; i += 32 * width) {
        act_load(a->x, base + i, bf16, width, x);
        act_load(a->dy, base + i, bf16, width, dy);
        if (a->dres) act_load(a->dres, base + i, bf16, width, dx);
        weights_load(a->w, i, width, w);
        UNROLL for (int k = 0; k < width; k++)
        {
            float hat = (x[k] - mean) * rstd, d = (dy[k] * w[k] - mean_g - hat * mean_gh) * rstd;
            dx[k] = a->dres ? d + dx[k] : d;
        }
        act_store(a->dx, base + i, bf16, width, dx);
    }
}

/* dx; for rows that cuda_norm_fused and cuda_rms_fused cannot hold. */
WIDE_KERNEL(cuda_norm_bwd, cuda_norm_args, CUDA_ROW_WARPS * 32, a.c % WIDE == 0, norm_backward(&a, bf16, 0, width))
WIDE_KERNEL(cuda_rms_bwd, cuda_norm_args, CUDA_ROW_WARPS * 32, a.c % WIDE == 0, norm_backward(&a, bf16, 1, width))

/* dw = sum of dy hat, db = sum of dy, over the rows of block blockIdx.y; RMS norm has no db */
DEVICE void norm_sums(const struct cuda_norm_args *a, const int bf16, const int rms, const int width)
{
    size_t column = global_index() * width, row = blockIdx.y * a->block;
    size_t end = row + a->block < a->n ? row + a->block : a->n;
    float x[WIDE], dy[WIDE], dw[WIDE] = {0}, db[WIDE] = {0};
    if (column >= a->c) return;
    for (; row < end; row++) {
        float mean = rms ? 0.0f : a->mean[row], rstd = a->rstd[row];
        act_load(a->x, row * a->c + column, bf16, width, x);
        act_load(a->dy, row * a->c + column, bf16, width, dy);
        UNROLL for (int k = 0; k < width; k++)
        {
            dw[k] = fmaf(dy[k], (x[k] - mean) * rstd, dw[k]);
            if (!rms) db[k] += dy[k];
        }
    }
    float *out = a->partials + blockIdx.y * (rms ? 1 : 2) * a->c + column;
    UNROLL for (int k = 0; k < width; k++)
    {
        out[k] = dw[k];
        if (!rms) out[a->c + k] = db[k];
    }
}

/* Partial sums of dw and db. Grid: wide blocks of 128 threads over c, by blocks of rows. */
WIDE_KERNEL(cuda_norm_columns, cuda_norm_args, CUDA_COLUMN_THREADS, a.c % WIDE == 0, norm_sums(&a, bf16, 0, width))
WIDE_KERNEL(cuda_rms_columns, cuda_norm_args, CUDA_COLUMN_THREADS, a.c % WIDE == 0, norm_sums(&a, bf16, 1, width))

DEVICE void column_sums(const struct cuda_columns_args *a, const int bf16, const int width)
{
    size_t column = global_index() * width, row = blockIdx.y * a->block;
    size_t end = row + a->block < a->n ? row + a->block : a->n;
    float x[WIDE], sum[WIDE] = {0};
    if (column >= a->c) return;
    for (; row < end; row++) {
        act_load(a->x, row * a->c + column, bf16, width, x);
        UNROLL for (int k = 0; k < width; k++) sum[k] += x[k];
    }
    UNROLL for (int k = 0; k < width; k++) a->partials[blockIdx.y * a->stride + column + k] = sum[k];
}

/* Partial column sums of x. Grid: as cuda_norm_columns. */
WIDE_KERNEL(cuda_columns, cuda_columns_args, CUDA_COLUMN_THREADS, a.c % WIDE == 0, column_sums(&a, bf16, width))

/* out[c] = or += the partial sums. Grid: ceil(c / 32), 16 warps per block. Each warp adds one group of the partial sums
 * of 32 columns, then the first warp adds the groups. */
KERNEL(cuda_columns_end, cuda_columns_args, CUDA_COLUMN_GROUPS * 32)
{
    __shared__ float groups[CUDA_COLUMN_GROUPS][32];
    size_t column = (size_t)blockIdx.x * 32 + threadIdx.x % 32, group = threadIdx.x / 32;
    size_t each = (a.blocks + CUDA_COLUMN_GROUPS - 1) / CUDA_COLUMN_GROUPS, i = group * each;
    size_t end = i + each < a.blocks ? i + each : a.blocks;
    float sum = 0;
    for (; i < end && column < a.c; i++) sum += a.partials[i * a.stride + column];
    groups[group][threadIdx.x % 32] = sum;
    __syncthreads(); /* all groups are written */
    if (group || column >= a.c) return;
    sum = a.accumulate ? a.out[column] : 0.0f;
    for (unsigned g = 0; g < CUDA_COLUMN_GROUPS; g++) sum += groups[g][threadIdx.x];
    a.out[column] = sum;
}
