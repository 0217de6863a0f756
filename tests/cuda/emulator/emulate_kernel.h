/* Macros of gpu/cuda/kernels/cuda_kernel.h and cuda_mma.h for kernels compiled as C (KERNEL_EMULATION), and the
 * emulator's functions behind them. __LINE__ gives the emulator the position in the kernel. */
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

/* --- cuda_mma.h --------------------------------------------------------------------------------------------------- */

struct shared {
    unsigned bytes;
};

/* --- emulate_mma.c: at the start of a block, its shared memory is NaN */

/* Returns the address of `bytes` bytes. Ends the process if they are out of bounds or not aligned to `bytes`. */
unsigned char *cuda_emulated_shared(struct shared s, unsigned at, unsigned bytes, int line);
/* Record an asynchronous copy of the calling thread; it is done at the thread's wait. If the thread never waits, the
 * process ends with the block. */
void cuda_emulated_copy(unsigned char *to, const void *from, unsigned bytes, unsigned filled, int line);
void cuda_emulated_commit(void);
struct emulated_copy {
    unsigned char *to;
    const unsigned char *from;
    unsigned bytes, filled, group;
};
/* Returns the next copy to do until `but` groups are left; false: no copy is left. */
bool cuda_emulated_arrival(int but, struct emulated_copy *copy);
/* Load matrices from rows. The process ends if rows of one matrix lie in the same banks. */
void cuda_emulated_matrices(const uint16_t *row, unsigned at, bool columns, uint32_t *out, int line);
void cuda_emulated_mma(float *sum, const uint32_t *a, uint32_t b0, uint32_t b1, int line);

#define MMA_KERNEL(name, args, threads, size)                                                                          \
    _Static_assert((int)(size) <= (int)MMA_SHARED_MAX, "too large for a multiprocessor of capability 8.6");            \
    DEVICE void name##_body(const struct args a, const struct shared s);                                               \
    KERNEL(name, args, threads)                                                                                        \
    {                                                                                                                  \
        name##_body(a, (struct shared){.bytes = (size)});                                                              \
    }                                                                                                                  \
    DEVICE void name##_body(const struct args a, const struct shared s)

/* The destination holds garbage until the wait. The bytes are accessed here, in the kernel's own code, because the
 * checker instruments only that (tests/cuda/races/races.h). */
DEVICE void emulated_copy(struct shared s, unsigned at, const void *from, unsigned bytes, unsigned filled, int line)
{
    unsigned char *to = cuda_emulated_shared(s, at, bytes, line);
    for (unsigned i = 0; i < bytes; i++) to[i] = 0xff;
    cuda_emulated_copy(to, from, bytes, filled, line);
}

DEVICE void copy_16(struct shared s, unsigned at, const void *from, unsigned filled)
{
    emulated_copy(s, at, from, 16, filled, __LINE__);
}

DEVICE void copy_4(struct shared s, unsigned at, const void *from, unsigned filled)
{
    emulated_copy(s, at, from, 4, filled, __LINE__);
}

DEVICE void copy_commit(void)
{
    cuda_emulated_commit();
}

DEVICE void copy_wait(const int but)
{
    struct emulated_copy copy;
    while (cuda_emulated_arrival(but, &copy))
        for (unsigned i = 0; i < copy.bytes; i++) copy.to[i] = i < copy.filled ? copy.from[i] : 0;
}

DEVICE void emulated_matrices(struct shared s, unsigned at, bool columns, uint32_t *out, int line)
{
    uint16_t row[8];
    memcpy(row, cuda_emulated_shared(s, at, sizeof row, line), sizeof row);
    cuda_emulated_matrices(row, at, columns, out, line);
}

DEVICE void rows_load(struct shared s, unsigned at, uint32_t *out)
{
    emulated_matrices(s, at, false, out, __LINE__);
}

DEVICE void columns_load(struct shared s, unsigned at, uint32_t *out)
{
    emulated_matrices(s, at, true, out, __LINE__);
}

DEVICE void mma(float *sum, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    cuda_emulated_mma(sum, a, b0, b1, __LINE__);
}

DEVICE void shared_floats(struct shared s, unsigned at, float *out)
{
    memcpy(out, cuda_emulated_shared(s, at, 2 * sizeof *out, __LINE__), 2 * sizeof *out);
}

DEVICE void shared_put(struct shared s, unsigned at, uint32_t x)
{
    memcpy(cuda_emulated_shared(s, at, sizeof x, __LINE__), &x, sizeof x);
}

DEVICE void shared_to_device(struct shared s, unsigned at, void *to)
{
    cuda_emulated_wide(to);
    memcpy(to, cuda_emulated_shared(s, at, 16, __LINE__), 16);
}

/* A macro, because kernels include bf16_of (gpu/cuda/kernels/cuda_act.h) later. */
#define bf16_pair(low, high) (bf16_of(low) | (uint32_t)bf16_of(high) << 16)

#endif
