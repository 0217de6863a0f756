/* The embedding: rows of words and places, and their gradients without atomics. */
#include "gpu/cuda_act.h"

DEVICE void embed_some(const struct cuda_embed_args *a, const int bf16, const int width)
{
    size_t i = global_index() * width, row = i / a->c, column = i % a->c;
    float x[WIDE], place[WIDE] = {0};
    if (i >= a->n * a->c) return;
    weights_load(a->wte, (size_t)a->tokens[row] * a->c + column, width, x);
    if (a->wpe) weights_load(a->wpe, row % a->seq * a->c + column, width, place);
    if (a->wpe) UNROLL for (int k = 0; k < width; k++) x[k] += place[k];
    act_store(a->out, i, bf16, width, x);
}

ACT_KERNEL(cuda_embed_fwd, cuda_embed_args, CUDA_BLOCK)
{
    if (a.c % WIDE) embed_some(&a, bf16, 1);
    else embed_some(&a, bf16, WIDE);
}

DEVICE void place_some(const struct cuda_embed_args *a, const int bf16, const int width)
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

ACT_KERNEL(cuda_embed_place, cuda_embed_args, CUDA_BLOCK)
{
    if (a.c % WIDE) place_some(&a, bf16, 1);
    else place_some(&a, bf16, WIDE);
}

/* The block of the first row that holds a token adds all rows of that token, in order: no atomics, the same bits
 * always. All blocks read all tokens; they are few and stay in cache. */
ACT_KERNEL(cuda_embed_word, cuda_embed_args, CUDA_BLOCK)
{
    __shared__ unsigned match[CUDA_BLOCK / 32];
    size_t first = blockIdx.x;
    int32_t token = a.tokens[first];
    int seen = 0;
    for (size_t row = threadIdx.x; row < first; row += CUDA_BLOCK) seen |= a.tokens[row] == token;
    if (__syncthreads_or(seen)) return;
    float *word = a.dwte + (size_t)token * a.c;
    for (size_t from = first; from < a.n; from += CUDA_BLOCK) {
        size_t row = from + threadIdx.x;
        unsigned lanes = __ballot_sync(FULL_WARP, row < a.n && a.tokens[row] == token);
        if (threadIdx.x % 32 == 0) match[threadIdx.x / 32] = lanes;
        __syncthreads();
        for (unsigned warp = 0; warp < CUDA_BLOCK / 32; warp++)
            for (unsigned left = match[warp]; left; left &= left - 1) {
                size_t at = (from + warp * 32 + (unsigned)__ffs((int)left) - 1) * a.c;
                for (size_t i = threadIdx.x; i < a.c; i += CUDA_BLOCK) word[i] += act_one(a.dout, at + i, bf16);
            }
        __syncthreads(); /* before match is written again */
    }
}
