/* Internals of the cuBLASLt stub: cublaslt_objects.c (objects) and cublaslt_stub.c (functions). */
#ifndef TESTS_CUDA_CUBLASLT_STUB_IMPL_H
#define TESTS_CUDA_CUBLASLT_STUB_IMPL_H

#include "tests/cuda/stubs/cublaslt_stub.h"

enum stub_kind { STUB_HANDLE, STUB_OP, STUB_LAYOUT, STUB_WISH };

void stub_keep(const void *p, enum stub_kind kind);
/* End the process if the object does not exist. */
void stub_alive(const void *p, enum stub_kind kind, const char *call);
void stub_forget(const void *p, enum stub_kind kind, const char *call);

#endif
