/* Macros of gpu/cuda/kernels/cuda_kernel.h for kernels compiled as C (KERNEL_EMULATION), and the emulator's functions
 * behind them. __LINE__ gives the emulator the position in the kernel. */
#ifndef TESTS_CUDA_EMULATE_KERNEL_H
#define TESTS_CUDA_EMULATE_KERNEL_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "gpu/cuda/kernels/cuda_args.h"

struct emulated_index {
    unsigned x, y, z;
};
extern struct emulated_index threadIdx, blockIdx, blockDim, gridDim;

/* Run thread(a) for every thread of a grid. The process ends with a message if some threads of a block (or lanes of a
 * warp) miss a barrier, or if they wait at different lines. */
void cuda_emulate(const char *name, void (*thread)(const void *a), const void *a, size_t a_bytes, unsigned x,
                  unsigned y, unsigned threads);
/* Queue the same for the host's next wait. */
void cuda_emulated_launch(const struct cuda_grid *grid, const char *name, void (*thread)(const void *a), const void *a,
                          size_t a_bytes, unsigned threads);
void cuda_emulated_barrier(int line);
void cuda_emulated_warp_barrier(int line);
float cuda_emulated_xor_f32(float value, unsigned lanes, int line);
double cuda_emulated_xor_f64(double value, unsigned lanes, int line);
unsigned cuda_emulated_xor_u32(unsigned value, unsigned lanes, int line);
unsigned cuda_emulated_up_u32(unsigned value, unsigned lanes, int line);
unsigned cuda_emulated_add_u32(unsigned value, int line);
unsigned cuda_emulated_max_u32(unsigned value, int line);
unsigned cuda_emulated_ballot(int vote, int line);
/* Check the alignment of an access of 16 bytes, as a GPU requires it. */
void cuda_emulated_wide(const void *p);

#define DEVICE static inline
#define UNROLL
#define UNROLL_4
/* Shared memory is a section. It is not initialized on a GPU, so the emulator fills it with NaN before every block. */
#if defined(__SANITIZE_ADDRESS__)
#define __shared__ static
#else
#define __shared__ static __attribute__((section("cuda_shared")))
#endif
#define __syncthreads() cuda_emulated_barrier(__LINE__)
#define __syncwarp() cuda_emulated_warp_barrier(__LINE__)
#define __ballot_sync(mask, vote) cuda_emulated_ballot((vote), __LINE__)
#define __shfl_xor_sync(mask, value, lanes)                                                                            \
    _Generic((value), float                                                                                            \
             : cuda_emulated_xor_f32, double                                                                           \
             : cuda_emulated_xor_f64, unsigned                                                                         \
             : cuda_emulated_xor_u32)((value), (lanes), __LINE__)
#define __shfl_up_sync(mask, value, lanes) cuda_emulated_up_u32((value), (lanes), __LINE__)
#define __reduce_add_sync(mask, value) cuda_emulated_add_u32((value), __LINE__)
#define __reduce_max_sync(mask, value) cuda_emulated_max_u32((value), __LINE__)
#define __popc(word) ((unsigned)__builtin_popcount(word))
#define KERNEL(name, args, threads) KERNEL_CALLED(#name, name, args, threads)
#define KERNEL_CALLED(text, name, args, threads)                                                                       \
    static void name##_kernel(const struct args a);                                                                    \
    static void name##_thread(const void *a)                                                                           \
    {                                                                                                                  \
        name##_kernel(*(const struct args *)a);                                                                        \
    }                                                                                                                  \
    void name(const struct cuda_grid *grid, const struct args *a)                                                      \
    {                                                                                                                  \
        cuda_emulated_launch(grid, (text), name##_thread, a, sizeof *a, (threads));                                    \
    }                                                                                                                  \
    static void name##_kernel(const struct args a)
#define ACT_KERNEL(name, args, threads)                                                                                \
    DEVICE void name##_body(const struct args a, const int bf16);                                                      \
    KERNEL_CALLED(a->bf16 ? #name "_bf16" : #name "_fp32", name, args, threads)                                        \
    {                                                                                                                  \
        name##_body(a, a.bf16);                                                                                        \
    }                                                                                                                  \
    DEVICE void name##_body(const struct args a, const int bf16)

#endif
