/* The CUDA back end for tests without a GPU: the CPU runs its kernels (tests/cuda/emulator/emulate.h). */
#ifndef TESTS_LIB_EMULATED_PLUGIN_H
#define TESTS_LIB_EMULATED_PLUGIN_H

/* Return the path of a file in the folder of this program; valid until the next call. */
const char *beside_program(const char *file);
/* Return the plugin's path beside this program, for ATOLL_CUDA_PLUGIN (gpu/plugin.h). */
const char *emulated_plugin_path(void);

#endif
