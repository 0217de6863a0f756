/* Inside of the matrix products: shared by cuda_gemm.c (descriptors, calls) and cuda_gemm_time.c (what is fastest). */
#ifndef GPU_CUDA_GEMM_IMPL_H
#define GPU_CUDA_GEMM_IMPL_H

#include "gpu/cuda/rt/cuda_rt_impl.h"

enum { GEMM_PROPOSALS = 8 }; /* algorithms that are timed */

/* Pointers to 16 bytes allow faster algorithms; parameters lie anywhere in theta, so both kinds must be at hand. */
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

/* Whether rows begin at 16 bytes when matrices do. */
bool cuda_gemm_rows_aligned(const struct cuda_gemm_shape *s);
/* The library's proposals for pointers so aligned, best guess first; their number. */
int cuda_gemm_propose(struct cuda_rt *rt, const struct cuda_gemm *g, enum gemm_alignment alignment,
                      cublasLtMatmulHeuristicResult_t found[GEMM_PROPOSALS]);
cublasStatus_t cuda_gemm_multiply(struct cuda_rt *rt, const struct cuda_gemm *g, const cublasLtMatmulAlgo_t *algo,
                                  const struct cuda_gemm_call *call);

/* --- cuda_gemm_time.c --------------------------------------------------------------------------------------------- */

/* ATOLL_ALGO_TIMING=off takes the library's guess and keeps products and kernels separate. INVALID, with one line, for
 * another word than on and off. */
enum status cuda_gemm_timing(bool *out, struct err *err) MUST_CHECK;
/* Fills algo[alignment]: what the cache has, the fastest, or the library's guess. False: there is none. */
bool cuda_gemm_choose(struct cuda_rt *rt, struct cuda_gemm *g, enum gemm_alignment alignment);

#endif
