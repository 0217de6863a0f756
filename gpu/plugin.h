/* Loading of the CUDA back end, a shared object beside the program (bin/atoll_cuda.so), when a device asks for it:
 * programs run without toolkit and driver, and load nothing unless told to. ATOLL_CUDA_PLUGIN names another file. */
#ifndef GPU_PLUGIN_H
#define GPU_PLUGIN_H

#include <stdbool.h>

#include "common/base/status.h"
#include "gpu/device.h"

/* False where opening is bound to fail: no NVIDIA driver, no plugin. Costs next to nothing, loads no CUDA library. */
bool plugin_cuda_likely(void);

/* GPUs that could be opened; 0: none, or no plugin. Loads it. */
int plugin_cuda_count(void);

/* Whether several GPUs can be ranks of one worker; what the plugin says where they cannot. Loads it. */
enum status plugin_cuda_together(struct err *err) MUST_CHECK;

/* Open GPU `index`. UNSUPPORTED, with one line that says what is missing or too old (plugin, library, driver, device);
 * INVALID: no such GPU. Loads the plugin on first use, for good; threads may call at the same time. */
enum status plugin_cuda_open(int index, struct device **out, struct err *err) MUST_CHECK;

#endif
