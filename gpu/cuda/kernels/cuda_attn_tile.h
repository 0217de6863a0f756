/* Tiles of attention on tensor cores (gpu/cuda/kernels/cuda_attn_fwd.cu, gpu/cuda/kernels/cuda_attn_bwd.cu): rows of
 * one head in shared memory and their products. A row has `head` bf16 numbers (64 or 128); columns that the head lacks
 * are zeros. A `const int` parameter is a compile-time constant at each call, so that loops unroll and arrays become
 * registers.
 *
 * Layout: the 16 bytes `chunk` of row r lie at chunk ^ r % 8. Eight rows of one chunk, the source of one matrix load,
 * then cover all 32 banks. So do eight chunks of one row, the target of one copy.
 *
 * A warp computes 16 m_tiles rows of a product. sum[m * n + i] is its tile of 16 rows from row 16 m and 8 columns from
 * column 8 i, with n tiles per row. pairs[] holds the same tiles as bf16, ready as the left factor of the next product:
 * row g first, then g + 8. */
#ifndef GPU_CUDA_ATTN_TILE_H
#define GPU_CUDA_ATTN_TILE_H

#include "gpu/cuda/kernels/cuda_mma.h"

DEVICE unsigned tile_at(const int head, unsigned row, unsigned chunk)
{
    return row * (unsigned)head * 2 + (chunk ^ row % 8) * 16;
}

DEVICE unsigned lane_of(void)
{
    return threadIdx.x % 32;
}

/* Address of this lane for a matrix load of 16 rows with two chunks each: left factor, or transposed right factor. */
DEVICE unsigned lane_rows(const int head)
{
    return tile_at(head, lane_of() % 16, lane_of() / 16);
}

/* The same for 16 rows as columns of the right factor. */
DEVICE unsigned lane_columns(const int head)
{
    return tile_at(head, lane_of() / 16 * 8 + lane_of() % 8, lane_of() / 8 % 2);
}

/* Rows of one head in device memory. */
struct head_rows {
    const uint16_t *p; /* row 0 */
    size_t ld;
    unsigned rows, width;
};

/* Starts to copy `rows` rows, from row `first` on, to the tile at `at`. `thread` is the index of the caller among
 * `threads`. */
DEVICE void tile_copy(struct shared s, unsigned at, const int head, const int rows, const struct head_rows *from,
                      unsigned first, const int threads, unsigned thread)
{
    const int chunks = head / 8;
    unsigned row = thread / chunks, chunk = thread % chunks;
    const uint16_t *p = from->p + (size_t)(first + row) * from->ld + chunk * 8;
    UNROLL for (int i = 0; i < rows * chunks / threads; i++)
    {
        bool is_there = first + row < from->rows && chunk * 8 < from->width;
        copy_16(s, at + tile_at(head, row, chunk), p, is_there ? 16 : 0);
        row += threads / chunks;
        p += threads / chunks * from->ld;
    }
}

/* sum += a b^T for 16 m_tiles rows at a_at and 8 n rows at b_at. Heads of 128 unroll in two halves: the addresses of
 * one round would fill the registers that backward has left. */
DEVICE void rows_by_rows(struct shared s, unsigned a_at, unsigned b_at, const int head, const int m_tiles, const int n,
                         float (*sum)[4])
{
    unsigned left = a_at + lane_rows(head), right = b_at + lane_columns(head);
    UNROLL_4 for (int k = 0; k < head / 16; k++)
    {
        uint32_t a[2][4], b[4];
        UNROLL for (int m = 0; m < m_tiles; m++) rows_load(s, (left ^ k * 32) + m * 32 * head, a[m]);
        UNROLL for (int i = 0; i < n; i += 2)
        {
            rows_load(s, (right ^ k * 32) + i * 16 * head, b);
            UNROLL for (int m = 0; m < m_tiles; m++)
            {
                mma(sum[m * n + i], a[m], b[0], b[1]);
                mma(sum[m * n + i + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* The same with the left factor in registers: fragment k of tile m is kept[m * head / 16 + k]. */
DEVICE void kept_by_rows(struct shared s, const uint32_t (*kept)[4], unsigned b_at, const int head, const int m_tiles,
                         const int n, float (*sum)[4])
{
    unsigned right = b_at + lane_columns(head);
    UNROLL for (int k = 0; k < head / 16; k++)
    {
        uint32_t b[4];
        UNROLL for (int i = 0; i < n; i += 2)
        {
            rows_load(s, (right ^ k * 32) + i * 16 * head, b);
            UNROLL for (int m = 0; m < m_tiles; m++)
            {
                mma(sum[m * n + i], kept[m * head / 16 + k], b[0], b[1]);
                mma(sum[m * n + i + 1], kept[m * head / 16 + k], b[2], b[3]);
            }
        }
    }
}

/* sum += pairs b for 8 n columns of pairs and 8 n rows at b_at. */
DEVICE void pairs_by_columns(struct shared s, const uint32_t (*pairs)[2], unsigned b_at, const int head,
                             const int m_tiles, const int n, float (*sum)[4])
{
    unsigned right = b_at + lane_rows(head);
    UNROLL for (int k = 0; k < n; k += 2) UNROLL for (int i = 0; i < head / 8; i += 2)
    {
        uint32_t b[4];
        columns_load(s, (right ^ i * 16) + k * 16 * head, b);
        UNROLL for (int m = 0; m < m_tiles; m++)
        {
            const uint32_t a[4] = {pairs[m * n + k][0], pairs[m * n + k][1], pairs[m * n + k + 1][0],
                                   pairs[m * n + k + 1][1]};
            mma(sum[m * head / 8 + i], a, b[0], b[1]);
            mma(sum[m * head / 8 + i + 1], a, b[2], b[3]);
        }
    }
}

DEVICE void pairs_of(float (*sum)[4], const int tiles, uint32_t (*pairs)[2])
{
    UNROLL for (int i = 0; i < tiles; i++)
    {
        pairs[i][0] = bf16_pair(sum[i][0], sum[i][1]);
        pairs[i][1] = bf16_pair(sum[i][2], sum[i][3]);
    }
}

DEVICE void zero(float (*sum)[4], const int tiles)
{
    UNROLL for (int i = 0; i < tiles; i++) UNROLL for (int j = 0; j < 4; j++) sum[i][j] = 0;
}

/* Row of the warp that holds elements 2 half and 2 half + 1 of tile m. */
DEVICE unsigned row_of(int m, int half)
{
    return (unsigned)(m * 16 + half * 8) + lane_of() / 4;
}

/* Causal mask for rows of queries and columns of keys: scores of keys after their query become -infinity. `past`: first
 * key minus first query. */
DEVICE void hide_keys(float (*scores)[4], const int m_tiles, const int n, int past)
{
    UNROLL for (int m = 0; m < m_tiles; m++) UNROLL for (int i = 0; i < n; i++)
        UNROLL for (int j = 0; j < 4; j++) if (past + i * 8 + (int)(lane_of() % 4) * 2 + j % 2 > (int)row_of(m, j / 2))
            scores[m * n + i][j] = -INFINITY;
}

/* Stores the warp's rows of `sum`, times scale[2 m + half], as bf16 to rows `first` and on of `to`. They pass through
 * the warp's own rows of shared memory at `at`, which all lanes must have finished reading. Rows and columns outside of
 * the head are skipped. */
DEVICE void rows_store(struct shared s, unsigned at, const int head, const int m_tiles, float (*sum)[4],
                       const float *scale, const struct head_rows *to, unsigned first)
{
    const int chunks = head / 8;
    UNROLL for (int m = 0; m < m_tiles; m++) UNROLL for (int i = 0; i < chunks; i++)
        UNROLL for (int half = 0; half < 2; half++)
    {
        const float *x = sum[m * chunks + i] + 2 * half, factor = scale[2 * m + half];
        shared_put(s, at + tile_at(head, row_of(m, half), (unsigned)i) + lane_of() % 4 * 4,
                   bf16_pair(x[0] * factor, x[1] * factor));
    }
    __syncwarp();
    UNROLL for (int i = 0; i < m_tiles * 16 * chunks / 32; i++)
    {
        unsigned row = (unsigned)(i * 32 + lane_of()) / chunks, chunk = (unsigned)(i * 32 + lane_of()) % chunks;
        if (first + row < to->rows && chunk * 8 < to->width)
            shared_to_device(s, at + tile_at(head, row, chunk), (uint16_t *)to->p + (first + row) * to->ld + chunk * 8);
    }
}

/* --- addresses of heads (gpu/device.h, attn_fwd) ------------------------------------------------------------------ */

/* Head `head` of sequence `sequence`, counted over the query, key and value heads of the packed rows. */
DEVICE struct head_rows packed_rows(const struct cuda_attn_args *a, const void *qkv, unsigned sequence, unsigned head)
{
    size_t ld = (a->heads + 2 * a->kv_heads) * a->head_dim;
    const struct head_rows rows = {(const uint16_t *)qkv + sequence * a->seq * ld + head * a->head_dim, ld,
                                   (unsigned)a->seq, (unsigned)a->head_dim};
    return rows;
}

/* Query head `head` in [N,H*hd]. */
DEVICE struct head_rows plain_rows(const struct cuda_attn_args *a, const void *o, unsigned sequence, unsigned head)
{
    size_t ld = a->heads * a->head_dim;
    const struct head_rows rows = {(const uint16_t *)o + sequence * a->seq * ld + head * a->head_dim, ld,
                                   (unsigned)a->seq, (unsigned)a->head_dim};
    return rows;
}

#endif
