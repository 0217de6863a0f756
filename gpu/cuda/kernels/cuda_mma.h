/* Instructions that 32 lanes of a warp carry out together, for kernels on tensor cores (compute capability 8.0): copies
 * from device to shared memory that run beside the thread, matrices of 8 by 8 bf16 from shared memory to registers, and
 * their products. Named and laid out as in the PTX ISA, sections "cp.async", "ldmatrix" and "Matrix Fragments for
 * mma.m16n8k16 with floating point type"; where kernels are compiled as C, KERNEL_EMULATION
 * (gpu/cuda/kernels/cuda_kernel.h) defines them.
 *
 * Shared memory of these kernels is what the launch asks for (MMA_KERNEL), so that it may be more than 48 KB, and is
 * addressed in bytes from its begin. All lanes of a warp call together, but for copies. */
#ifndef GPU_CUDA_MMA_H
#define GPU_CUDA_MMA_H

#include "gpu/cuda/kernels/cuda_act.h"

enum {
    MMA_SHARED_MAX = 99 << 10 /* bytes a block can have on every GPU from 8.0 on (8.6, 8.9 and 12.0 have no more) */
};

#ifdef __CUDACC__

struct shared {
    uint32_t at;
};

/* Threads of a block, and bytes of its shared memory `s`. The body follows. */
#define MMA_KERNEL(name, args, threads, bytes)                                                                         \
    static_assert((int)(bytes) <= (int)MMA_SHARED_MAX, "fits no multiprocessor of 8.6");                               \
    DEVICE void name##_body(const struct args a, const struct shared s);                                               \
    static __global__ void KERNEL_BOUNDS(threads) name##_kernel(const struct args a)                                   \
    {                                                                                                                  \
        extern __shared__ __align__(1024) unsigned char mma_shared[];                                                  \
        struct shared s;                                                                                               \
        s.at = (uint32_t)__cvta_generic_to_shared(mma_shared);                                                         \
        name##_body(a, s);                                                                                             \
    }                                                                                                                  \
    KNOWN_KERNEL(name##_kernel, bytes)                                                                                 \
    extern "C" void name(const struct cuda_grid *grid, const struct args *a)                                           \
    {                                                                                                                  \
        kernel_launch((const void *)name##_kernel, grid, (threads), (bytes), a);                                       \
    }                                                                                                                  \
    DEVICE void name##_body(const struct args a, const struct shared s)

/* 16 bytes, `filled` of them (0 or 16) from device memory and zeros behind; both aligned to 16. Where none is filled
 * nothing is read: `from` may be anywhere. */
DEVICE void copy_16(struct shared s, unsigned at, const void *from, unsigned filled)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(s.at + at), "l"(__cvta_generic_to_global(from)),
                 "r"(filled)
                 : "memory");
}

/* The same for 4 bytes. */
DEVICE void copy_4(struct shared s, unsigned at, const void *from, unsigned filled)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(s.at + at), "l"(__cvta_generic_to_global(from)),
                 "r"(filled)
                 : "memory");
}

/* The thread's copies since its last call become a group. */
DEVICE void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until all but the thread's last `but` groups (0 or 1) have arrived: for this thread; others see them behind a
 * barrier. */
DEVICE void copy_wait(const int but)
{
    if (but)
        asm volatile("cp.async.wait_group 1;" ::: "memory");
    else
        asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/* Four matrices of 8 rows of 16 bytes: lane l says where row l % 8 of matrix l / 8 lies. out[i]: of matrix i, row
 * lane / 4, columns 2 (lane % 4) and the next one. */
DEVICE void rows_load(struct shared s, unsigned at, uint32_t *out)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(s.at + at)
                 : "memory");
}

/* The same of the transposed matrices: out[i]: column lane / 4, rows 2 (lane % 4) and the next one. */
DEVICE void columns_load(struct shared s, unsigned at, uint32_t *out)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(s.at + at)
                 : "memory");
}

/* sum[16,8] += a[16,16] b[16,8], in fp32. With g = lane / 4 and t = lane % 4:
 *     sum: rows g (0, 1) and g + 8 (2, 3), columns 2t and 2t + 1
 *     a: pairs from column 2t of rows g and g + 8, then from column 2t + 8 of the same
 *     b: of column g, pairs from row 2t, then from row 2t + 8 */
DEVICE void mma(float *sum, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two floats; 4 bytes; 16 bytes to device memory. */
DEVICE void shared_floats(struct shared s, unsigned at, float *out)
{
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(out[0]), "=f"(out[1]) : "r"(s.at + at) : "memory");
}

DEVICE void shared_put(struct shared s, unsigned at, uint32_t x)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(s.at + at), "r"(x) : "memory");
}

DEVICE void shared_to_device(struct shared s, unsigned at, void *to)
{
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(s.at + at)
                 : "memory");
    *(uint4 *)to = x;
}

/* Two numbers as bf16, the first in the lower half. */
DEVICE uint32_t bf16_pair(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

#endif

#endif
