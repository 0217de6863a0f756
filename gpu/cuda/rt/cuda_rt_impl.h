/* Internals of the CUDA runtime, shared by cuda_rt.c (device, queues, memory) and cuda_gemm.c (matrix products). */
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
    struct algo_cache algos;
    struct err error; /* the first error; code OK: none */
};

/* Makes the runtime's device current in the calling thread, and counts progress. */
void cuda_rt_use(struct cuda_rt *rt);

#endif
