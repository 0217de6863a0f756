/* Causal self-attention of bf16 on tensor cores, backward. Probabilities are recomputed from the scores and the
 * log-sum-exp of forward. Tiles are as in gpu/cuda/kernels/cuda_attn_fwd.cu.
 *
 * Three kernels:
 * - cuda_attn_dot: dot = row sums of o * d_o. Grid: ceil(T / 32) or ceil(T / 16) by heads times sequences, 256 threads.
 * - cuda_attn_bwd_q: a block owns 128 queries and walks over their keys for dq.
 * - cuda_attn_bwd_kv: a block owns 128 keys and walks over their queries for dk and dv.
 *
 * Every sum has one owner and a fixed order. The price is 7 products of T by T by head_dim. With 5 products, blocks
 * would have to add to dq in order of arrival, or wait for each other.
 *
 * Formulas: p = 2^(factor q k - lse log2 e), ds = p (d_o v - dot), dq = scale ds k, dk = scale ds^T q, dv = p^T d_o. p
 * and ds are rounded to bf16 for the products; the scale is applied to the fp32 sums. Queries and keys after the last
 * one are zeros, as are their lse and dot: then p = 1 and ds = 0, and they add nothing. */
#include "gpu/cuda/kernels/cuda_attn_tile.h"

/* dot = sum of o * d_o over a row of one head. 8 or 16 lanes per row, CUDA_WIDE numbers per lane. */
DEVICE void row_dot(const struct cuda_attn_args *a, const unsigned lanes)
{
    unsigned row = (unsigned)global_index() / lanes, part = threadIdx.x % lanes * WIDE;
    unsigned heads = (unsigned)a->heads;
    struct head_rows at = plain_rows(a, a->o_in, blockIdx.y / heads, blockIdx.y % heads);
    size_t i = (size_t)(at.p - (const uint16_t *)a->o_in) + row * at.ld + part;
    float o[WIDE], d_o[WIDE], sum = 0;
    if (row < at.rows && part < at.width) {
        act_load(a->o_in, i, 1, WIDE, o);
        act_load(a->d_o, i, 1, WIDE, d_o);
        UNROLL for (int k = 0; k < WIDE; k++) sum = fmaf(o[k], d_o[k], sum);
    }
    UNROLL for (unsigned apart = lanes / 2; apart; apart /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, apart);
    if (row < at.rows && part == 0) a->dot[blockIdx.y * a->seq + row] = sum;
}

KERNEL(cuda_attn_dot_64, cuda_attn_args, CUDA_BLOCK)
{
    row_dot(&a, 8);
}

KERNEL(cuda_attn_dot_128, cuda_attn_args, CUDA_BLOCK)
{
    row_dot(&a, 16);
}

/* --- dq ----------------------------------------------------------------------------------------------------------- */

enum { Q_THREADS = CUDA_ATTN_TILE, Q_TILES = 2, Q_ROWS = 16 * Q_TILES };

/* lse and dot of this thread's row `row` = 2 m + half, from 8 bytes per row at `stats`. They lie in shared memory,
 * because heads of 128 leave no registers for them. */
DEVICE void row_stats(struct shared s, unsigned stats, int row, float *out)
{
    shared_floats(s, stats + row_of(row / 2, row % 2) * 8, out);
}

/* Initializes grads with -dot, so that the product yields d_o v - dot. */
DEVICE void query_dot(struct shared s, unsigned stats, float (*grads)[4], const int n)
{
    UNROLL for (int row = 0; row < 2 * Q_TILES; row++)
    {
        float stat[2];
        row_stats(s, stats, row, stat);
        UNROLL for (int i = 0; i < n; i++) UNROLL for (int j = 0; j < 2; j++) grads[row / 2 * n + i][row % 2 * 2 + j] =
            -stat[1];
    }
}

/* grads = p * grads = ds, with p from the scores. */
DEVICE void query_ds(struct shared s, unsigned stats, float (*scores)[4], float (*grads)[4], const int n, float factor)
{
    UNROLL for (int row = 0; row < 2 * Q_TILES; row++)
    {
        float stat[2];
        row_stats(s, stats, row, stat);
        float lse2 = stat[0] * LOG2_E;
        UNROLL for (int i = 0; i < n; i++) UNROLL for (int j = row % 2 * 2; j < row % 2 * 2 + 2; j++)
        {
            int tile = row / 2 * n + i;
            grads[tile][j] *= power_of_2(fmaf(scores[tile][j], factor, -lse2));
        }
    }
}

/* dq of 128 queries per block, 32 per warp; keys in tiles of `columns`. Shared memory: queries, d_o, two stages of keys
 * and values, lse and dot of the queries. Blocks of late queries have more keys and start first. */
DEVICE void backward_q(const struct cuda_attn_args *a, struct shared s, const int head, const int columns)
{
    const int n = columns / 8, n_out = head / 8, tile = columns * head * 2;
    const unsigned own_bytes = CUDA_ATTN_TILE * (unsigned)head * 2, stages = 2 * own_bytes, all = stages + 4 * tile;
    unsigned warp = threadIdx.x / 32, heads = (unsigned)a->heads, kv_heads = (unsigned)a->kv_heads;
    unsigned sequence = blockIdx.y / heads, query_head = blockIdx.y % heads;
    unsigned key_head = heads + query_head / (heads / kv_heads), seq = (unsigned)a->seq;
    unsigned block = (gridDim.x - 1 - blockIdx.x) * CUDA_ATTN_TILE, first = block + warp * Q_ROWS;
    unsigned own = warp * Q_ROWS * (unsigned)head * 2;
    unsigned end = block + CUDA_ATTN_TILE < seq ? block + CUDA_ATTN_TILE : seq;
    struct head_rows queries = packed_rows(a, a->qkv, sequence, query_head);
    struct head_rows d_outputs = plain_rows(a, a->d_o, sequence, query_head);
    struct head_rows keys = packed_rows(a, a->qkv, sequence, key_head);
    struct head_rows values = packed_rows(a, a->qkv, sequence, key_head + kv_heads);
    struct head_rows d_queries = packed_rows(a, a->dqkv, sequence, query_head);
    float out[Q_TILES * 16][4], scale[2 * Q_TILES];
    zero(out, Q_TILES * n_out);
    tile_copy(s, own, head, Q_ROWS, &queries, first, 32, lane_of());
    tile_copy(s, own_bytes + own, head, Q_ROWS, &d_outputs, first, 32, lane_of());
    tile_copy(s, stages, head, columns, &keys, 0, Q_THREADS, threadIdx.x);
    tile_copy(s, stages + tile, head, columns, &values, 0, Q_THREADS, threadIdx.x);
    unsigned query = block + threadIdx.x, stats = all + warp * Q_ROWS * 8;
    size_t stat = blockIdx.y * a->seq + query;
    copy_4(s, all + threadIdx.x * 8, a->lse + stat, query < seq ? 4 : 0);
    copy_4(s, all + threadIdx.x * 8 + 4, a->dot + stat, query < seq ? 4 : 0);
    copy_commit();
    for (unsigned key = 0, stage = stages; key < end; key += columns) {
        unsigned next = stage == stages ? stages + 2 * tile : stages;
        copy_wait(0);
        __syncthreads(); /* the tile has arrived for all warps, and the previous one has been read */
        if (key + columns < end) {
            tile_copy(s, next, head, columns, &keys, key + columns, Q_THREADS, threadIdx.x);
            tile_copy(s, next + tile, head, columns, &values, key + columns, Q_THREADS, threadIdx.x);
            copy_commit();
        }
        if (key < first + Q_ROWS && first < seq) {
            float scores[Q_TILES * 8][4], grads[Q_TILES * 8][4];
            uint32_t pairs[Q_TILES * 8][2];
            zero(scores, Q_TILES * n);
            rows_by_rows(s, own, stage, head, Q_TILES, n, scores);
            if (key + columns > first + 1) hide_keys(scores, Q_TILES, n, (int)(key - first));
            query_dot(s, stats, grads, n);
            rows_by_rows(s, own_bytes + own, stage + tile, head, Q_TILES, n, grads);
            query_ds(s, stats, scores, grads, n, a->scale * LOG2_E);
            pairs_of(grads, Q_TILES * n, pairs);
            pairs_by_columns(s, pairs, stage, head, Q_TILES, n, out);
        }
        stage = next;
    }
    __syncwarp(); /* all lanes have read the queries */
    UNROLL for (int row = 0; row < 2 * Q_TILES; row++) scale[row] = a->scale;
    rows_store(s, own, head, Q_TILES, out, scale, &d_queries, first);
}

enum {
    ROW_64 = 64 * 2,
    ROW_128 = 128 * 2,
    Q_KEYS = 32,
    Q_BYTES_64 = (2 * CUDA_ATTN_TILE + 4 * Q_KEYS) * ROW_64 + 8 * CUDA_ATTN_TILE,
    Q_BYTES_128 = (2 * CUDA_ATTN_TILE + 4 * Q_KEYS) * ROW_128 + 8 * CUDA_ATTN_TILE
};

MMA_KERNEL(cuda_attn_bwd_q_64, cuda_attn_args, Q_THREADS, Q_BYTES_64)
{
    backward_q(&a, s, 64, Q_KEYS);
}

MMA_KERNEL(cuda_attn_bwd_q_128, cuda_attn_args, Q_THREADS, Q_BYTES_128)
{
    backward_q(&a, s, 128, Q_KEYS);
}

/* --- dk, dv ------------------------------------------------------------------------------------------------------- */

/* Causal mask for rows of keys and columns of queries: scores of queries before their key become -infinity. `past`:
 * first key minus first query. */
DEVICE void hide_queries(float (*scores)[4], const int m_tiles, const int n, int past)
{
    UNROLL for (int m = 0; m < m_tiles; m++) UNROLL for (int i = 0; i < n; i++)
        UNROLL for (int j = 0; j < 4; j++) if (past + (int)row_of(m, j / 2) > i * 8 + (int)(lane_of() % 4) * 2 + j % 2)
            scores[m * n + i][j] = -INFINITY;
}

/* Two of the tile's per-query numbers, for columns 8 i + 2 t and the next one (t = lane % 4). */
DEVICE void query_stat(struct shared s, unsigned at, int i, float *out)
{
    shared_floats(s, at + (i * 8 + lane_of() % 4 * 2) * 4, out);
}

/* scores = p. */
DEVICE void key_p(struct shared s, unsigned lse_at, float (*scores)[4], const int m_tiles, const int n, float factor)
{
    UNROLL for (int i = 0; i < n; i++)
    {
        float lse[2];
        query_stat(s, lse_at, i, lse);
        UNROLL for (int m = 0; m < m_tiles; m++) UNROLL for (int j = 0; j < 4; j++)
        {
            float *x = &scores[m * n + i][j];
            *x = power_of_2(fmaf(*x, factor, -(lse[j % 2] * LOG2_E)));
        }
    }
}

/* Initializes grads with -dot, so that the product yields v d_o - dot. */
DEVICE void key_dot(struct shared s, unsigned dot_at, float (*grads)[4], const int m_tiles, const int n)
{
    UNROLL for (int i = 0; i < n; i++)
    {
        float dot[2];
        query_stat(s, dot_at, i, dot);
        UNROLL for (int m = 0; m < m_tiles; m++) UNROLL for (int j = 0; j < 4; j++) grads[m * n + i][j] = -dot[j % 2];
    }
}

/* Position of a tile: queries from `query` on of query head `head`. */
struct queries_tile {
    unsigned head, query;
};

/* The next tile; after the last tile of a head, the first tile (from `from` on) of the next head that shares the
 * keys. */
DEVICE struct queries_tile tile_after(struct queries_tile t, unsigned from, const int columns, unsigned seq)
{
    t.query += columns;
    if (t.query >= seq) t.head++, t.query = from;
    return t;
}

/* Starts the copies of a tile's queries, d_o, lse and dot, as one group. */
DEVICE void queries_copy(const struct cuda_attn_args *a, struct shared s, unsigned at, const int head,
                         const int columns, const int threads, unsigned sequence, struct queries_tile t)
{
    const int tile = columns * head * 2;
    struct head_rows queries = packed_rows(a, a->qkv, sequence, t.head);
    struct head_rows d_outputs = plain_rows(a, a->d_o, sequence, t.head);
    tile_copy(s, at, head, columns, &queries, t.query, threads, threadIdx.x);
    tile_copy(s, at + tile, head, columns, &d_outputs, t.query, threads, threadIdx.x);
    if (threadIdx.x < 2u * columns) {
        unsigned query = t.query + threadIdx.x % columns;
        const float *from = threadIdx.x < (unsigned)columns ? a->lse : a->dot;
        from += (sequence * a->heads + t.head) * a->seq;
        copy_4(s, at + 2 * tile + threadIdx.x * 4, from + query, query < a->seq ? 4 : 0);
    }
    copy_commit();
}

/* dk and dv of 128 keys per block, 16 m_tiles per warp; queries in tiles of `columns`. Shared memory: keys, values,
 * then two stages of queries, d_o, lse and dot. blockIdx.y is a key head of a sequence. Blocks of early keys have more
 * queries and start first. */
DEVICE void backward_kv(const struct cuda_attn_args *a, struct shared s, const int head, const int columns,
                        const int m_tiles, const int threads)
{
    const int n = columns / 8, n_out = head / 8, tile = columns * head * 2, stage_bytes = 2 * tile + 8 * columns;
    const unsigned own_bytes = CUDA_ATTN_TILE * (unsigned)head * 2, stages = 2 * own_bytes;
    unsigned rows = 16 * (unsigned)m_tiles, warp = threadIdx.x / 32, kv_heads = (unsigned)a->kv_heads;
    unsigned sequence = blockIdx.y / kv_heads, key_head = (unsigned)a->heads + blockIdx.y % kv_heads;
    unsigned block = blockIdx.x * CUDA_ATTN_TILE, first = block + warp * rows, seq = (unsigned)a->seq;
    unsigned own = warp * rows * (unsigned)head * 2, from = block / columns * columns;
    unsigned group = (unsigned)a->heads / kv_heads, head_end = (blockIdx.y % kv_heads + 1) * group;
    struct queries_tile now = {head_end - group, from};
    struct head_rows keys = packed_rows(a, a->qkv, sequence, key_head);
    struct head_rows values = packed_rows(a, a->qkv, sequence, key_head + kv_heads);
    float dk[32][4], dv[32][4], scale[4];
    zero(dk, m_tiles * n_out);
    zero(dv, m_tiles * n_out);
    tile_copy(s, own, head, 16 * m_tiles, &keys, first, 32, lane_of());
    tile_copy(s, own_bytes + own, head, 16 * m_tiles, &values, first, 32, lane_of());
    queries_copy(a, s, stages, head, columns, threads, sequence, now);
    for (unsigned stage = stages; now.head < head_end;) {
        struct queries_tile after = tile_after(now, from, columns, seq);
        unsigned next = stage == stages ? stages + stage_bytes : stages, query = now.query;
        copy_wait(0);
        __syncthreads(); /* the tile has arrived for all warps, and the previous one has been read */
        if (after.head < head_end) queries_copy(a, s, next, head, columns, threads, sequence, after);
        if (query + columns > first && first < seq) {
            float scores[16][4], grads[16][4];
            uint32_t pairs[16][2];
            zero(scores, m_tiles * n);
            rows_by_rows(s, own, stage, head, m_tiles, n, scores);
            if (first + rows > query + 1) hide_queries(scores, m_tiles, n, (int)(first - query));
            key_p(s, stage + 2 * tile, scores, m_tiles, n, a->scale * LOG2_E);
            pairs_of(scores, m_tiles * n, pairs);
            pairs_by_columns(s, pairs, stage + tile, head, m_tiles, n, dv);
            key_dot(s, stage + 2 * tile + 4 * columns, grads, m_tiles, n);
            rows_by_rows(s, own_bytes + own, stage + tile, head, m_tiles, n, grads);
            UNROLL for (int i = 0; i < 4 * m_tiles * n; i++) grads[i / 4][i % 4] *= scores[i / 4][i % 4];
            pairs_of(grads, m_tiles * n, pairs);
            pairs_by_columns(s, pairs, stage, head, m_tiles, n, dk);
        }
        now = after;
        stage = next;
    }
    struct head_rows d_keys = packed_rows(a, a->dqkv, sequence, key_head);
    struct head_rows d_values = packed_rows(a, a->dqkv, sequence, key_head + kv_heads);
    __syncwarp(); /* all lanes have read keys and values */
    UNROLL for (int row = 0; row < 4; row++) scale[row] = a->scale;
    rows_store(s, own, head, m_tiles, dk, scale, &d_keys, first);
    UNROLL for (int row = 0; row < 4; row++) scale[row] = 1;
    rows_store(s, own_bytes + own, head, m_tiles, dv, scale, &d_values, first);
}

/* A warp of heads of 128 has 16 keys: 32 keys would need 256 registers for the sums alone. */
enum {
    KV_THREADS_64 = 128,
    KV_THREADS_128 = 256,
    KV_QUERIES = 32,
    STATS = 2 * 8 * KV_QUERIES,
    KV_BYTES_64 = (2 * CUDA_ATTN_TILE + 4 * KV_QUERIES) * ROW_64 + STATS,
    KV_BYTES_128 = (2 * CUDA_ATTN_TILE + 4 * KV_QUERIES) * ROW_128 + STATS
};

MMA_KERNEL(cuda_attn_bwd_kv_64, cuda_attn_args, KV_THREADS_64, KV_BYTES_64)
{
    backward_kv(&a, s, 64, KV_QUERIES, 2, KV_THREADS_64);
}

MMA_KERNEL(cuda_attn_bwd_kv_128, cuda_attn_args, KV_THREADS_128, KV_BYTES_128)
{
    backward_kv(&a, s, 128, KV_QUERIES, 1, KV_THREADS_128);
}
