/* The kernel table of one level. cpu_portable.c, cpu_avx2.c and cpu_avx512.c include it last and define LEVEL_NAME. */
#ifndef GPU_CPU_LEVEL_BODY_H
#define GPU_CPU_LEVEL_BODY_H

#include "gpu/cpu/attn_body.h"
#include "gpu/cpu/cpu_kernels.h"
#include "gpu/cpu/gemm_body.h"
#include "gpu/cpu/llama_body.h"
#include "gpu/cpu/optim_body.h"
#include "gpu/cpu/rows_body.h"

#ifndef LEVEL_NAME
#define LEVEL_NAME "portable"
#endif

static const struct cpu_kernels level_kernels __attribute__((unused)) = {
    .name = LEVEL_NAME,
    .fma_burn = fma_burn,
    .mr = MR,
    .nr = NR,
    .pack_a = pack_a,
    .pack_a_trans = pack_a_trans,
    .pack_b = pack_b,
    .pack_b_trans = pack_b_trans,
    .gemm_tile = gemm_tile,
    .embed_rows = embed_rows,
    .add_row = add_row,
    .norm_fwd = norm_fwd,
    .norm_bwd = norm_bwd,
    .xent_rows = xent_rows,
    .rms_fwd = rms_fwd,
    .rms_bwd = rms_bwd,
    .rope_rows = rope_rows,
    .glu_fwd = glu_fwd,
    .glu_bwd = glu_bwd,
    .attn_scratch_floats = attn_scratch_floats,
    .attn_fwd_head = attn_fwd_head,
    .attn_bwd_group = attn_bwd_group,
    .sum_run = sum_run,
    .sumsq_run = sumsq_run,
    .adamw_run = adamw_run,
    .muon_momentum = muon_momentum,
    .adamw_bf16 = adamw_bf16,
    .muon_momentum_bf16 = muon_momentum_bf16,
    .muon_apply = muon_apply,
    .axpy_run = axpy_run,
    .scale_run = scale_run,
    .gelu_run = gelu_run,
};

#endif
