/* Causal self-attention with plain loops, without tensor cores. It supports every shape, needs memory linear in T, and
 * uses no atomics. It serves fp32, and bf16 where cuDNN is missing or refuses the shape (gpu/cuda/cudnn).
 *
 * - Grid: ceil(T / 8) by heads times sequences. Block: 8 warps.
 * - A warp takes one row (query, or key in bwd_kv). The block walks over the other side in tiles of 32 rows in shared
 *   memory.
 * - While dot products are computed, lanes are rows of the tile. While products are summed, lanes are columns of the
 *   head.
 * - Forward uses the online softmax (Milakov and Gimelshein, arXiv 1805.02867). Backward recomputes the probabilities
 *   from the stored log-sum-exp (Dao et al., arXiv 2205.14135).
 * - Numerics: fp32 in a fixed order, so equal inputs give equal bits. */
#include "gpu/cuda/kernels/cuda_act.h"

enum {
    ROWS = CUDA_ATTN_ROWS,
    THREADS = ROWS * 32,
    HEAD = CUDA_ATTN_HEAD_MAX,
    LD = HEAD + 1, /* odd: lanes in a column of a tile use different banks */
    PARTS = HEAD / 32
};

/* Row widths: of k alone, and of the packed q | k | v. */
DEVICE size_t kv_width(const struct cuda_attn_args *a)
{
    return a->kv_heads * a->head_dim;
}

DEVICE size_t packed_width(const struct cuda_attn_args *a)
{
    return a->heads * a->head_dim + 2 * kv_width(a);
}

/* Offset of head `head` of sequence `sequence` in rows of `ld` numbers. */
DEVICE size_t head_at(const struct cuda_attn_args *a, size_t sequence, size_t head, size_t ld)
{
    return sequence * a->seq * ld + head * a->head_dim;
}

/* Offset of query head blockIdx.y in the packed rows, and in [N,H*hd]. */
DEVICE size_t query_at(const struct cuda_attn_args *a)
{
    return head_at(a, blockIdx.y / a->heads, blockIdx.y % a->heads, packed_width(a));
}

DEVICE size_t out_at(const struct cuda_attn_args *a)
{
    return head_at(a, blockIdx.y / a->heads, blockIdx.y % a->heads, a->heads * a->head_dim);
}

/* Offset of the key head that query head blockIdx.y reads. */
DEVICE size_t key_at(const struct cuda_attn_args *a)
{
    size_t shared = blockIdx.y % a->heads / (a->heads / a->kv_heads);
    return head_at(a, blockIdx.y / a->heads, a->heads + shared, packed_width(a));
}

/* to[r][0..hd) = src[at + (first + r) * ld ..] for `rows` rows of to_ld floats, zero after the last row; one warp per
 * row. All loads are issued before the first store. */
DEVICE void load_rows(const struct cuda_attn_args *a, const int bf16, const void *src, size_t at, size_t ld,
                      size_t first, const unsigned rows, const unsigned to_ld, float *to)
{
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float x[32 / ROWS][PARTS] = {{0}};
    UNROLL for (unsigned i = 0; i < rows / ROWS; i++) UNROLL for (unsigned part = 0; part < PARTS; part++)
    {
        size_t row = first + i * ROWS + warp, column = lane + 32 * part;
        if (row < a->seq && column < a->head_dim) x[i][part] = act_one(src, at + row * ld + column, bf16);
    }
    UNROLL for (unsigned i = 0; i < rows / ROWS; i++) UNROLL for (unsigned part = 0; part < PARTS; part++)
    {
        size_t column = lane + 32 * part;
        if (column < a->head_dim) to[(i * ROWS + warp) * to_ld + column] = x[i][part];
    }
}

DEVICE void load_tile(const struct cuda_attn_args *a, const int bf16, const void *src, size_t at, size_t ld,
                      size_t first, float *tile)
{
    load_rows(a, bf16, src, at, ld, first, 32, LD, tile);
}

/* Loads one row for each warp. */
DEVICE void load_own(const struct cuda_attn_args *a, const int bf16, const void *src, size_t at, size_t ld,
                     size_t first, float *own)
{
    load_rows(a, bf16, src, at, ld, first, ROWS, HEAD, own);
}

DEVICE float dot_row(size_t hd, const float *x, const float *y)
{
    float sum = 0;
    for (size_t i = 0; i < hd; i++) sum = fmaf(x[i], y[i], sum);
    return sum;
}

/* sums[part] += sum over the tile's rows of weight[r] * tile[r][lane + 32 part] */
DEVICE void add_rows(size_t hd, const float *weight, const float *tile, float *sums)
{
    for (unsigned row = 0; row < 32; row++)
        for (unsigned part = 0; part < PARTS; part++) {
            size_t column = threadIdx.x % 32 + 32 * part;
            if (column < hd) sums[part] = fmaf(weight[row], tile[row * LD + column], sums[part]);
        }
}

/* o = softmax(scale q k^T) v, and lse_out = log-sum-exp of the scores. 37 KiB of static shared memory. */
ACT_KERNEL(cuda_attn_fwd, cuda_attn_args, THREADS)
{
    __shared__ float keys[32 * LD], values[32 * LD], queries[ROWS * HEAD], weights[ROWS * 32];
    size_t hd = a.head_dim, c = a.heads * hd, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    size_t first = (size_t)blockIdx.x * ROWS, query = first + warp;
    size_t ld = packed_width(&a), k = key_at(&a);
    float row_max = -INFINITY, sum = 0, out[PARTS] = {0};
    load_own(&a, bf16, a.qkv, query_at(&a), ld, first, queries);
    for (size_t key = 0; key < first + ROWS && key < a.seq; key += 32) {
        load_tile(&a, bf16, a.qkv, k, ld, key, keys);
        load_tile(&a, bf16, a.qkv, k + kv_width(&a), ld, key, values);
        __syncthreads();
        float score = dot_row(hd, queries + warp * HEAD, keys + lane * LD) * a.scale;
        if (key + lane > query || key + lane >= a.seq) score = -INFINITY;
        float new_max = fmaxf(row_max, warp_max(score));
        if (new_max > -INFINITY) { /* uniform in the warp; a tile after the warp's query changes nothing */
            float keep = expf(row_max - new_max), p = expf(score - new_max);
            sum = sum * keep + warp_sum(p);
            for (unsigned part = 0; part < PARTS; part++) out[part] *= keep;
            weights[threadIdx.x] = p;
            __syncwarp();
            add_rows(hd, weights + warp * 32, values, out);
            row_max = new_max;
        }
        __syncthreads(); /* all warps have read the tiles */
    }
    if (query >= a.seq) return;
    size_t o = out_at(&a) + query * c + lane;
    for (unsigned part = 0; part < PARTS; part++) {
        float value = out[part] / sum;
        if (lane + 32 * part < hd) act_store(a.o, o + 32 * part, bf16, 1, &value);
    }
    if (lane == 0 && a.lse_out) a.lse_out[blockIdx.y * a.seq + query] = row_max + logf(sum);
}

/* dot = row sums of o * d_o; one warp per row. */
ACT_KERNEL(cuda_attn_dot, cuda_attn_args, THREADS)
{
    size_t hd = a.head_dim, c = a.heads * hd, lane = threadIdx.x % 32;
    size_t row = (size_t)blockIdx.x * ROWS + threadIdx.x / 32;
    if (row >= a.seq) return;
    size_t o = out_at(&a) + row * c;
    float sum = 0;
    for (size_t i = lane; i < hd; i += 32) sum = fmaf(act_one(a.o_in, o + i, bf16), act_one(a.d_o, o + i, bf16), sum);
    sum = warp_sum(sum);
    if (lane == 0) a.dot[blockIdx.y * a.seq + row] = sum;
}

/* dq = scale sum over keys of ds k, where ds = p (d_o v - dot) and p = exp(scale q k - lse). One warp per query. */
ACT_KERNEL(cuda_attn_bwd_q, cuda_attn_args, THREADS)
{
    __shared__ float keys[32 * LD], values[32 * LD], queries[ROWS * HEAD], grads[ROWS * HEAD], weights[ROWS * 32];
    size_t hd = a.head_dim, c = a.heads * hd, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    size_t first = (size_t)blockIdx.x * ROWS, query = first + warp, stat = blockIdx.y * a.seq + query;
    size_t ld = packed_width(&a), q = query_at(&a), k = key_at(&a);
    float out[PARTS] = {0}, lse = query < a.seq ? a.lse[stat] : 0.0f, dot = query < a.seq ? a.dot[stat] : 0.0f;
    load_own(&a, bf16, a.qkv, q, ld, first, queries);
    load_own(&a, bf16, a.d_o, out_at(&a), c, first, grads);
    for (size_t key = 0; key < first + ROWS && key < a.seq; key += 32) {
        load_tile(&a, bf16, a.qkv, k, ld, key, keys);
        load_tile(&a, bf16, a.qkv, k + kv_width(&a), ld, key, values);
        __syncthreads();
        float ds = 0;
        if (key + lane <= query && query < a.seq) {
            float p = expf(dot_row(hd, queries + warp * HEAD, keys + lane * LD) * a.scale - lse);
            ds = p * (dot_row(hd, grads + warp * HEAD, values + lane * LD) - dot) * a.scale;
        }
        weights[threadIdx.x] = ds;
        __syncwarp();
        add_rows(hd, weights + warp * 32, keys, out);
        __syncthreads();
    }
    if (query >= a.seq) return;
    size_t dq = q + query * ld + lane;
    for (unsigned part = 0; part < PARTS; part++)
        if (lane + 32 * part < hd) act_store(a.dqkv, dq + 32 * part, bf16, 1, &out[part]);
}

/* dv = sum over queries of p d_o, dk = scale sum over queries of ds q, over all query heads that share the key head.
 * One warp per key; tiles of queries, one query head after the other. blockIdx.y is a key head of a sequence. */
ACT_KERNEL(cuda_attn_bwd_kv, cuda_attn_args, THREADS)
{
    __shared__ float queries[32 * LD], grads[32 * LD], keys[ROWS * HEAD], values[ROWS * HEAD], weights[2 * ROWS * 32];
    size_t hd = a.head_dim, c = a.heads * hd, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    size_t first = (size_t)blockIdx.x * ROWS, key = first + warp, group = a.heads / a.kv_heads;
    size_t sequence = blockIdx.y / a.kv_heads, shared = blockIdx.y % a.kv_heads, ld = packed_width(&a);
    size_t k = head_at(&a, sequence, a.heads + shared, ld);
    float dk[PARTS] = {0}, dv[PARTS] = {0}, *p_row = weights + warp * 64, *ds_row = p_row + 32;
    load_own(&a, bf16, a.qkv, k, ld, first, keys);
    load_own(&a, bf16, a.qkv, k + kv_width(&a), ld, first, values);
    for (size_t head = shared * group; head < (shared + 1) * group; head++)
        for (size_t query = first / 32 * 32; query < a.seq; query += 32) {
            load_tile(&a, bf16, a.qkv, head_at(&a, sequence, head, ld), ld, query, queries);
            load_tile(&a, bf16, a.d_o, head_at(&a, sequence, head, c), c, query, grads);
            __syncthreads();
            float p = 0, ds = 0;
            if (query + lane >= key && query + lane < a.seq) {
                size_t stat = (sequence * a.heads + head) * a.seq + query + lane;
                p = expf(dot_row(hd, keys + warp * HEAD, queries + lane * LD) * a.scale - a.lse[stat]);
                ds = p * (dot_row(hd, values + warp * HEAD, grads + lane * LD) - a.dot[stat]) * a.scale;
            }
            p_row[lane] = p;
            ds_row[lane] = ds;
            __syncwarp();
            add_rows(hd, p_row, grads, dv);
            add_rows(hd, ds_row, queries, dk);
            __syncthreads();
        }
    if (key >= a.seq) return;
    for (unsigned part = 0; part < PARTS; part++) {
        size_t column = lane + 32 * part, at = k + key * ld + column;
        if (column >= hd) continue;
        act_store(a.dqkv, at, bf16, 1, &dk[part]);
        act_store(a.dqkv, at + kv_width(&a), bf16, 1, &dv[part]);
    }
}
