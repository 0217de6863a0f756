/* Backward of layer norm and RMS norm in one pass over x and dy: dx, and partial sums of dw and db.
 *
 * - Grid: blocks of rows. Block: 256 threads, or 128 for short rows; 256 bytes of shared memory.
 * - A block processes its rows in order, as many at a time as its registers hold, so that their loads overlap.
 * - A thread owns its columns; their sums stay in registers.
 * - Rows must consist of wide loads and fit a block. Other rows use two kernels (gpu/cuda/kernels/cuda_norm.cu). */
#define KERNEL_RESIDENT 512 /* limits a thread to 128 registers; compilers would use a few more */
#include "gpu/cuda/kernels/cuda_act.h"

enum {
    HELD = CUDA_FUSED_WIDE, /* wide loads of x, and of dy, in a thread's registers: rows times loads per row */
    WARPS_MAX = CUDA_FUSED_THREADS / 32
};

/* Double buffer for the current and the previous rows, so that one barrier per round is enough. */
typedef float row_sums[2][WARPS_MAX][HELD][2];

/* Raw bits of a thread's columns of one row. Converting at once would delay the next load. */
struct held_row {
    uint32_t x[WIDE], dy[WIDE], dres[WIDE];
};

/* Processes a thread's columns of one row: x becomes hat = (x - mean) rstd, dy becomes g = dy w; adds to dw, db, sum
 * and dot. */
DEVICE void fused_accumulate(const struct cuda_norm_args *a, const int bf16, const int rms, size_t row, size_t column,
                             const struct held_row *held, float *x, float *dy, float *dw, float *db, float *sum,
                             float *dot)
{
    float w[WIDE], mean = rms ? 0.0f : a->mean[row], rstd = a->rstd[row];
    weights_load(a->w, column, WIDE, w);
    act_held(held->x, bf16, x);
    act_held(held->dy, bf16, dy);
    UNROLL for (int k = 0; k < WIDE; k++)
    {
        x[k] = (x[k] - mean) * rstd;
        dw[k] = fmaf(dy[k], x[k], dw[k]);
        if (!rms) db[k] += dy[k];
        dy[k] *= w[k];
        if (!rms) *sum += dy[k];
        *dot = fmaf(dy[k], x[k], *dot);
    }
}

/* dx = dres + rstd (g - mean(g) - hat mean(g hat)); RMS norm has no mean(g). With bf16, dres comes from the held bits;
 * with fp32 there are not enough registers to hold it. */
DEVICE void fused_write(const struct cuda_norm_args *a, const int bf16, size_t row, size_t column, const float *hat,
                        const float *g, const uint32_t *dres, float mean_g, float mean_gh)
{
    float dx[WIDE] = {0}, rstd = a->rstd[row];
    size_t i = row * a->c + column;
    if (a->dres && bf16)
        act_held(dres, 1, dx);
    else if (a->dres)
        act_load(a->dres, i, 0, WIDE, dx);
    UNROLL for (int k = 0; k < WIDE; k++)
    {
        float d = (g[k] - mean_g - hat[k] * mean_gh) * rstd;
        dx[k] = a->dres ? d + dx[k] : d;
    }
    act_store(a->dx, i, bf16, WIDE, dx);
}

/* mean(g) and mean(g hat) of row r of the current round, from the sums of the warps. */
DEVICE void fused_means(row_sums sums, unsigned turn, const int threads, int r, size_t c, float *mean_g, float *mean_gh)
{
    float sum = 0, dot = 0;
    UNROLL for (int warp = 0; warp < threads / 32; warp++)
    {
        sum += sums[turn][warp][r][0];
        dot += sums[turn][warp][r][1];
    }
    *mean_g = sum / (float)c;
    *mean_gh = dot / (float)c;
}

/* The kernel body; `threads` per block and `loads` per row are compile-time constants. */
DEVICE void fused_rows(const struct cuda_norm_args *a, const int bf16, const int rms, const int threads,
                       const int loads, row_sums sums)
{
    const int rows = HELD / loads;
    const size_t across = (size_t)threads * WIDE;
    const size_t warp = threadIdx.x / 32;
    size_t first = threadIdx.x * (size_t)WIDE, row = blockIdx.x * a->block;
    size_t end = row + a->block < a->n ? row + a->block : a->n;
    float hat[HELD][WIDE], g[HELD][WIDE], dw[HELD][WIDE] = {{0}}, db[HELD][WIDE] = {{0}};
    struct held_row held[HELD];
    for (unsigned turn = 0; row < end; row += rows, turn ^= 1) {
        UNROLL for (int h = 0; h < HELD; h++)
        { /* issue all loads before the first use and before any store, because loads do not move above stores */
            size_t at = row + h / loads, column = first + h % loads * across;
            if (at >= end || column >= a->c) continue;
            act_hold(a->x, at * a->c + column, bf16, held[h].x);
            act_hold(a->dy, at * a->c + column, bf16, held[h].dy);
            if (bf16 && a->dres) act_hold(a->dres, at * a->c + column, 1, held[h].dres);
        }
        UNROLL for (int r = 0; r < rows; r++)
        {
            float sum = 0, dot = 0;
            UNROLL for (int l = 0; l < loads; l++) if (row + r < end && first + l * across < a->c)
                fused_accumulate(a, bf16, rms, row + r, first + l * across, &held[r * loads + l], hat[r * loads + l],
                                 g[r * loads + l], dw[l], db[l], &sum, &dot);
            if (warp * 32 * WIDE < a->c) { /* a warp beyond the row has no columns */
                if (!rms) sum = warp_sum(sum);
                dot = warp_sum(dot);
            }
            if (threadIdx.x % 32 == 0) {
                sums[turn][warp][r][0] = sum;
                sums[turn][warp][r][1] = dot;
            }
        }
        __syncthreads(); /* the rows' sums are written, and the previous ones have been read */
        UNROLL for (int r = 0; r < rows; r++)
        {
            float mean_g, mean_gh;
            fused_means(sums, turn, threads, r, a->c, &mean_g, &mean_gh);
            UNROLL for (int l = 0; l < loads; l++) if (row + r < end && first + l * across < a->c)
                fused_write(a, bf16, row + r, first + l * across, hat[r * loads + l], g[r * loads + l],
                            held[r * loads + l].dres, mean_g, mean_gh);
        }
    }
    float *out = a->partials + blockIdx.x * (rms ? 1 : 2) * a->c + first;
    UNROLL for (int l = 0; l < loads; l++)
    {
        if (first + l * across >= a->c) continue;
        UNROLL for (int k = 0; k < WIDE; k++) out[l * across + k] = dw[l][k];
        if (rms) continue;
        UNROLL for (int k = 0; k < WIDE; k++) out[a->c + l * across + k] = db[l][k];
    }
}

DEVICE void fused(const struct cuda_norm_args *a, const int bf16, const int rms, const int threads, row_sums sums)
{
    if (a->c <= (size_t)threads * WIDE)
        fused_rows(a, bf16, rms, threads, 1, sums);
    else
        fused_rows(a, bf16, rms, threads, HELD, sums);
}

#define FUSED_KERNEL(name, rms, threads)                                                                               \
    ACT_KERNEL(name, cuda_norm_args, threads)                                                                          \
    {                                                                                                                  \
        __shared__ row_sums sums;                                                                                      \
        fused(&a, bf16, rms, threads, sums);                                                                           \
    }
FUSED_KERNEL(cuda_norm_fused, 0, CUDA_FUSED_THREADS)
FUSED_KERNEL(cuda_rms_fused, 1, CUDA_FUSED_THREADS)
/* Half the threads, for short rows. */
FUSED_KERNEL(cuda_norm_fused_short, 0, CUDA_FUSED_THREADS / 2)
FUSED_KERNEL(cuda_rms_fused_short, 1, CUDA_FUSED_THREADS / 2)
