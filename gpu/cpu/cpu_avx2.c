#define LEVEL_TABLE cpu_kernels_avx2
#define LEVEL_NAME "avx2"
#define LEVEL_TARGET "avx2,fma"
#define VEC_AVX2 1
#include "gpu/cpu/cpu_level_body.h"
