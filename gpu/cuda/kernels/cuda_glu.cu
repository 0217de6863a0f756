/* Gated units: rows of gate | up, silu(z) = z s with s the logistic function of z. */
#include "gpu/cuda/kernels/cuda_act.h"

DEVICE void gate_some(const struct cuda_glu_args *a, const int bf16, const int width)
{
    size_t i = global_index() * width;
    if (i >= a->n * a->f) return;
    size_t at = i / a->f * 2 * a->f + i % a->f;
    float z[WIDE], up[WIDE];
    act_load(a->gu, at, bf16, width, z);
    act_load(a->gu, at + a->f, bf16, width, up);
    UNROLL for (int k = 0; k < width; k++) z[k] = z[k] * logistic(z[k], bf16) * up[k];
    act_store(a->h, i, bf16, width, z);
}

ACT_KERNEL(cuda_glu_fwd, cuda_glu_args, CUDA_BLOCK)
{
    if (a.f % WIDE)
        gate_some(&a, bf16, 1);
    else
        gate_some(&a, bf16, WIDE);
}

/* d gate = dh up silu'(z), d up = dh silu(z), silu'(z) = s + z s (1 - s) */
DEVICE void gate_back(const struct cuda_glu_args *a, const int bf16, const int width)
{
    size_t i = global_index() * width;
    if (i >= a->n * a->f) return;
    size_t at = i / a->f * 2 * a->f + i % a->f;
    float z[WIDE], up[WIDE], d[WIDE];
    act_load(a->gu, at, bf16, width, z);
    act_load(a->gu, at + a->f, bf16, width, up);
    act_load(a->dh, i, bf16, width, d);
    UNROLL for (int k = 0; k < width; k++)
    {
        float s = logistic(z[k], bf16), silu = z[k] * s;
        z[k] = d[k] * up[k] * fmaf(silu, 1.0f - s, s);
        up[k] = d[k] * silu;
    }
    act_store(a->dgu, at, bf16, width, z);
    act_store(a->dgu, at + a->f, bf16, width, up);
}

ACT_KERNEL(cuda_glu_bwd, cuda_glu_args, CUDA_BLOCK)
{
    if (a.f % WIDE)
        gate_back(&a, bf16, 1);
    else
        gate_back(&a, bf16, WIDE);
}
