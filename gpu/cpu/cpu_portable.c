#define LEVEL_NAME "portable"
#include "gpu/cpu/cpu_level_body.h"

const struct cpu_kernels *cpu_kernels_portable(void)
{
    return &level_kernels;
}
