/* The kernel table of one level, included by one source each. The source defines LEVEL_TABLE and LEVEL_NAME, and for a
 * level that not every CPU of the family has, LEVEL_TARGET. */
#ifndef GPU_CPU_LEVEL_BODY_H
#define GPU_CPU_LEVEL_BODY_H

#include <math.h>
#include <string.h>

#include "gpu/cpu/cpu_kernels.h"

#if !defined(LEVEL_TARGET) || defined(__x86_64__)

/* From here on the compiler may use instructions of this level. Only the table is visible outside, and
 * cpu_kernels_select returns it only after it has checked the CPU. */
#define LEVEL_PRAGMA_TEXT(...) _Pragma(#__VA_ARGS__)
#define LEVEL_PRAGMA(...) LEVEL_PRAGMA_TEXT(__VA_ARGS__)
#if defined(LEVEL_TARGET) && defined(__clang__)
LEVEL_PRAGMA(clang attribute push(__attribute__((target(LEVEL_TARGET))), apply_to = function))
#elif defined(LEVEL_TARGET)
LEVEL_PRAGMA(GCC target(LEVEL_TARGET))
#endif

#include "gpu/cpu/attn_body.h"
#include "gpu/cpu/gemm_body.h"
#include "gpu/cpu/llama_body.h"
#include "gpu/cpu/optim_body.h"
#include "gpu/cpu/rows_body.h"

const struct cpu_kernels LEVEL_TABLE = {
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
    .rope_rows = rope_rows,
    .glu_fwd = glu_fwd,
    .glu_bwd = glu_bwd,
    .attn_scratch_floats = attn_scratch_floats,
    .attn_fwd_head = attn_fwd_head,
    .attn_bwd_group = attn_bwd_group,
    .sum_run = sum_run,
    .adamw_run = adamw_run,
    .muon_momentum = muon_momentum,
    .adamw_bf16 = adamw_bf16,
    .muon_momentum_bf16 = muon_momentum_bf16,
    .axpy_run = axpy_run,
    .gelu_run = gelu_run,
};

#if defined(LEVEL_TARGET) && defined(__clang__)
#pragma clang attribute pop
#endif
#endif
#endif
