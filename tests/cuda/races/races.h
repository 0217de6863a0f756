/* Races and bounds of emulated kernels, exactly. The sources of the kernels are compiled with -fsanitize=thread, which
 * makes each of their memory accesses a call (tests/cuda/races/races_calls.c defines those, libtsan is not linked), and
 * every byte of device and shared memory remembers who wrote it last and who has read it since. Ends the process with a
 * message when a thread
 *
 *   touches a byte that another one of its block touched, one of the two writing, with no barrier between: a
 *   __syncthreads, or within a warp a __syncwarp; shuffles, votes and reductions order no memory;
 *   touches a byte that another block of the launch touched, one of the two writing: nothing orders blocks;
 *   reads shared memory that its block has not written;
 *   touches anything else than device memory within the bounds of its allocation, shared memory, its own stack, and,
 *   reading, its arguments.
 *
 * The order in which the emulation runs threads does not matter for that: any one finds what is there, as long as it
 * takes the same branches. Two threads may not even write the same value. */
#ifndef TESTS_CUDA_RACES_H
#define TESTS_CUDA_RACES_H

#include <stdbool.h>
#include <stddef.h>

/* From now on: installs the watch (emulate.h). Before any kernel or allocation. */
void races_begin(void);
/* The running thread touches p[0 .. bytes); `code`: where. Outside of kernels nothing is looked at. */
void races_access(const void *p, size_t bytes, bool write, const void *code);

/* What barriers are worth (tests/cuda/races/barriers.sh). With CUDA_BARRIERS_TO=FILE every one that is reached is added
 * to FILE once, "cuda_loss.cu:14 cuda_xent"; false leaves out the one that CUDA_BARRIER_LEFT_OUT names like that. */
bool barriers_wait(const char *kernel, const char *file, int line);

#endif
