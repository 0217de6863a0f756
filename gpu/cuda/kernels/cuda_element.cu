/* Elementwise kernels. Grid: ceil(n / 256) blocks of 256 threads, n / 8 threads in wide ones; no shared memory. */
#include "gpu/cuda/kernels/cuda_act.h"

/* y = alpha */
KERNEL(cuda_fill, cuda_vector_args, CUDA_BLOCK)
{
    size_t i = global_index();
    if (i < a.n) a.y[i] = a.alpha;
}

/* y += alpha x */
KERNEL(cuda_axpy, cuda_vector_args, CUDA_BLOCK)
{
    size_t i = global_index();
    if (i < a.n) a.y[i] = fmaf(a.alpha, a.x[i], a.y[i]);
}

DEVICE void round_elements(const struct cuda_round_args *a, const int width)
{
    size_t i = global_index() * width;
    float x[WIDE];
    if (i >= a->n) return;
    act_load(a->x, i, 0, width, x);
    act_store(a->y, i, 1, width, x);
}

/* y = x as bf16 */
KERNEL(cuda_round, cuda_round_args, CUDA_BLOCK)
{
    if (a.width == WIDE)
        round_elements(&a, WIDE);
    else
        round_elements(&a, 1);
}

/* The tanh form of GELU, 0.5 z (1 + tanh(u)) with u = sqrt(2/pi) (z + 0.044715 z^3), equals z s, where s is the
 * logistic function of 2u. It has no branches, and is exact where tanh is near -1. Derivative: s + z s (1 - s) 2u'. */
#define GELU_ROOT 0.79788456f
#define GELU_CUBE 0.044715f

DEVICE void gelu_elements(const struct cuda_gelu_args *a, const int bf16, const int backward, const int width)
{
    size_t i = global_index() * width;
    float z[WIDE], y[WIDE] = {0};
    if (i >= a->n) return;
    act_load(a->z, i, bf16, width, z);
    if (backward) act_load(a->y, i, bf16, width, y);
    UNROLL for (int k = 0; k < width; k++)
    {
        float square = z[k] * z[k], s = logistic(2 * GELU_ROOT * fmaf(GELU_CUBE * square, z[k], z[k]), bf16);
        if (backward)
            y[k] *= fmaf(z[k] * s * (1 - s), 2 * GELU_ROOT * fmaf(3 * GELU_CUBE, square, 1), s);
        else
            y[k] = z[k] * s;
    }
    act_store(a->y, i, bf16, width, y);
}

WIDE_KERNEL(cuda_gelu_fwd, cuda_gelu_args, CUDA_BLOCK, a.n % WIDE == 0, gelu_elements(&a, bf16, 0, width))

WIDE_KERNEL(cuda_gelu_bwd, cuda_gelu_args, CUDA_BLOCK, a.n % WIDE == 0, gelu_elements(&a, bf16, 1, width))
