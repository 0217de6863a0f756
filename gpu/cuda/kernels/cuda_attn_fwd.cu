/* Causal self-attention of bf16 on tensor cores, forward, after FlashAttention-2 (Dao, arXiv 2307.08691).
 *
 * - Grid: ceil(T / 128) by heads times sequences. Block: 4 warps with 32 queries each.
 * - The block walks over the keys in tiles; the next tile is copied while one is processed.
 * - Scores, probabilities and outputs stay in registers.
 * - The online softmax uses powers of 2, so that the scale and log2 e are one factor.
 * - Probabilities are rounded to bf16 for the second product; their sum is not rounded.
 * - Late queries have more keys, so their blocks start first.
 *
 * Keys are processed in ascending order. Every query sees key 0, so its maximum is finite from the first tile on. Keys
 * after the last one are after every query, so the causal mask hides them, too. */
#include "gpu/cuda/kernels/cuda_attn_tile.h"

enum { THREADS = CUDA_ATTN_TILE, TILES = 2, ROWS = 16 * TILES /* queries of a warp */ };

/* Per thread: maximum and sum of powers for rows g and g + 8 of both tiles. The sum covers the thread's own columns
 * only. */
struct softmax {
    float row_max[2 * TILES], sum[2 * TILES];
};

/* One step of the online softmax: scores become powers of 2, and earlier sums and outputs are rescaled to the new
 * maximum. */
DEVICE void softmax_step(float (*scores)[4], const int n, float factor, struct softmax *soft, float (*out)[4],
                         const int n_out)
{
    float keep[2 * TILES];
    int changed = 0;
    UNROLL for (int row = 0; row < 2 * TILES; row++)
    {
        float row_max = soft->row_max[row];
        UNROLL for (int i = 0; i < n; i++) UNROLL for (int j = 0; j < 2; j++) row_max =
            fmaxf(row_max, scores[row / 2 * n + i][row % 2 * 2 + j]);
        UNROLL for (unsigned lanes = 1; lanes < 4; lanes *= 2) row_max =
            fmaxf(row_max, __shfl_xor_sync(FULL_WARP, row_max, lanes));
        keep[row] = power_of_2((soft->row_max[row] - row_max) * factor);
        changed |= row_max != soft->row_max[row];
        soft->row_max[row] = row_max;
        soft->sum[row] *= keep[row];
        UNROLL for (int i = 0; i < n; i++) UNROLL for (int j = 0; j < 2; j++)
        {
            float *x = &scores[row / 2 * n + i][row % 2 * 2 + j];
            *x = power_of_2(fmaf(*x, factor, -(row_max * factor)));
            soft->sum[row] += *x;
        }
    }
    if (!__ballot_sync(FULL_WARP, changed)) return; /* true for most tiles after the first ones */
    UNROLL for (int m = 0; m < TILES; m++) UNROLL for (int i = 0; i < n_out; i++) UNROLL for (int j = 0; j < 4; j++)
        out[m * n_out + i][j] *= keep[2 * m + j / 2];
}

/* Sums over the lanes of a row; writes 1 / sum to `inverse` and the log-sum-exp of the scaled scores to lse_out. */
DEVICE void finish(const struct cuda_attn_args *a, struct softmax *soft, unsigned first, float *inverse)
{
    UNROLL for (int row = 0; row < 2 * TILES; row++)
    {
        float sum = soft->sum[row];
        UNROLL for (unsigned lanes = 1; lanes < 4; lanes *= 2) sum += __shfl_xor_sync(FULL_WARP, sum, lanes);
        inverse[row] = 1.0f / sum;
        unsigned query = first + row_of(row / 2, row % 2);
        if (a->lse_out && lane_of() % 4 == 0 && query < a->seq)
            a->lse_out[blockIdx.y * a->seq + query] = fmaf(soft->row_max[row], a->scale, logf(sum));
    }
}

/* The kernel body; keys in tiles of `columns`. `keep`: the fragments of the queries stay in registers. */
DEVICE void forward(const struct cuda_attn_args *a, struct shared s, const int head, const int columns, const int keep)
{
    const int n = columns / 8, n_out = head / 8, tile = columns * head * 2;
    const unsigned stages = CUDA_ATTN_TILE * (unsigned)head * 2; /* queries, then two stages of keys and values */
    unsigned warp = threadIdx.x / 32, sequence = blockIdx.y / (unsigned)a->heads;
    unsigned query_head = blockIdx.y % (unsigned)a->heads, heads = (unsigned)a->heads;
    unsigned key_head = heads + query_head / (heads / (unsigned)a->kv_heads);
    unsigned block = (gridDim.x - 1 - blockIdx.x) * CUDA_ATTN_TILE, first = block + warp * ROWS;
    unsigned own = warp * ROWS * (unsigned)head * 2, seq = (unsigned)a->seq;
    unsigned end = block + CUDA_ATTN_TILE < seq ? block + CUDA_ATTN_TILE : seq;
    struct head_rows queries = packed_rows(a, a->qkv, sequence, query_head);
    struct head_rows keys = packed_rows(a, a->qkv, sequence, key_head);
    struct head_rows values = packed_rows(a, a->qkv, sequence, key_head + (unsigned)a->kv_heads);
    struct head_rows outputs = plain_rows(a, a->o, sequence, query_head);
    float out[TILES * 16][4], inverse[2 * TILES];
    uint32_t kept[TILES * 4][4]; /* used for heads of 64 */
    struct softmax soft;
    UNROLL for (int row = 0; row < 2 * TILES; row++) soft.row_max[row] = -INFINITY, soft.sum[row] = 0;
    zero(out, TILES * n_out);
    tile_copy(s, own, head, ROWS, &queries, first, 32, lane_of());
    copy_commit();
    tile_copy(s, stages, head, columns, &keys, 0, THREADS, threadIdx.x);
    tile_copy(s, stages + tile, head, columns, &values, 0, THREADS, threadIdx.x);
    copy_commit();
    if (keep) {
        copy_wait(1);
        __syncwarp();
        UNROLL for (int i = 0; i < TILES * head / 16; i++)
            rows_load(s, own + i / (head / 16) * 32 * head + (lane_rows(head) ^ i % (head / 16) * 32), kept[i]);
    }
    for (unsigned key = 0, stage = stages; key < end; key += columns) {
        unsigned next = stage == stages ? stages + 2 * tile : stages;
        copy_wait(0);
        __syncthreads(); /* the tile has arrived for all warps, and the previous one has been read */
        if (key + columns < end) {
            tile_copy(s, next, head, columns, &keys, key + columns, THREADS, threadIdx.x);
            tile_copy(s, next + tile, head, columns, &values, key + columns, THREADS, threadIdx.x);
            copy_commit();
        }
        if (key < first + ROWS && first < seq) {
            float scores[TILES * 8][4];
            uint32_t pairs[TILES * 8][2];
            zero(scores, TILES * n);
            if (keep)
                kept_by_rows(s, kept, stage, head, TILES, n, scores);
            else
                rows_by_rows(s, own, stage, head, TILES, n, scores);
            if (key + columns > first + 1) hide_keys(scores, TILES, n, (int)(key - first));
            softmax_step(scores, n, a->scale * LOG2_E, &soft, out, n_out);
            pairs_of(scores, TILES * n, pairs);
            pairs_by_columns(s, pairs, stage + tile, head, TILES, n, out);
        }
        stage = next;
    }
    finish(a, &soft, first, inverse);
    if (!keep) __syncwarp(); /* all lanes have read the queries */
    rows_store(s, own, head, TILES, out, inverse, &outputs, first);
}

enum { QUERIES_64 = CUDA_ATTN_TILE * 64 * 2, KEYS_64 = 64, KEYS_128 = 32 };

MMA_KERNEL(cuda_attn_fwd_64, cuda_attn_args, THREADS, QUERIES_64 + 4 * KEYS_64 * 64 * 2)
{
    forward(&a, s, 64, KEYS_64, 1);
}

MMA_KERNEL(cuda_attn_fwd_128, cuda_attn_args, THREADS, 2 * QUERIES_64 + 4 * KEYS_128 * 128 * 2)
{
    forward(&a, s, 128, KEYS_128, 0);
}
