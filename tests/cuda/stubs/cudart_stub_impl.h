/* Inside of the stub: cudart_stub.c (devices, errors, memory) and cudart_stub_queue.c (streams, events, copies). */
#ifndef TESTS_CUDA_CUDART_STUB_IMPL_H
#define TESTS_CUDA_CUDART_STUB_IMPL_H

#include <pthread.h>

#include "tests/cuda/stubs/cudart_stub.h"

struct stub_gpu {
    cudaError_t error; /* stays: all later calls return it, and nothing runs any more */
    size_t taken;
    unsigned long operations;
    unsigned long looks; /* how often the host asked what it is about, or waited for it */
};

extern struct stub_gpu stub_gpus[STUB_GPUS_MAX];
extern pthread_mutex_t stub_lock; /* of all there is */
extern pthread_cond_t stub_moved; /* an operation is over, an event was reached */
extern size_t stub_left;

/* Waits for all streams of the device. */
void stub_settle(int device);
/* The calling thread's. */
int stub_current(void);
/* A call begins: what it is to return at once, or success. */
cudaError_t stub_begin(const char *call);
/* What it returns becomes the thread's last error. */
cudaError_t stub_end(cudaError_t code);

#define STUB_BEGIN()                                                                                                   \
    do {                                                                                                               \
        cudaError_t refused = stub_begin(__func__);                                                                    \
        if (refused != cudaSuccess) return stub_end(refused);                                                          \
    } while (0)

/* Whose bytes these are: a device, STUB_PINNED, or STUB_PAGEABLE for what the runtime never gave out. */
enum { STUB_PAGEABLE = -2, STUB_PINNED = -1 };
int stub_owner(const void *p, size_t bytes);

#endif
