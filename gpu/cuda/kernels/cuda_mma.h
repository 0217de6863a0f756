/* Warp-wide instructions for kernels on tensor cores (compute capability 8.0): asynchronous copies from device to
 * shared memory, loads of 8 by 8 bf16 matrices from shared memory to registers, and matrix products. Names and layouts
 * follow the PTX ISA, sections "cp.async", "ldmatrix" and "Matrix Fragments for mma.m16n8k16 with floating point type".
 * For C builds KERNEL_EMULATION (gpu/cuda/kernels/cuda_kernel.h) defines them.
 *
 * The launch requests the shared memory of these kernels (MMA_KERNEL), so that it may exceed 48 KB. Addresses are bytes
 * from its start. All lanes of a warp must call together, except for copies. */
#ifndef GPU_CUDA_MMA_H
#define GPU_CUDA_MMA_H

#include "gpu/cuda/kernels/cuda_act.h"

enum {
    MMA_SHARED_MAX = 99 << 10 /* bytes per block on every GPU from 8.0 on (8.6, 8.9 and 12.0 have no more) */
};

#ifdef __CUDACC__

struct shared {
    uint32_t at;
};

/* `threads` per block and `bytes` of shared memory `s`. The body follows. */
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

/* Copies 16 bytes, `filled` (0 or 16) of them from device memory and the rest zeros; both addresses aligned to 16. With
 * filled 0 nothing is read, so `from` may be any address. */
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

/* Makes the thread's copies since its last call one group. */
DEVICE void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until all but the thread's last `but` groups (0 or 1) have arrived for this thread. Other threads see them
 * after a barrier. */
DEVICE void copy_wait(const int but)
{
    if (but)
        asm volatile("cp.async.wait_group 1;" ::: "memory");
    else
        asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/* Loads four matrices of 8 rows of 16 bytes. Lane l passes the address of row l % 8 of matrix l / 8. out[i] gets, of
 * matrix i, row lane / 4, columns 2 (lane % 4) and the next one. */
DEVICE void rows_load(struct shared s, unsigned at, uint32_t *out)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(s.at + at)
                 : "memory");
}

/* The same, transposed: out[i] gets column lane / 4, rows 2 (lane % 4) and the next one. */
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

/* Access to shared memory: load two floats; store 4 bytes; copy 16 bytes to device memory. */
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
