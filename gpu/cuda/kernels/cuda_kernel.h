/* The language of kernel sources (gpu/cuda/kernels/cuda_*.cu): the part of CUDA that is also C11. nvcc compiles them
 * for GPUs. A C compiler compiles the same lines with the header that KERNEL_EMULATION names; tests/cuda/emulator runs
 * them on the CPU.
 *
 * A kernel takes one struct by value and has a fixed number of threads per block:
 *
 *     KERNEL(cuda_fill, cuda_vector_args, 256)
 *     {
 *         size_t i = global_index();
 *         if (i < a.n) a.y[i] = a.alpha;
 *     }
 *
 * This also defines its launcher: void cuda_fill(const struct cuda_grid *, const struct cuda_vector_args *). ACT_KERNEL
 * is the same for kernels that read or write activations. It makes two kernels from one body; `bf16` is a constant in
 * each, and args.bf16 chooses the kernel (gpu/cuda/kernels/cuda_act.h). */
#ifndef GPU_CUDA_KERNEL_H
#define GPU_CUDA_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include "gpu/cuda/kernels/cuda_args.h"

#define FULL_WARP 0xffffffffu

/* Threads of a kernel that must be resident on one multiprocessor. A source that needs more than one block defines it
 * before including this file; the compiler then limits the registers. */
#ifndef KERNEL_RESIDENT
#define KERNEL_RESIDENT 1
#endif

#ifdef __CUDACC__

#include <cuda_runtime.h>

#define DEVICE static __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define UNROLL_4 _Pragma("unroll 4")
#define KERNEL_BOUNDS(threads) __launch_bounds__(threads, KERNEL_RESIDENT > (threads) ? KERNEL_RESIDENT / (threads) : 1)
/* Adds the kernel to the list of struct cuda_known_kernel. */
#define KNOWN_KERNEL(kernel)                                                                                           \
    __attribute__((section("atoll_kernels"), used)) static struct cuda_known_kernel kernel##_known = {                 \
        (const void *)kernel};
/* Calls the runtime instead of <<< >>>, whose code needs the C++ library (guards of static variables). The caller gets
 * errors from cudaGetLastError. */
static inline void kernel_launch(const void *kernel, const struct cuda_grid *grid, unsigned threads, const void *args)
{
    void *all[] = {(void *)args};
    (void)cudaLaunchKernel(kernel, dim3(grid->x, grid->y), dim3(threads), all, 0, (cudaStream_t)grid->stream);
}
#define KERNEL(name, args, threads)                                                                                    \
    static __global__ void KERNEL_BOUNDS(threads) name##_kernel(const struct args a);                                  \
    KNOWN_KERNEL(name##_kernel)                                                                                        \
    extern "C" void name(const struct cuda_grid *grid, const struct args *a)                                           \
    {                                                                                                                  \
        kernel_launch((const void *)name##_kernel, grid, (threads), a);                                                \
    }                                                                                                                  \
    static __global__ void KERNEL_BOUNDS(threads) name##_kernel(const struct args a)
#define ACT_KERNEL(name, args, threads)                                                                                \
    DEVICE void name##_body(const struct args a, const int bf16);                                                      \
    static __global__ void KERNEL_BOUNDS(threads) name##_fp32_kernel(const struct args a)                              \
    {                                                                                                                  \
        name##_body(a, 0);                                                                                             \
    }                                                                                                                  \
    static __global__ void KERNEL_BOUNDS(threads) name##_bf16_kernel(const struct args a)                              \
    {                                                                                                                  \
        name##_body(a, 1);                                                                                             \
    }                                                                                                                  \
    KNOWN_KERNEL(name##_fp32_kernel)                                                                                   \
    KNOWN_KERNEL(name##_bf16_kernel)                                                                                   \
    extern "C" void name(const struct cuda_grid *grid, const struct args *a)                                           \
    {                                                                                                                  \
        const void *kernel = a->bf16 ? (const void *)name##_bf16_kernel : (const void *)name##_fp32_kernel;            \
        kernel_launch(kernel, grid, (threads), a);                                                                     \
    }                                                                                                                  \
    DEVICE void name##_body(const struct args a, const int bf16)

#else

/* A C build of the kernels names a header that defines the words above for C. */
#ifndef KERNEL_EMULATION
#error "compile with -DKERNEL_EMULATION=\"tests/cuda/emulator/emulate_kernel.h\""
#endif
#include KERNEL_EMULATION

#endif

DEVICE size_t global_index(void)
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

/* Sum over the warp in a fixed order; every lane gets it. All 32 lanes must call. */
DEVICE float warp_sum(float x)
{
    for (unsigned lanes = 16; lanes; lanes /= 2) x += __shfl_xor_sync(FULL_WARP, x, lanes);
    return x;
}

DEVICE float warp_max(float x)
{
    for (unsigned lanes = 16; lanes; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, lanes));
    return x;
}

DEVICE double warp_sum_double(double x)
{
    for (unsigned lanes = 16; lanes; lanes /= 2) x += __shfl_xor_sync(FULL_WARP, x, lanes);
    return x;
}

/* of_warps[warp] = the sum over each warp. */
DEVICE void warps_sum(double x, double *of_warps)
{
    x = warp_sum_double(x);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
}

DEVICE double sum_of(const double *of_warps, const unsigned warps)
{
    double sum = of_warps[0];
    for (unsigned i = 1; i < warps; i++) sum += of_warps[i];
    return sum;
}

/* Sum over a block of `warps` warps in a fixed order; every thread gets it. */
DEVICE double block_sum(double x, const unsigned warps, double *scratch)
{
    warps_sum(x, scratch);
    __syncthreads(); /* all sums of warps are written */
    return sum_of(scratch, warps);
}

#endif
