/* The CPU in place of a GPU: gpu/cuda/kernels/cuda_*.cu compiled as C run here block by block, every thread a fiber.
 *
 * What it sees: writes and reads outside of device memory (guard pages), host code that touches device memory (closed
 * while no operation runs) or looks before it waited (nothing runs earlier), queues that touch the same bytes without
 * an event between (by name), shared memory read before it is written (NaN), missing barriers (threads run in different
 * orders, each as far as it can), barriers that not all threads reach, wide loads and stores of places that are not
 * aligned; where warps copy and multiply (emulate_mma.c) copies that are not waited for, places that are not aligned,
 * rows in the same banks. What it cannot see: speed, memory order between blocks, what the libraries are asked for
 * (that is for tests/cuda/stubs/stubs.cmake).
 *
 * Several devices, one thread each: ATOLL_EMULATED_GPUS=n of them (1 unless set). ATOLL_EMULATED_MEMORY=n gives each n
 * bytes (n,m: the first n, the others m); ATOLL_EMULATED_NCCL_MEMORY=n of them go at a communicator's first call.
 * ATOLL_EMULATED_CAPABILITY=n (90) is what they say of themselves. What may go wrong or block on a GPU does so where it
 * is told to:
 * ATOLL_EMULATED_FAIL=i:n    device i fails at its n-th operation
 * ATOLL_EMULATED_HANG=i:n    it never ends that operation, whatever is aborted (emulate_hangs_end)
 * ATOLL_EMULATED_QUEUE=n     calls block while n operations or more wait in a device's queues
 * ATOLL_EMULATED_PAGEABLE=1  copies block where host memory is not pinned
 * ATOLL_EMULATED_ABORT=hangs to abort communicators never ends, and ends nothing
 * ATOLL_EMULATED_CLOSE=i     to close the communicator of GPU i never ends
 * ATOLL_EMULATED_PTX=folder  kernels are what nvcc made of them (ptx.h) */
#ifndef TESTS_CUDA_EMULATE_H
#define TESTS_CUDA_EMULATE_H

#include <stdbool.h>
#include <stddef.h>

#include "gpu/device.h"

/* In which order the threads of a block start and go on after a barrier: 0 upwards, 1 downwards, others shuffled. */
void emulate_order(unsigned seed);

/* In which order the queues of devices opened from now on take their turns, as far as events let them: 0: MAIN as early
 * as can be, 1: as late, others shuffled. ATOLL_EMULATED_SEED goes before it. */
void emulate_queue_order(unsigned seed);
/* Of each launch that runs from now on the last x blocks of the last y rows alone; 0, 0: all. */
void emulate_last_blocks(unsigned x, unsigned y);
/* Waits of the host that left a device without work, of all devices, since the program began: nothing was submitted
 * behind what it waited for. */
unsigned long emulate_idle_waits(void);
/* Bytes that came from the host to devices, all of them, since the program began. */
unsigned long emulate_uploaded(void);
/* What hangs goes on: operations of all devices, and aborts. */
void emulate_hangs_end(void);
/* What messages call this allocation of a device; `name` is kept. */
void emulate_name(struct device *dev, const void *p, const char *name);

/* What a checker (tests/cuda/races/races.h) is told. One thread runs at a time: threadIdx, in blockIdx of the launch.
 */
struct emulate_watch {
    void (*allocated)(const void *p, size_t bytes);
    void (*released)(const void *p);
    void (*launch)(const char *name, const void *args, size_t args_bytes); /* gridDim, blockDim are known */
    void (*block)(void);                                                   /* the next one begins */
    void (*end)(void);                                                     /* of the launch */
    void (*run)(const char *stack, size_t bytes); /* the thread goes on, on this stack; NULL: it waits, or has ended */
    bool (*wait)(const char *file, int line);     /* it comes to a barrier; false: leave the barrier out */
    void (*met)(unsigned first, unsigned last);   /* threads first .. last - 1 have; not told of shuffles and votes,
                                                   * which order no memory */
};
extern const struct emulate_watch *emulate_watch; /* NULL: nobody is told */

#endif
