/* Stub of the CUDA runtime without a GPU, with the functions that gpu/ calls: for tests of gpu/cuda/rt/cuda_rt.c,
 * cuda_gemm*.c and cuda_nccl.c.
 *
 * - A device is host memory. A stream is a thread that runs its operations in order. Kernels run in
 *   tests/cuda/emulator/emulate.c.
 * - Behavior that the documentation leaves open is the worst case: new memory holds garbage, pageable memory is read
 * and written late, an unfinished query leaves an error behind, and streams and events of another device than the
 * current one are refused.
 * - Environment, for the stub as a plugin: ATOLL_STUB_GPUS=2, ATOLL_STUB_DRIVER=12080 (0: no driver),
 *   ATOLL_STUB_CAPABILITY=75, ATOLL_STUB_MEMORY=BYTES, ATOLL_STUB_FAIL=1:100 (device 1 fails at its 100th operation),
 *   ATOLL_STUB_HANG=1:100 (it hangs). */
#ifndef TESTS_CUDA_CUDART_STUB_H
#define TESTS_CUDA_CUDART_STUB_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STUB_GPUS_MAX = 8 };

struct stub_at { /* number of an operation of a device, from 1; 0: none */
    int device;
    unsigned long operation;
};

struct cudart_stub {
    int gpus, driver, capability;
    size_t memory; /* bytes per device */
    struct stub_at fail, hang;
    const char *call; /* function whose `after`th call from now returns `code`; NULL: none */
    unsigned after;
    /* Number, from 1, of the call that returns `code`; 0: none. Calls that free, query or create events do not count;
     * with cudaErrorMemoryAllocation, only calls that create something count. */
    unsigned long any;
    const char *failed_in; /* name of the last failed call */
    cudaError_t code;
    unsigned long loaded;       /* number of kernels whose attributes were queried */
    bool sleeps[STUB_GPUS_MAX]; /* waits for a stream of this device block instead of spinning */
    float now_ms;               /* time that events record */
};

/* A test may set it while no stream has work. */
extern struct cudart_stub cudart_stub;

/* Stream behind a cudaStream_t, for libraries that submit themselves (nccl_stub.c). */
struct CUstream_st {
    /* Queue run(copy of args). dead: the device has failed, and the operation must not do its work. */
    void (*submit)(cudaStream_t stream, void (*run)(void *args, bool dead), const void *args, size_t bytes);
    int device;
};

/* Returns the number of allocations, streams and events that are not freed. */
size_t cudart_stub_left(void);
/* Make failed devices work again and forget their objects. */
void cudart_stub_heal(void);

#endif
