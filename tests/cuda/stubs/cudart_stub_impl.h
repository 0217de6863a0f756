/* Internals of the stub: cudart_stub.c (devices, errors, memory) and cudart_stub_queue.c (streams, events, copies). */
#ifndef TESTS_CUDA_CUDART_STUB_IMPL_H
#define TESTS_CUDA_CUDART_STUB_IMPL_H

#include <pthread.h>

#include "tests/cuda/stubs/cudart_stub.h"

struct stub_gpu {
    cudaError_t error; /* permanent: all later calls return it, and nothing runs */
    size_t taken;
    unsigned long operations;
    unsigned long looks; /* number of queries and waits of the host */
};

extern struct stub_gpu stub_gpus[STUB_GPUS_MAX];
extern pthread_mutex_t stub_lock; /* protects all state */
extern pthread_cond_t stub_moved; /* an operation ended or an event was reached */
extern size_t stub_left;

/* Wait for all streams of the device. */
void stub_settle(int device);
/* Returns the current device of the calling thread. */
int stub_current(void);
/* Start a call. Returns an error to return at once, or success. */
cudaError_t stub_begin(const char *call);
/* End a call: its result becomes the thread's last error. */
cudaError_t stub_end(cudaError_t code);

#define STUB_BEGIN()                                                                                                   \
    do {                                                                                                               \
        cudaError_t refused = stub_begin(__func__);                                                                    \
        if (refused != cudaSuccess) return stub_end(refused);                                                          \
    } while (0)

/* Returns the owner of the bytes: a device, STUB_PINNED, or STUB_PAGEABLE for memory that is not of the runtime. */
enum { STUB_PAGEABLE = -2, STUB_PINNED = -1 };
int stub_owner(const void *p, size_t bytes);

#endif
