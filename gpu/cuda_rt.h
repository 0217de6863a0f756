/* What the CUDA device needs from a runtime: memory, one stream, matrix products. gpu/cuda_rt.c does it with the CUDA
 * runtime and cuBLASLt, tests/cuda/emulate_rt.c on the CPU; everything above is the same code.
 *
 * Calls are asynchronous in the order of the stream. The first error sticks and comes back from cuda_rt_sync. */
#ifndef GPU_CUDA_RT_H
#define GPU_CUDA_RT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/status.h"
#include "gpu/cuda_args.h"

struct cuda_rt;
struct cuda_gemm;

/* C[m,n] = A[m,k] B[k,n] + beta C, all row-major fp32 with leading dimensions. */
struct cuda_gemm_shape {
    size_t m, n, k, lda, ldb, ldc;
    bool a_trans, b_trans; /* stored [k,m], [n,k] */
};

enum cuda_direction { CUDA_UPLOAD, CUDA_DOWNLOAD, CUDA_INSIDE };

/* Devices that can be used. UNSUPPORTED with one line when there is no driver, or one too old. */
enum status cuda_rt_count(int *count, struct err *err) MUST_CHECK;
/* name (e.g. "NVIDIA H200") is for people. INVALID: no such device; UNSUPPORTED: too old; NOMEM. */
enum status cuda_rt_open(int index, struct cuda_rt **out, char *name, size_t name_size, struct err *err) MUST_CHECK;
void cuda_rt_close(struct cuda_rt *rt);

/* Zeroed, aligned to 256 bytes; NULL when there is none. */
void *cuda_rt_alloc(struct cuda_rt *rt, size_t bytes) MUST_CHECK;
void cuda_rt_release(struct cuda_rt *rt, void *p);
void cuda_rt_copy(struct cuda_rt *rt, void *dst, const void *src, size_t bytes, enum cuda_direction direction);

/* The grid of a launch; x and y at least 1. */
struct cuda_grid cuda_rt_grid(struct cuda_rt *rt, size_t x, size_t y);
/* After a launch: takes note of its error. */
void cuda_rt_launched(struct cuda_rt *rt, const char *what);
void cuda_rt_fail(struct cuda_rt *rt, enum status code, const char *what);
/* Waits for the stream; the first error since open, or OK. */
enum status cuda_rt_sync(struct cuda_rt *rt, struct err *err) MUST_CHECK;

/* UNSUPPORTED: no algorithm for the shape; NOMEM. */
enum status cuda_rt_gemm_create(struct cuda_rt *rt, const struct cuda_gemm_shape *shape,
                                struct cuda_gemm **out) MUST_CHECK;
void cuda_rt_gemm_free(struct cuda_gemm *gemm);
/* beta is 0 or 1; C is not read with 0. */
void cuda_rt_gemm(struct cuda_rt *rt, const struct cuda_gemm *gemm, const float *a, const float *b, float *c,
                  float beta);

#endif
