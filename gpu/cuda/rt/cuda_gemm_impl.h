/* Internals of the matrix products, shared by cuda_gemm.c (descriptors, calls) and cuda_gemm_time.c (choice by
 * timing). */
#ifndef GPU_CUDA_GEMM_IMPL_H
#define GPU_CUDA_GEMM_IMPL_H

#include "gpu/cuda/rt/cuda_rt_impl.h"

enum { GEMM_PROPOSALS = 8 }; /* algorithms timed for each product */

/* Pointers aligned to 16 bytes allow faster algorithms. Parameters may begin anywhere in theta, so both kinds are
 * needed. */
enum gemm_alignment { GEMM_ELEMENT, GEMM_VECTOR, GEMM_ALIGNMENTS };
enum { GEMM_VECTOR_BYTES = 16 };

struct cuda_gemm {
    struct cuda_gemm_shape shape;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t first, second, out; /* column-major: B^T, A^T and C^T */
    bool has[GEMM_ALIGNMENTS];
    cublasLtMatmulAlgo_t algo[GEMM_ALIGNMENTS];
};

/* --- cuda_gemm.c -------------------------------------------------------------------------------------------------- */

/* True if every row is aligned to 16 bytes when its matrix is. */
bool cuda_gemm_rows_aligned(const struct cuda_gemm_shape *s);
/* Writes the library's proposals for this alignment, best guess first; returns their number. */
int cuda_gemm_propose(struct cuda_rt *rt, const struct cuda_gemm *g, enum gemm_alignment alignment,
                      cublasLtMatmulHeuristicResult_t found[GEMM_PROPOSALS]);
cublasStatus_t cuda_gemm_multiply(struct cuda_rt *rt, const struct cuda_gemm *g, const cublasLtMatmulAlgo_t *algo,
                                  const struct cuda_gemm_call *call);

/* --- cuda_gemm_time.c --------------------------------------------------------------------------------------------- */

/* *out: whether timing is on. ATOLL_ALGO_TIMING=off uses the library's first proposal. INVALID, with a one-line
 * message, for a value other than on and off. */
enum status cuda_gemm_timing(bool *out, struct err *err) MUST_CHECK;
/* Sets algo[alignment] to the cached algorithm, the fastest, or the library's first proposal. False: the library has
 * none. */
bool cuda_gemm_choose(struct cuda_rt *rt, struct cuda_gemm *g, enum gemm_alignment alignment);

#endif
