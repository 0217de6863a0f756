/* Numbers of instructions, shared by tests/cuda/ptx/ptx_read.c and ptx_run.c. */
#ifndef TESTS_CUDA_PTX_IMPL_H
#define TESTS_CUDA_PTX_IMPL_H

enum ptx_op {
#define X(name, operands, ...) PTX_OP_##name,
#include "tests/cuda/ptx/ptx_body.h"
#undef X
};

#endif
