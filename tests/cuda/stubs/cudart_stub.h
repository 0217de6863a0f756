/* The CUDA runtime without a GPU, as far as gpu/ calls it: for tests of gpu/cuda/rt/cuda_rt.c, cuda_gemm*.c and
 * cuda_nccl.c. A device is memory of the host; a stream is a thread that does what was submitted to it, one after the
 * other; kernels are those of tests/cuda/emulator/emulate.c. What the runtime's documentation leaves open turns out
 * badly: memory has garbage in it, memory that is not pinned is read and written late, queries that are not over leave
 * an error behind, and a stream or an event of another device than the current one is refused.
 *
 * As a plugin it is told by the environment what it is: ATOLL_STUB_GPUS=2, ATOLL_STUB_DRIVER=12080 (0: none),
 * ATOLL_STUB_CAPABILITY=75, ATOLL_STUB_MEMORY=BYTES, ATOLL_STUB_FAIL=1:100 (device 1 fails at its 100th operation),
 * ATOLL_STUB_HANG=1:100. */
#ifndef TESTS_CUDA_CUDART_STUB_H
#define TESTS_CUDA_CUDART_STUB_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STUB_GPUS_MAX = 8 };

struct stub_at { /* the operation of a device, counted from 1; 0: none */
    int device;
    unsigned long operation;
};

struct cudart_stub {
    int gpus, driver, capability;
    size_t memory; /* of each device */
    struct stub_at fail, hang;
    const char *call; /* this one returns `code` when it is called for the `after`th time from now; NULL: none */
    unsigned after;
    /* So does this one, counted from 1 over all calls but those that free something, only look, or make events; of
     * cudaErrorMemoryAllocation, over those that make something. 0: none. */
    unsigned long any;
    const char *failed_in; /* the last one that was */
    cudaError_t code;
    unsigned long loaded;       /* kernels whose attributes were asked for */
    bool sleeps[STUB_GPUS_MAX]; /* who waits for a stream of this device does not spin */
    float now_ms;               /* what events see */
};

/* A test may set it while no stream has work. */
extern struct cudart_stub cudart_stub;

/* Whoever launches by itself (nccl_stub.c) finds this behind its cudaStream_t. */
struct CUstream_st {
    /* run(copy of args) when all that was submitted before is done; dead: the device has failed, nothing may be done */
    void (*submit)(cudaStream_t stream, void (*run)(void *args, bool dead), const void *args, size_t bytes);
    int device;
};

/* Allocations of device and host that were not freed, streams and events that were not destroyed. */
size_t cudart_stub_left(void);
/* Devices that failed are well again, and what was left of them is forgotten. */
void cudart_stub_heal(void);

#endif
