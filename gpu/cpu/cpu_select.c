#include "gpu/cpu/cpu_kernels.h"

#include <string.h>

const struct cpu_kernels *cpu_kernels_select(const char *wanted)
{
    bool any = !wanted || !*wanted;
#if defined(__x86_64__)
    __builtin_cpu_init(); /* the builtins also check that the system saves the registers */
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512 && (any || strcmp(wanted, "avx512") == 0)) return &cpu_kernels_avx512;
    if (avx2 && (any || strcmp(wanted, "avx2") == 0)) return &cpu_kernels_avx2;
#endif
    return any || strcmp(wanted, "portable") == 0 ? &cpu_kernels_portable : NULL;
}
