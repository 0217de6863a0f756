/* Matrix products on the CPU, for the emulated runtime (emulate_gemm.c) and the stub of cuBLASLt (cublaslt_stub.c). */
#ifndef TESTS_CUDA_EMULATE_PRODUCT_H
#define TESTS_CUDA_EMULATE_PRODUCT_H

#include "gpu/cuda/rt/cuda_rt.h"

/* Returns the operands of the i-th product of a batch. */
struct cuda_gemm_call emulate_product_of(const struct cuda_gemm_shape *s, const struct cuda_gemm_call *call, size_t i);
/* Compute one product with its epilogue: sums in fp64, rounded once. */
void emulate_product(const struct cuda_gemm_shape *s, const struct cuda_gemm_call *call);

#endif
