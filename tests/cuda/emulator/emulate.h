/* Emulator of GPUs on the CPU: runs gpu/cuda/kernels/cuda_*.cu, compiled as C, block by block, each thread as a fiber.
 *
 * It detects:
 * - accesses outside of device memory (guard pages);
 * - host code that accesses device memory (protected while no operation runs) or reads a result before its wait (no
 *   operation runs earlier);
 * - queues that access the same bytes without an event between (reported);
 * - shared memory that is read before it is written (NaN);
 * - missing barriers (threads run in different orders, each as far as it can), and barriers that some threads miss;
 * - misaligned wide loads and stores.
 * It cannot detect slow code, wrong memory order between blocks, or wrong calls of NVIDIA's libraries (tests/cuda/stubs
 * does that).
 *
 * Environment:
 * ATOLL_EMULATED_GPUS=n        number of devices (1), each used by one thread
 * ATOLL_EMULATED_MEMORY=n      bytes per device (n,m: n on the first, m on the others)
 * ATOLL_EMULATED_NCCL_MEMORY=n bytes that a communicator allocates at its first call
 * ATOLL_EMULATED_CAPABILITY=n  reported compute capability (90)
 * ATOLL_EMULATED_FAIL=i:n      device i fails at its n-th operation
 * ATOLL_EMULATED_HANG=i:n      device i hangs at its n-th operation, even after an abort (emulate_hangs_end)
 * ATOLL_EMULATED_QUEUE=n       calls block while n or more operations wait in a device's queues
 * ATOLL_EMULATED_PAGEABLE=1    copies from or to pageable host memory block
 * ATOLL_EMULATED_ABORT=hangs   aborting communicators hangs and ends no wait
 * ATOLL_EMULATED_CLOSE=i       closing the communicator of GPU i hangs */
#ifndef TESTS_CUDA_EMULATE_H
#define TESTS_CUDA_EMULATE_H

#include <stdbool.h>
#include <stddef.h>

#include "gpu/device.h"

/* Set the order in which the threads of a block start and continue after a barrier: 0 ascending, 1 descending, others
 * shuffled. */
void emulate_order(unsigned seed);

/* Set the order of the queues for devices opened later, within the order of events. 0: MAIN as early as possible, 1: as
 * late as possible, others shuffled. ATOLL_EMULATED_SEED takes precedence. */
void emulate_queue_order(unsigned seed);
/* Run only the last x blocks of the last y rows of later launches; 0, 0: run all. */
void emulate_last_blocks(unsigned x, unsigned y);
/* Returns how often a wait of the host left a device idle, over all devices since the start of the program. */
unsigned long emulate_idle_waits(void);
/* Returns the bytes uploaded to all devices since the start of the program. */
unsigned long emulate_uploaded(void);
/* End all hangs: operations of all devices, and aborts. */
void emulate_hangs_end(void);
/* Name an allocation of a device in messages. `name` must stay valid. */
void emulate_name(struct device *dev, const void *p, const char *name);

/* Callbacks of a checker (tests/cuda/races/races.h). One thread runs at a time: threadIdx in blockIdx of the launch. */
struct emulate_watch {
    void (*allocated)(const void *p, size_t bytes);
    void (*released)(const void *p);
    void (*launch)(const char *name, const void *args, size_t args_bytes); /* gridDim and blockDim are set */
    void (*block)(void);                                                   /* the next block starts */
    void (*end)(void);                                                     /* end of the launch */
    void (*run)(const char *stack, size_t bytes); /* the thread runs on this stack; NULL: it stopped */
    void (*met)(unsigned first, unsigned last);   /* threads first .. last - 1 reached a barrier; not called for
                                                   * shuffles and votes, which do not order memory */
};
extern const struct emulate_watch *emulate_watch; /* NULL: no checker */

#endif
