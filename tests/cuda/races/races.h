/* Exact check of data races and bounds in emulated kernels.
 *
 * The kernels are compiled with -fsanitize=thread, which turns each memory access into a call. races_calls.c defines
 * these functions; libtsan is not linked. Every byte of device and shared memory records its last write and the reads
 * since. The process ends with a message if a thread
 * - accesses a byte that another thread of its block accessed, one of them writing, without a barrier between
 *   (__syncthreads, or __syncwarp within a warp; shuffles, votes and reductions do not order memory);
 * - accesses a byte that another block of the launch accessed, one of them writing, because blocks are not ordered;
 * - reads shared memory that its block has not written;
 * - accesses memory other than allocated device memory, shared memory, its own stack or, for reading, its arguments.
 *
 * The order of the emulator's threads does not matter: every order finds the same errors if the branches are the same.
 * Two threads that write the same value are a race, too. */
#ifndef TESTS_CUDA_RACES_H
#define TESTS_CUDA_RACES_H

#include <stdbool.h>
#include <stddef.h>

/* Install the callbacks (emulate.h). Call it before the first kernel and allocation. */
void races_begin(void);
/* Check an access of the running thread to p[bytes]; `code`: address of the access. No effect outside of kernels. */
void races_access(const void *p, size_t bytes, bool write, const void *code);

#endif
