/* cuDNN, loaded at run time. Programs start without it, and attention then computes in plain loops.
 * The table has only the calls of the graph ("backend") interface that attention needs. The headers supply types and
 * constants; nothing is linked. Empty in builds without the headers (ATOLL_CUDNN). */
#ifndef GPU_CUDA_CUDNN_LIB_H
#define GPU_CUDA_CUDNN_LIB_H

#ifdef ATOLL_CUDNN

#include <cudnn_backend.h>

#include "common/base/status.h"

/* The oldest supported version: since 9.6 the library itself clears the sums of dq. */
enum { CUDNN_LIB_OLDEST = 90600 };

#define CUDNN_LIB_CALLS(X)                                                                                             \
    X(cudnnGetVersion, version)                                                                                        \
    X(cudnnGetErrorString, status_text)                                                                                \
    X(cudnnGetLastErrorString, last_error)                                                                             \
    X(cudnnCreate, create)                                                                                             \
    X(cudnnDestroy, destroy)                                                                                           \
    X(cudnnSetStream, set_stream)                                                                                      \
    X(cudnnBackendCreateDescriptor, make)                                                                              \
    X(cudnnBackendDestroyDescriptor, unmake)                                                                           \
    X(cudnnBackendSetAttribute, set)                                                                                   \
    X(cudnnBackendGetAttribute, get)                                                                                   \
    X(cudnnBackendFinalize, finalize)                                                                                  \
    X(cudnnBackendExecute, execute)

struct cudnn_lib {
    void *object;
    size_t number; /* 91900: 9.19.0 */
#define CUDNN_LIB_MEMBER(symbol, member) __typeof__(&symbol) member;
    CUDNN_LIB_CALLS(CUDNN_LIB_MEMBER)
#undef CUDNN_LIB_MEMBER
};

/* Loads libcudnn.so.9 by the loader's rules, or the file that ATOLL_CUDNN_LIBRARY names. UNSUPPORTED, with a one-line
 * message: the library is missing, lacks a call, or is too old. */
enum status cudnn_lib_open(struct cudnn_lib *lib, struct err *err) MUST_CHECK;
/* A zeroed struct is allowed. */
void cudnn_lib_close(struct cudnn_lib *lib);

#endif
#endif
