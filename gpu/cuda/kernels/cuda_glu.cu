/* Gated units on rows of gate | up: h = silu(gate) up, where silu(z) = z s and s is the logistic function of z. Grid:
 * ceil(n f / 256) blocks of 256 threads, wide; no shared memory. */
#include "gpu/cuda/kernels/cuda_act.h"

/* Backward: d gate = dh up silu'(z), d up = dh silu(z), silu'(z) = s + z s (1 - s) */
DEVICE void gate_elements(const struct cuda_glu_args *a, const int bf16, const int backward, const int width)
{
    size_t i = global_index() * width;
    if (i >= a->n * a->f) return;
    size_t at = i / a->f * 2 * a->f + i % a->f;
    float z[WIDE], up[WIDE], d[WIDE] = {0};
    act_load(a->gu, at, bf16, width, z);
    act_load(a->gu, at + a->f, bf16, width, up);
    if (backward) act_load(a->dh, i, bf16, width, d);
    UNROLL for (int k = 0; k < width; k++)
    {
        float s = logistic(z[k], bf16), silu = z[k] * s;
        z[k] = backward ? d[k] * up[k] * fmaf(silu, 1.0f - s, s) : silu * up[k];
        up[k] = d[k] * silu;
    }
    act_store(backward ? a->dgu : a->h, backward ? at : i, bf16, width, z);
    if (backward) act_store(a->dgu, at + a->f, bf16, width, up);
}

WIDE_KERNEL(cuda_glu_fwd, cuda_glu_args, CUDA_BLOCK, a.f % WIDE == 0, gate_elements(&a, bf16, 0, width))
WIDE_KERNEL(cuda_glu_bwd, cuda_glu_args, CUDA_BLOCK, a.f % WIDE == 0, gate_elements(&a, bf16, 1, width))
