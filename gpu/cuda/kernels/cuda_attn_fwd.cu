/* Causal self-attention of bf16 on tensor cores, forward, after FlashAttention-2 (Dao, arXiv 2307.08691): a block takes
 * CUDA_ATTN_TILE queries of one head, 32 a warp, and walks over the keys in tiles, of which the next one is on its way
 * while one is worked on. Scores, probabilities and outputs stay in registers; the softmax is taken on the way, in
 * powers of 2, so that the scale and log2 e are one factor. Probabilities are rounded to bf16 for the second product,
 * their sum is not. Later queries have more keys, so their blocks begin first.
 *
 * Keys go upwards: every query sees key 0, so its highest score is finite from the first tile on, and keys behind the
 * last one are behind every query, so the mask of the diagonal hides them, too. */
#include "gpu/cuda/kernels/cuda_attn_tile.h"

enum { THREADS = CUDA_ATTN_TILE, TILES = 2, ROWS = 16 * TILES /* of a warp */ };

/* Of a thread: the highest score and the sum of powers, of rows g and g + 8 of both tiles; the sum is of its own
 * columns only. */
struct softmax {
    float top[2 * TILES], sum[2 * TILES];
};

/* Scores become powers of 2; what was summed before is brought to the new highest score. */
DEVICE void soften(float (*scores)[4], const int n, float factor, struct softmax *soft, float (*out)[4],
                   const int n_out)
{
    float keep[2 * TILES];
    int moved = 0;
    UNROLL for (int row = 0; row < 2 * TILES; row++)
    {
        float top = soft->top[row];
        UNROLL for (int i = 0; i < n; i++) UNROLL for (int j = 0; j < 2; j++) top =
            fmaxf(top, scores[row / 2 * n + i][row % 2 * 2 + j]);
        UNROLL for (unsigned lanes = 1; lanes < 4; lanes *= 2) top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, lanes));
        keep[row] = power_of_2((soft->top[row] - top) * factor);
        moved |= top != soft->top[row];
        soft->top[row] = top;
        soft->sum[row] *= keep[row];
        UNROLL for (int i = 0; i < n; i++) UNROLL for (int j = 0; j < 2; j++)
        {
            float *x = &scores[row / 2 * n + i][row % 2 * 2 + j];
            *x = power_of_2(fmaf(*x, factor, -(top * factor)));
            soft->sum[row] += *x;
        }
    }
    if (!__ballot_sync(FULL_WARP, moved)) return; /* which is so for most tiles but the first ones */
    UNROLL for (int m = 0; m < TILES; m++) UNROLL for (int i = 0; i < n_out; i++) UNROLL for (int j = 0; j < 4; j++)
        out[m * n_out + i][j] *= keep[2 * m + j / 2];
}

/* Sums over the columns of all lanes of a row; their inverses; the log-sum-exp of scores times scale. */
DEVICE void finish(const struct cuda_attn_args *a, struct softmax *soft, unsigned first, float *inverse)
{
    UNROLL for (int row = 0; row < 2 * TILES; row++)
    {
        float sum = soft->sum[row];
        UNROLL for (unsigned lanes = 1; lanes < 4; lanes *= 2) sum += __shfl_xor_sync(FULL_WARP, sum, lanes);
        inverse[row] = 1.0f / sum;
        unsigned query = first + row_of(row / 2, row % 2);
        if (a->lse_out && lane_of() % 4 == 0 && query < a->seq)
            a->lse_out[blockIdx.y * a->seq + query] = fmaf(soft->top[row], a->scale, logf(sum));
    }
}

/* Tiles of `columns` keys. `keep`: the queries' fragments stay in registers. */
DEVICE void forward(const struct cuda_attn_args *a, struct shared s, const int head, const int columns, const int keep)
{
    const int n = columns / 8, n_out = head / 8, tile = columns * head * 2;
    const unsigned stages = CUDA_ATTN_TILE * (unsigned)head * 2; /* queries, then two tiles each of keys and values */
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
    uint32_t kept[TILES * 4][4]; /* of heads of 64 */
    struct softmax soft;
    UNROLL for (int row = 0; row < 2 * TILES; row++) soft.top[row] = -INFINITY, soft.sum[row] = 0;
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
        __syncthreads(); /* the tile is there for all, and the one before has been read */
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
            soften(scores, n, a->scale * LOG2_E, &soft, out, n_out);
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
