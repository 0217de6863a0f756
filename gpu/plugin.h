/* Loads the CUDA back end, a shared object beside the program (bin/atoll_cuda.so), when a device needs it. The program
 * runs without CUDA toolkit and driver and loads nothing until then. ATOLL_CUDA_PLUGIN names another file. */
#ifndef GPU_PLUGIN_H
#define GPU_PLUGIN_H

#include <stdbool.h>

#include "common/base/status.h"
#include "gpu/device.h"

/* False if opening must fail: no NVIDIA driver, or no plugin. Takes almost no time and loads no CUDA library. */
bool plugin_cuda_likely(void);

/* Number of GPUs that can be opened; 0: none, or no plugin. Loads the plugin. */
int plugin_cuda_count(void);

/* Checks that several GPUs can be ranks of one worker. UNSUPPORTED: err has the plugin's reason. Loads the plugin. */
enum status plugin_cuda_together(struct err *err) MUST_CHECK;

/* Opens GPU `index`. UNSUPPORTED: one line names what is missing or too old (plugin, library, driver, device). INVALID:
 * no such GPU. Loads the plugin on first use and never unloads it; thread-safe. */
enum status plugin_cuda_open(int index, struct device **out, struct err *err) MUST_CHECK;

#endif
