/* cuBLASLt without a GPU: descriptors and layouts are the true library's; what would need a device is here. Who uses
 * what there is not, an algorithm that was never proposed for one, ends the process with a line. A product
 * reads what it is to do from those, as the library documents it (column-major), is done in plain loops on its stream
 * (cudart_stub.h) or not at all, and takes the time that the test says. */
#ifndef TESTS_CUDA_CUBLASLT_STUB_H
#define TESTS_CUDA_CUBLASLT_STUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/cuda/stubs/stub_faults.h"

enum { STUB_ALGORITHMS = 3 };

struct stub {
    bool idle;              /* products take time, and are not done */
    bool no_library;        /* it does not start */
    unsigned unknown;       /* of such epilogues (cublasLtEpilogue_t, or'ed) the library proposes none */
    unsigned refused;       /* those it proposes, and refuses when they are to run */
    float plain_ms, end_ms; /* of a product without epilogue, with one; algorithm i takes i ms more */
    uint32_t schemes;       /* of the last proposals: how parts of a sum may meet (cublasLtReductionScheme_t) */
    size_t products;        /* run so far */
    size_t alike;           /* idle ones of which an operand holds many numbers that are the same */
    uint64_t last;          /* the algorithm of the last one: 0 .. STUB_ALGORITHMS - 1 */
};

extern struct stub stub;
extern struct stub_faults cublaslt_faults;

/* gpu/cuda/kernels/cuda_act.h does not go with CUDA's own headers. */
uint16_t stub_bf16_of(float x); /* finite */
float stub_bf16_value(uint16_t half);

#endif
