/* Embedding of words and positions, and its gradients without atomics. Every sum has a fixed order. */
#include "gpu/cuda/kernels/cuda_act.h"

enum { WARPS = CUDA_BLOCK / 32, AT_ONCE = 8 /* rows whose loads are in flight together */ };

DEVICE void embed_elements(const struct cuda_embed_args *a, const int bf16, const int width)
{
    size_t i = global_index() * width, row = i / a->c, column = i % a->c;
    float x[WIDE], place[WIDE] = {0};
    if (i >= a->n * a->c) return;
    weights_load(a->wte, (size_t)a->tokens[row] * a->c + column, width, x);
    if (a->wpe) weights_load(a->wpe, row % a->seq * a->c + column, width, place);
    if (a->wpe) UNROLL for (int k = 0; k < width; k++) x[k] += place[k];
    act_store(a->out, i, bf16, width, x);
}

/* out[row] = wte[token] + wpe[position]; one thread per one or WIDE numbers. */
WIDE_KERNEL(cuda_embed_fwd, cuda_embed_args, CUDA_BLOCK, a.c % WIDE == 0, embed_elements(&a, bf16, width))

DEVICE void position_elements(const struct cuda_embed_args *a, const int bf16, const int width)
{
    size_t i = global_index() * width, rows = a->n < a->seq ? a->n : a->seq;
    float x[WIDE], sum[WIDE];
    if (i >= rows * a->c) return;
    UNROLL for (int k = 0; k < width; k++) sum[k] = a->accumulate ? a->dwpe[i + k] : 0.0f;
    for (size_t at = i; at < a->n * a->c; at += a->seq * a->c) {
        act_load(a->dout, at, bf16, width, x);
        UNROLL for (int k = 0; k < width; k++) sum[k] += x[k];
    }
    UNROLL for (int k = 0; k < width; k++) a->dwpe[i + k] = sum[k];
}

/* dwpe: a thread owns its columns of one position, and adds the rows of all sequences in order. */
WIDE_KERNEL(cuda_embed_place, cuda_embed_args, CUDA_BLOCK, a.c % WIDE == 0, position_elements(&a, bf16, width))

/* order[n]: rows sorted by token, stable; keys[n]: their tokens. The place of a row is the number of rows before it.
 * Grid: ceil(n / 32); a block places 32 rows, one per lane, and each of its 8 warps counts in an eighth of all rows. */
KERNEL(cuda_embed_sort, cuda_embed_args, CUDA_BLOCK)
{
    __shared__ unsigned before[WARPS][32];
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = (unsigned)a.n, row = blockIdx.x * 32 + lane;
    unsigned part = (n + WARPS - 1) / WARPS, at = warp * part, end = at + part < n ? at + part : n, place = 0;
    int32_t token = row < n ? a.tokens[row] : 0;
    for (; at < end; at++) place += a.tokens[at] < token + (at < row);
    before[warp][lane] = place;
    __syncthreads(); /* all warps have counted */
    if (warp || row >= n) return;
    for (unsigned w = 1; w < WARPS; w++) place += before[w][lane];
    a.order[place] = (int32_t)row;
    a.keys[place] = token;
}

/* Adds a row to sum[]. */
DEVICE void add_row(const struct cuda_embed_args *a, int32_t row, size_t column, const int bf16, const int width,
                    float *sum)
{
    float x[WIDE];
    act_load(a->dout, (size_t)row * a->c + column, bf16, width, x);
    UNROLL for (int k = 0; k < width; k++) sum[k] += x[k];
}

/* The first row of a token adds all rows of that token, in order: no atomics, so the bits are always the same. */
DEVICE void add_rows(const struct cuda_embed_args *a, size_t place, const int bf16, const int width)
{
    size_t column = ((size_t)blockIdx.y * 32 + threadIdx.x % 32) * width;
    int32_t token = a->keys[place];
    float sum[WIDE] = {0}, was[WIDE];
    if ((place && a->keys[place - 1] == token) || column >= a->c) return;
    for (; place + AT_ONCE <= a->n; place += AT_ONCE) {
        int32_t rows[AT_ONCE];
        UNROLL for (int i = 0; i < AT_ONCE; i++) rows[i] = a->order[place + i]; /* loaded together with the key */
        if (a->keys[place + AT_ONCE - 1] != token) break;
        UNROLL for (int i = 0; i < AT_ONCE; i++) add_row(a, rows[i], column, bf16, width, sum);
    }
    for (; place < a->n && a->keys[place] == token; place++) add_row(a, a->order[place], column, bf16, width, sum);
    float *word = a->dwte + (size_t)token * a->c;
    weights_load(word, column, width, was);
    UNROLL for (int k = 0; k < width; k++) sum[k] += was[k];
    if (width == WIDE && (uintptr_t)word % 16 == 0)
        act_store(word, column, 0, WIDE, sum);
    else
        UNROLL for (int k = 0; k < width; k++) word[column + k] = sum[k];
}

/* dwte, after cuda_embed_sort. Grid: ceil(n / 8) by ceil(c / 32); one warp per place of order[]. */
ACT_KERNEL(cuda_embed_word, cuda_embed_args, CUDA_ROW_WARPS * 32)
{
    size_t place = (size_t)blockIdx.x * CUDA_ROW_WARPS + threadIdx.x / 32;
    if (place >= a.n) return;
    if (a.c % WIDE)
        add_rows(&a, place, bf16, 1);
    else
        add_rows(&a, place, bf16, WIDE);
}
