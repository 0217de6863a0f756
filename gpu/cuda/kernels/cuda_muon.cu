/* Elementwise parts of Muon. Grid: ceil(elements / 256) by matrices of the batch; blockIdx.y is the matrix. 256 threads
 * per block. */
#include "gpu/cuda/kernels/cuda_act.h"
#include "gpu/muon_rules.h"

/* Updates the momentum and writes X from it. A refused step leaves the momentum unchanged and writes zeros to X. */
ACT_KERNEL(cuda_muon_momentum, cuda_muon_args, CUDA_BLOCK)
{
    size_t i = global_index(), n = a.rows * a.cols;
    if (i >= n) return;
    const struct cuda_muon_place *place = &a.places[blockIdx.y];
    size_t at = place->offset + i / a.cols * place->ld + i % a.cols;
    float scale = a.scale ? *a.scale : 1.0f, x = 0;
    if (scale != 0) {
        size_t j = at - place->skipped;
        float g = (1 - a.mu) * (a.grad[at] * scale);
        if (a.count) { /* as the CPU's muon_momentum_bf16 */
            uint16_t *momentum = (uint16_t *)a.momentum + j;
            g = moment_drop(g);
            float m = moment_drop(a.mu * bf16_value(*momentum) + g);
            *momentum = moment_round(m, moment_word(a.count->noise[0], a.count->noise[1], at) & 0xffff);
            x = a.mu * m + g;
        } else {
            float *momentum = (float *)a.momentum + j, m = fmaf(a.mu, *momentum, g);
            *momentum = m;
            x = fmaf(a.mu, m, g);
        }
    }
    act_store(a.x, blockIdx.y * n + i, bf16, 1, &x);
}

/* theta = theta * keep + step * X, unless the step is refused. */
ACT_KERNEL(cuda_muon_apply, cuda_muon_args, CUDA_BLOCK)
{
    size_t i = global_index(), n = a.rows * a.cols;
    if (i >= n || (a.scale && *a.scale == 0)) return;
    const struct cuda_muon_place *place = &a.places[blockIdx.y];
    size_t at = place->offset + i / a.cols * place->ld + i % a.cols;
    float keep = 1 - (place->decay ? a.decay : 0);
    a.theta[at] = fmaf(a.step, act_one(a.x, blockIdx.y * n + i, bf16), a.theta[at] * keep);
}

/* inverse = 1 / norm of X, where the norm is the root of the trace of the Gram matrix. One block per matrix. */
KERNEL(cuda_muon_norm, cuda_muon_poly_args, CUDA_BLOCK)
{
    __shared__ double sums[CUDA_BLOCK / 32];
    const float *gram = a.gram + blockIdx.y * a.side * a.side;
    double trace = 0;
    for (size_t i = threadIdx.x; i < a.side; i += CUDA_BLOCK) trace += (double)gram[i * a.side + i];
    double norm = sqrt(block_sum(trace, CUDA_BLOCK / 32, sums));
    if (threadIdx.x) return;
    a.inverse[blockIdx.y] = (float)(1 / (norm > MUON_NORM_MIN ? norm : MUON_NORM_MIN));
}

/* The factor, polynomial and diagonal of one iteration, with the same operations as the CPU's poly_thread. */
ACT_KERNEL(cuda_muon_poly, cuda_muon_poly_args, CUDA_BLOCK)
{
    size_t i = global_index(), n = a.side * a.side, at = blockIdx.y * n + i;
    if (i >= n) return;
    float inverse = a.first ? a.inverse[blockIdx.y] : 1.0f, gram = a.gram[at] * (inverse * inverse);
    int diagonal = i / a.side == i % a.side;
    float poly = MUON_C * inverse * gram + (diagonal ? MUON_B * inverse : 0.0f);
    float mult = diagonal ? MUON_A * inverse : 0.0f;
    act_store(a.factor, at, bf16, 1, &gram);
    act_store(a.poly, at, bf16, 1, &poly);
    act_store(a.mult, at, bf16, 1, &mult);
}
