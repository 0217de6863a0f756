#include "gpu/cpu/cpu_kernels.h"

#if defined(__x86_64__)

#include <math.h>
#include <string.h>

/* From here on the compiler may use instructions of this level. Only the table of this file is visible outside, and
 * cpu_kernels_select returns it only after it has checked the CPU. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define VEC_AVX2 1
#define LEVEL_NAME "avx2"
#include "gpu/cpu/cpu_level_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif

const struct cpu_kernels *cpu_kernels_avx2(void)
{
    return &level_kernels;
}

#else

const struct cpu_kernels *cpu_kernels_avx2(void)
{
    return NULL;
}

#endif
