#define LEVEL_TABLE cpu_kernels_avx512
#define LEVEL_NAME "avx512"
#define LEVEL_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
#define VEC_AVX512 1
#include "gpu/cpu/cpu_level_body.h"
