/* Stub of the CUDA runtime without a GPU, with the functions that gpu/ calls.
 *
 * - A device is host memory; new memory holds garbage. A stream is a thread that runs its operations in order. Kernels
 *   run in tests/cuda/emulator/emulate.c.
 * - cudart_faults makes one call fail. Any error except lack of memory also kills the device: its later calls fail,
 * too, and its operations do nothing. If `call` is NULL, calls that free, query or create events do not count; with
 *   cudaErrorMemoryAllocation, only calls that create something count.
 * - Environment, for the stub as a plugin: ATOLL_STUB_GPUS=2, ATOLL_STUB_DRIVER=12080 (0: no driver),
 *   ATOLL_STUB_CAPABILITY=75, ATOLL_STUB_MEMORY=BYTES, ATOLL_STUB_FAIL=1:100 (device 1 fails at its 100th operation),
 *   ATOLL_STUB_HANG=1:100 (it hangs). */
#ifndef TESTS_CUDA_CUDART_STUB_H
#define TESTS_CUDA_CUDART_STUB_H

#include <cuda_runtime_api.h>

#include "tests/cuda/stubs/stub_faults.h"

enum { STUB_GPUS_MAX = 8 };

struct stub_at { /* number of an operation of a device, from 1; 0: none */
    int device;
    unsigned long operation;
};

struct cudart_stub {
    int gpus, driver, capability;
    size_t memory; /* bytes per device */
    struct stub_at fail, hang;
};

/* A test may set them while no stream has work. */
extern struct cudart_stub cudart_stub;
extern struct stub_faults cudart_faults; /* left: allocations, streams and events that are not freed */

/* Stream behind a cudaStream_t, for libraries that submit themselves (nccl_stub.c). */
struct CUstream_st {
    /* Queue run(copy of args). dead: the device has failed, and the operation must not do its work. */
    void (*submit)(cudaStream_t stream, void (*run)(void *args, bool dead), const void *args, size_t bytes);
    int device;
};

/* Make failed devices work again. */
void cudart_stub_heal(void);

#endif
