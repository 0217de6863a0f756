/* Elementwise kernels. */
#include "gpu/cuda/kernels/cuda_act.h"

KERNEL(cuda_fill, cuda_vector_args, CUDA_BLOCK)
{
    size_t i = global_index();
    if (i < a.n) a.y[i] = a.alpha;
}

KERNEL(cuda_axpy, cuda_vector_args, CUDA_BLOCK)
{
    size_t i = global_index();
    if (i < a.n) a.y[i] = fmaf(a.alpha, a.x[i], a.y[i]);
}

DEVICE void round_some(const struct cuda_round_args *a, const int width)
{
    size_t i = global_index() * width;
    float x[WIDE];
    if (i >= a->n) return;
    act_load(a->x, i, 0, width, x);
    act_store(a->y, i, 1, width, x);
}

KERNEL(cuda_round, cuda_round_args, CUDA_BLOCK)
{
    if (a.width == WIDE)
        round_some(&a, WIDE);
    else
        round_some(&a, 1);
}

/* The tanh form of GELU, 0.5 z (1 + tanh(u)) with u = sqrt(2/pi) (z + 0.044715 z^3), is z s with s the logistic
 * function of 2u: no branches, and exact where tanh is near -1. Slope: s + z s (1 - s) 2u'. */
#define GELU_ROOT 0.79788456f
#define GELU_CUBE 0.044715f

DEVICE void gelu_some(const struct cuda_gelu_args *a, const int bf16, const int backward, const int width)
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

ACT_KERNEL(cuda_gelu_fwd, cuda_gelu_args, CUDA_BLOCK)
{
    if (a.n % WIDE)
        gelu_some(&a, bf16, 0, 1);
    else
        gelu_some(&a, bf16, 0, WIDE);
}

ACT_KERNEL(cuda_gelu_bwd, cuda_gelu_args, CUDA_BLOCK)
{
    if (a.n % WIDE)
        gelu_some(&a, bf16, 1, 1);
    else
        gelu_some(&a, bf16, 1, WIDE);
}
