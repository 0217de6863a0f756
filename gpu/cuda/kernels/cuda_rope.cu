/* Rotary positions: rotates pairs of one head in place; `back` rotates by the negative angle. Grid: ceil(pairs / 256)
 * blocks of 256 threads, `width` pairs per thread; no shared memory. */
#include "gpu/cuda/kernels/cuda_act.h"

DEVICE void rotate_pairs(const struct cuda_rope_args *a, const int bf16, const int width)
{
    size_t half = a->head_dim / 2, i = global_index() * width;
    if (i >= a->n * a->heads * half) return;
    size_t row = i / (a->heads * half), head = i / half % a->heads, pair = i % half;
    size_t low = row * a->ld + head * a->head_dim + pair, angle = row % a->seq * a->head_dim + pair;
    float x[WIDE], y[WIDE], cosines[WIDE], sines[WIDE];
    act_load(a->x, low, bf16, width, x);
    act_load(a->x, low + half, bf16, width, y);
    act_load(a->table, angle, 0, width, cosines);
    act_load(a->table, angle + half, 0, width, sines);
    UNROLL for (int k = 0; k < width; k++)
    {
        float s = a->back ? -sines[k] : sines[k], was = x[k];
        x[k] = fmaf(was, cosines[k], -(y[k] * s));
        y[k] = fmaf(y[k], cosines[k], was * s);
    }
    act_store(a->x, low, bf16, width, x);
    act_store(a->x, low + half, bf16, width, y);
}

WIDE_KERNEL(cuda_rope, cuda_rope_args, CUDA_BLOCK, a.wide, rotate_pairs(&a, bf16, width))
