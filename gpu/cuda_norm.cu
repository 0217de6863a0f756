/* Layer norm, a warp a row, and column sums: rows are cut into blocks, whatever the device, and the blocks' sums are
 * added in order, so the bits depend on the shape alone. */
#include "gpu/cuda_kernel.h"

KERNEL(cuda_norm_fwd, cuda_norm_args, CUDA_ROW_WARPS * 32)
{
    size_t row = (size_t)blockIdx.x * CUDA_ROW_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= a.n) return; /* a whole warp */
    const float *x = a.x + row * a.c;
    float sum = 0, square = 0, inverse = 1.0f / (float)a.c;
    for (size_t i = lane; i < a.c; i += 32) sum += x[i];
    float mean = warp_sum(sum) * inverse;
    for (size_t i = lane; i < a.c; i += 32) square = fmaf(x[i] - mean, x[i] - mean, square);
    float rstd = 1.0f / sqrtf(warp_sum(square) * inverse + 1e-5f);
    for (size_t i = lane; i < a.c; i += 32) a.y[row * a.c + i] = fmaf((x[i] - mean) * rstd, a.w[i], a.b[i]);
    if (lane == 0) {
        a.mean_out[row] = mean;
        a.rstd_out[row] = rstd;
    }
}

/* dx = dres + rstd (g - mean(g) - hat mean(g hat)), g = dy w, hat = (x - mean) rstd */
KERNEL(cuda_norm_bwd, cuda_norm_args, CUDA_ROW_WARPS * 32)
{
    size_t row = (size_t)blockIdx.x * CUDA_ROW_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= a.n) return;
    const float *x = a.x + row * a.c, *dy = a.dy + row * a.c;
    float mean = a.mean[row], rstd = a.rstd[row], sum = 0, dot = 0, inverse = 1.0f / (float)a.c;
    for (size_t i = lane; i < a.c; i += 32) {
        float g = dy[i] * a.w[i];
        sum += g;
        dot = fmaf(g, (x[i] - mean) * rstd, dot);
    }
    float mean_g = warp_sum(sum) * inverse, mean_gh = warp_sum(dot) * inverse;
    for (size_t i = lane; i < a.c; i += 32) {
        float hat = (x[i] - mean) * rstd, d = (dy[i] * a.w[i] - mean_g - hat * mean_gh) * rstd;
        a.dx[row * a.c + i] = a.dres ? d + a.dres[row * a.c + i] : d;
    }
}

/* dw = sum of dy hat, db = sum of dy, over the rows of block blockIdx.y */
KERNEL(cuda_norm_columns, cuda_norm_args, CUDA_BLOCK)
{
    size_t column = global_index(), row = blockIdx.y * a.block, end = row + a.block < a.n ? row + a.block : a.n;
    if (column >= a.c) return;
    float dw = 0, db = 0;
    for (; row < end; row++) {
        float d = a.dy[row * a.c + column];
        dw = fmaf(d, (a.x[row * a.c + column] - a.mean[row]) * a.rstd[row], dw);
        db += d;
    }
    float *out = a.partials + blockIdx.y * 2 * a.c;
    out[column] = dw;
    out[a.c + column] = db;
}

KERNEL(cuda_columns, cuda_columns_args, CUDA_BLOCK)
{
    size_t column = global_index(), row = blockIdx.y * a.block, end = row + a.block < a.n ? row + a.block : a.n;
    if (column >= a.c) return;
    float sum = 0;
    for (; row < end; row++) sum += a.x[row * a.c + column];
    a.partials[blockIdx.y * a.stride + column] = sum;
}

KERNEL(cuda_columns_end, cuda_columns_args, CUDA_BLOCK)
{
    size_t column = global_index();
    if (column >= a.c) return;
    float sum = a.accumulate ? a.out[column] : 0.0f;
    for (size_t i = 0; i < a.blocks; i++) sum += a.partials[i * a.stride + column];
    a.out[column] = sum;
}
