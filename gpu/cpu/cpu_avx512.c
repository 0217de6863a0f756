#include "gpu/cpu/cpu_kernels.h"

#if defined(__x86_64__)

#include <math.h>
#include <string.h>

/* From here on the compiler may use instructions of this level. Only the table of this file is visible outside, and
 * cpu_kernels_select returns it only after it has checked the CPU. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))),                   \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#endif
#define VEC_AVX512 1
#define LEVEL_NAME "avx512"
#include "gpu/cpu/cpu_level_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif

const struct cpu_kernels *cpu_kernels_avx512(void)
{
    return &level_kernels;
}

#else

const struct cpu_kernels *cpu_kernels_avx512(void)
{
    return NULL;
}

#endif
