/* The CPU in place of a GPU: gpu/cuda_*.cu compiled as C run here block by block, every thread a fiber.
 *
 * What it sees: writes and reads outside of device memory (guard pages), host code that touches device memory (closed
 * while no operation runs), shared memory read before it is written (NaN), missing barriers (threads run in different
 * orders, each as far as it can), barriers that not all threads reach. What it cannot see: speed, memory order between
 * blocks, cuBLASLt. */
#ifndef TESTS_CUDA_EMULATE_H
#define TESTS_CUDA_EMULATE_H

#include <stddef.h>

/* In which order the threads of a block start and go on after a barrier: 0 upwards, 1 downwards, others shuffled. */
void emulate_order(unsigned seed);

/* Device memory (tests/cuda/emulate_rt.c) is open between these; they nest. */
void emulate_memory_open(void);
void emulate_memory_close(void);

#endif
