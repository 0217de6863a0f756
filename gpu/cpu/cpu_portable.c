#define LEVEL_TABLE cpu_kernels_portable
#define LEVEL_NAME "portable"
#include "gpu/cpu/cpu_level_body.h"
