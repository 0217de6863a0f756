#include "gpu/device.h"

#include <string.h>

#include "gpu/cpu_impl.h"

enum status device_open(const char *name, int threads, struct device **out, struct err *err)
{
    if (strcmp(name, "cpu") == 0 || strcmp(name, "auto") == 0) return cpu_open(threads, out, err);
    if (strncmp(name, "cuda", 4) == 0 && (name[4] == 0 || name[4] == ':')) {
        return err_set(err, STATUS_UNSUPPORTED, "device \"%s\": this build has no CUDA back end; use cpu", name);
    }
    return err_set(err, STATUS_INVALID, "device \"%s\" is unknown: use auto or cpu", name);
}

void device_close(struct device *dev)
{
    if (dev) dev->ops->close(dev);
}
