/* Backward of layer norm and RMS norm with one look at x and dy: dx, and the sums over rows that dw and db are made of.
 * A block goes through its rows in order, as many at a time as it can hold, so that their loads are on their way
 * together; a thread keeps to its columns, whose sums stay in registers. For rows of whole wide loads that fit a block;
 * others take two kernels (gpu/cuda/kernels/cuda_norm.cu, gpu/cuda/kernels/cuda_rms.cu). */
#define KERNEL_RESIDENT 512 /* leave each 128 registers; compilers would take a few more */
#include "gpu/cuda/kernels/cuda_act.h"

enum {
    HELD = CUDA_FUSED_WIDE, /* wide loads that a thread holds of x, and of dy: rows times loads of one */
    WARPS_MOST = CUDA_FUSED_THREADS / 32
};

/* One for the rows of now, one for those before: a single barrier each time. */
typedef float row_sums[2][WARPS_MOST][HELD][2];

/* A thread's columns of one row as they lie in memory. A conversion beside a load would have the next load wait. */
struct both_held {
    uint32_t x[WIDE], dy[WIDE], dres[WIDE];
};

/* A thread's columns of one row as they were held: hat = (x - mean) rstd and g = dy w; the columns' sums grow. */
DEVICE void both_look(const struct cuda_fused_args *a, const int bf16, const int rms, size_t row, size_t column,
                      const struct both_held *held, float *x, float *dy, float *dw, float *db, float *sum, float *dot)
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

/* dx = dres + rstd (g - mean(g) - hat mean(g hat)), RMS norm has no mean(g). dres: bf16 as it was held; for fp32 there
 * are no registers that long. */
DEVICE void both_write(const struct cuda_fused_args *a, const int bf16, size_t row, size_t column, const float *hat,
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

/* mean(g) and mean(g hat) of row r of those that are looked at, by what each warp has of it. */
DEVICE void both_sums(row_sums sums, unsigned turn, const int threads, int r, size_t c, float *mean_g, float *mean_gh)
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

/* `threads` of the block and `loads` of a row are constants. */
DEVICE void both_rows(const struct cuda_fused_args *a, const int bf16, const int rms, const int threads,
                      const int loads, row_sums sums)
{
    const int rows = HELD / loads;
    const size_t across = (size_t)threads * WIDE;
    const size_t warp = threadIdx.x / 32;
    size_t first = threadIdx.x * (size_t)WIDE, row = blockIdx.x * a->block;
    size_t end = row + a->block < a->n ? row + a->block : a->n;
    float hat[HELD][WIDE], g[HELD][WIDE], dw[HELD][WIDE] = {{0}}, db[HELD][WIDE] = {{0}};
    struct both_held held[HELD];
    for (unsigned turn = 0; row < end; row += rows, turn ^= 1) {
        UNROLL for (int h = 0; h < HELD; h++)
        { /* all on their way before the first is needed, and before a store, behind which no load is early */
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
                both_look(a, bf16, rms, row + r, first + l * across, &held[r * loads + l], hat[r * loads + l],
                          g[r * loads + l], dw[l], db[l], &sum, &dot);
            if (warp * 32 * WIDE < a->c) { /* else it has no columns */
                if (!rms) sum = warp_sum(sum);
                dot = warp_sum(dot);
            }
            if (threadIdx.x % 32 == 0) {
                sums[turn][warp][r][0] = sum;
                sums[turn][warp][r][1] = dot;
            }
        }
        __syncthreads(); /* the rows' sums are whole, and those before have been read */
        UNROLL for (int r = 0; r < rows; r++)
        {
            float mean_g, mean_gh;
            both_sums(sums, turn, threads, r, a->c, &mean_g, &mean_gh);
            UNROLL for (int l = 0; l < loads; l++) if (row + r < end && first + l * across < a->c)
                both_write(a, bf16, row + r, first + l * across, hat[r * loads + l], g[r * loads + l],
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

DEVICE void both(const struct cuda_fused_args *a, const int bf16, const int rms, const int threads, row_sums sums)
{
    if (a->c <= (size_t)threads * WIDE)
        both_rows(a, bf16, rms, threads, 1, sums);
    else
        both_rows(a, bf16, rms, threads, HELD, sums);
}

ACT_KERNEL(cuda_norm_fused, cuda_fused_args, CUDA_FUSED_THREADS)
{
    __shared__ row_sums sums;
    both(&a, bf16, 0, CUDA_FUSED_THREADS, sums);
}

/* Half the threads, for short rows. */
ACT_KERNEL(cuda_norm_fused_short, cuda_fused_args, CUDA_FUSED_THREADS / 2)
{
    __shared__ row_sums sums;
    both(&a, bf16, 0, CUDA_FUSED_THREADS / 2, sums);
}

ACT_KERNEL(cuda_rms_fused, cuda_fused_args, CUDA_FUSED_THREADS)
{
    __shared__ row_sums sums;
    both(&a, bf16, 1, CUDA_FUSED_THREADS, sums);
}

ACT_KERNEL(cuda_rms_fused_short, cuda_fused_args, CUDA_FUSED_THREADS / 2)
{
    __shared__ row_sums sums;
    both(&a, bf16, 1, CUDA_FUSED_THREADS / 2, sums);
}
