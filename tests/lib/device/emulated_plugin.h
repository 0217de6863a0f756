/* The CUDA back end as tests load it where there is no GPU: its kernels run on the CPU (tests/cuda/emulator/emulate.h).
 */
#ifndef TESTS_LIB_EMULATED_PLUGIN_H
#define TESTS_LIB_EMULATED_PLUGIN_H

/* The path of a file in the folder of this program; until the next call. */
const char *beside_program(const char *file);
/* Its path, beside this program: for ATOLL_CUDA_PLUGIN (gpu/plugin.h). */
const char *emulated_plugin_path(void);

#endif
