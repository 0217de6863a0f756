/* The CPU in place of a GPU: gpu/cuda_*.cu compiled as C run here block by block, every thread a fiber.
 *
 * What it sees: writes and reads outside of device memory (guard pages), host code that touches device memory (closed
 * while no operation runs), shared memory read before it is written (NaN), missing barriers (threads run in different
 * orders, each as far as it can), barriers that not all threads reach. What it cannot see: speed, memory order between
 * blocks, cuBLASLt. */
#ifndef TESTS_CUDA_EMULATE_H
#define TESTS_CUDA_EMULATE_H

#include <stdbool.h>
#include <stddef.h>

/* In which order the threads of a block start and go on after a barrier: 0 upwards, 1 downwards, others shuffled. */
void emulate_order(unsigned seed);

/* Device memory (tests/cuda/emulate_rt.c) is open between these; they nest. */
void emulate_memory_open(void);
void emulate_memory_close(void);

/* What a checker (tests/cuda/races.h) is told. One thread runs at a time: threadIdx, in blockIdx of the launch. */
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
