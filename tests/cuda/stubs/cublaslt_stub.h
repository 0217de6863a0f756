/* Stub of cuBLASLt without a GPU.
 * - Descriptors and layouts are the real library's; the stub replaces the functions that need a device.
 * - Invalid objects, such as an algorithm that was never proposed, end the process with a line.
 * - A product reads its descriptors as the library documents them (column-major) and runs in plain loops on its stream
 *   (cudart_stub.h), or not at all. The test sets its duration. */
#ifndef TESTS_CUDA_CUBLASLT_STUB_H
#define TESTS_CUDA_CUBLASLT_STUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/cuda/stubs/stub_faults.h"

enum { STUB_ALGORITHMS = 3 };

struct stub {
    bool idle;        /* products take time (algorithm i takes 10 + i ms), but compute nothing */
    bool no_library;  /* creating a handle fails */
    unsigned unknown; /* epilogues (cublasLtEpilogue_t, or'ed) without a proposal */
    uint32_t schemes; /* allowed reductions of the last proposals (cublasLtReductionScheme_t) */
    size_t products;  /* products run so far */
    size_t alike;     /* idle products with an operand of many equal values */
};

extern struct stub stub;
extern struct stub_faults cublaslt_faults;

/* A copy, because gpu/cuda/kernels/cuda_act.h conflicts with CUDA's headers. */
uint16_t stub_bf16_of(float x); /* x: finite */
float stub_bf16_value(uint16_t half);

#endif
