/* Internals of the CUDA runtime, shared by cuda_rt.c (device, queues, memory), cuda_gemm.c (matrix products:
 * descriptors, calls) and cuda_gemm_time.c (choice by timing). */
#ifndef GPU_CUDA_RT_IMPL_H
#define GPU_CUDA_RT_IMPL_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "gpu/cuda/rt/algo_cache.h"
#include "gpu/cuda/rt/cuda_rt.h"
#include "gpu/device.h"

enum {
    CUDA_WORKSPACE_BYTES = 32 << 20, /* the best algorithms on Hopper need so much */
    CUDA_BIAS_BYTES = 1 << 20        /* follows the workspace: aligned copy of a bias */
};

struct cuda_rt {
    int index, capability;
    char name[112];                   /* "device cuda:1 NVIDIA H200" */
    cudaStream_t stream;              /* CUDA_MAIN */
    cudaStream_t beside[CUDA_QUEUES]; /* the other queues, created on first use */
    const struct err *(*stopped)(void *ctx);
    void *stopped_ctx;
    struct cuda_progress progress;
    cudaEvent_t marks[DEVICE_MARKS];
    cublasLtHandle_t blas;
    cublasStatus_t refusal; /* status of the last product that could not be created */
    void *workspace;        /* [CUDA_WORKSPACE_BYTES + CUDA_BIAS_BYTES] */
    bool timing;            /* of products, see cuda_gemm_timing */
    struct algo_cache algos;
    struct err error; /* the first error; code OK: none */
};

/* Makes the runtime's device current in the calling thread, and counts progress. */
void cuda_rt_use(struct cuda_rt *rt);

#define GEMM_SET(desc, what, value) cublasLtMatmulDescSetAttribute((desc), (what), &(value), sizeof(value))

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
