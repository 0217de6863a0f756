/* Elementwise kernels and the embedding. */
#include "gpu/cuda_kernel.h"

KERNEL(cuda_fill, cuda_vector_args, CUDA_BLOCK)
{
    size_t i = global_index();
    if (i < a.n) a.y[i] = a.alpha;
}

KERNEL(cuda_axpy, cuda_vector_args, CUDA_BLOCK)
{
    size_t i = global_index();
    float scale = a.scale ? *a.scale : 1.0f;
    if (i < a.n && scale != 0) a.y[i] = fmaf(a.alpha * scale, a.x[i], a.y[i]);
}

KERNEL(cuda_scale, cuda_vector_args, CUDA_BLOCK)
{
    size_t i = global_index();
    if (i < a.n) a.y[i] *= a.alpha;
}

/* The tanh form of GELU: 0.5 z (1 + tanh(u)), u = sqrt(2/pi) (z + 0.044715 z^3). */
DEVICE float gelu_tanh(float z)
{
    return tanhf(0.79788456f * fmaf(0.044715f * (z * z), z, z));
}

DEVICE float gelu_of(float z)
{
    return 0.5f * z * (1 + gelu_tanh(z));
}

KERNEL(cuda_gelu, cuda_vector_args, CUDA_BLOCK)
{
    size_t i = global_index();
    if (i < a.n) a.y[i] = gelu_of(a.x[i]);
}

KERNEL(cuda_gelu_slope, cuda_vector_args, CUDA_BLOCK)
{
    size_t i = global_index();
    if (i >= a.n) return;
    float z = a.x[i], t = gelu_tanh(z);
    a.y[i] *= 0.5f * (1 + t) + 0.5f * z * (1 - t * t) * 0.79788456f * fmaf(3 * 0.044715f, z * z, 1);
}

KERNEL(cuda_bias_act, cuda_bias_args, CUDA_BLOCK)
{
    size_t i = global_index();
    if (i >= a.n * a.m) return;
    float z = a.y[i] + (a.b ? a.b[i % a.m] : 0.0f);
    if (a.aux) a.aux[i] = z;
    a.y[i] = a.gelu ? gelu_of(z) : z;
}

KERNEL(cuda_embed_fwd, cuda_embed_args, CUDA_BLOCK)
{
    size_t i = global_index();
    if (i >= a.n * a.c) return;
    size_t row = i / a.c, column = i % a.c;
    a.out[i] = a.wte[(size_t)a.tokens[row] * a.c + column] + a.wpe[row % a.seq * a.c + column];
}

KERNEL(cuda_embed_place, cuda_embed_args, CUDA_BLOCK)
{
    size_t i = global_index(), rows = a.n < a.seq ? a.n : a.seq;
    if (i >= rows * a.c) return;
    float sum = a.accumulate ? a.dwpe[i] + a.dout[i] : a.dout[i];
    for (size_t at = i + a.seq * a.c; at < a.n * a.c; at += a.seq * a.c) sum += a.dout[at];
    a.dwpe[i] = sum;
}

/* The block of the first row that holds a token adds all rows of that token, in order: no atomics, the same bits
 * always. All blocks read all tokens; they are few and stay in cache. */
KERNEL(cuda_embed_word, cuda_embed_args, CUDA_BLOCK)
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
                const float *grad = a.dout + (from + warp * 32 + (unsigned)__ffs((int)left) - 1) * a.c;
                for (size_t i = threadIdx.x; i < a.c; i += CUDA_BLOCK) word[i] += grad[i];
            }
        __syncthreads(); /* before match is written again */
    }
}
