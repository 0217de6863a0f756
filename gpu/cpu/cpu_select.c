#include "gpu/cpu/cpu_kernels.h"

#include <string.h>

static bool cpu_has_avx2(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init(); /* the builtins also check that the system saves the registers */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

static bool cpu_has_avx512(void)
{
#if defined(__x86_64__)
    return cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

const struct cpu_kernels *cpu_kernels_select(const char *wanted)
{
    bool any = !wanted || !*wanted;
    if (cpu_has_avx512() && (any || strcmp(wanted, "avx512") == 0)) return cpu_kernels_avx512();
    if (cpu_has_avx2() && (any || strcmp(wanted, "avx2") == 0)) return cpu_kernels_avx2();
    if (any || strcmp(wanted, "portable") == 0) return cpu_kernels_portable();
    return NULL;
}
