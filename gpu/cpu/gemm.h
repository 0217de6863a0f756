/* Packed single-precision matrix product with fused epilogue: the linear layers of the CPU back end.
 *
 *     C = act(A B + bias + add) * act'(aux_in),   A [m,k], B [k,n], C [m,n] row-major
 *
 * - B is cut into blocks of GEMM_KC x nc and packed into panels of NR columns, which stay in or near L2. MR rows of A
 *   after MR sweep over them; the register tile is MR x NR (after Goto and van de Geijn, "Anatomy of high-performance
 *   matrix multiplication", 2008).
 * - Unlike there, A is read in place: its MR x GEMM_KC elements come into L1 with the first panel, and packing them
 *   costs more than it saves.
 * - Threads take disjoint parts of C. An element of C is always summed in the same order (k upwards inside blocks of
 *   GEMM_KC, blocks upwards), so the bits do not depend on the number of threads. */
#ifndef GPU_GEMM_H
#define GPU_GEMM_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

struct pool;
struct cpu_kernels;

enum { GEMM_KC = 384, GEMM_MR_MAX = 16, GEMM_NR_MAX = 32, GEMM_FETCH_ROWS = 4 };

struct gemm {
    size_t m, n, k;
    const float *a, *b;
    size_t lda, ldb; /* leading dimensions of the stored matrices; 0, also for ldc: dense */
    bool a_trans;    /* A is stored [k,m] */
    bool b_trans;    /* B is stored [n,k] */
    float *c;
    size_t ldc;
    /* The epilogue; each pointer may be NULL. add, aux_in and aux_out are [m,n] with leading dimension ldc. */
    const float *bias; /* [n] */
    const float *add;  /* may equal c */
    bool gelu;
    float *aux_out;      /* input of the GELU */
    const float *aux_in; /* multiplies by the derivative of the GELU at aux_in, last; excludes gelu */
    float *colsum;       /* [n]: column sums of B, added to if colsum_add, otherwise overwritten */
    bool colsum_add;
};

/* Bytes of scratch for one thread. */
size_t gemm_scratch_bytes(void);
/* scratch[t]: scratch of thread t of the pool, 64-byte aligned. */
void gemm_run(const struct gemm *g, const struct cpu_kernels *kernels, struct pool *pool, void *const *scratch);

#endif
