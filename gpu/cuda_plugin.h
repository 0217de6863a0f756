/* The interface that the shared object of the CUDA back end exports: one table under one name. The program
 * (gpu/plugin.c) and the plugin must come from one build; `version` and `device_bytes` detect a mixture. */
#ifndef GPU_CUDA_PLUGIN_H
#define GPU_CUDA_PLUGIN_H

#include "gpu/device.h"

#define CUDA_PLUGIN_SYMBOL "atoll_cuda_plugin"

struct cuda_plugin {
    const char *version; /* ATOLL_VERSION */
    size_t device_bytes; /* sizeof(struct device) + sizeof(struct device_ops) */
    /* Usable GPUs of this machine; UNSUPPORTED with one line if there are none. */
    enum status (*count)(int *count, struct err *err) MUST_CHECK;
    enum status (*open)(int index, struct device **out, struct err *err) MUST_CHECK;
    /* Checks that GPUs can be ranks of one worker; UNSUPPORTED with one line: no NCCL. */
    enum status (*together)(struct err *err) MUST_CHECK;
};

extern const struct cuda_plugin atoll_cuda_plugin;

#endif
