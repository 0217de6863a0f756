#include "gpu/device.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/number.h"
#include "common/config/gpu_share.h"
#include "gpu/cpu/cpu.h"
#include "gpu/plugin.h"

/* A machine without a GPU is normal and not logged; a GPU that cannot be used is logged. */
static enum status open_auto(int threads, struct device **out, struct err *err)
{
    struct err why = {0};
    if (!plugin_cuda_likely()) return cpu_open(threads, out, err);
    if (plugin_cuda_open(0, out, &why) == STATUS_OK) return STATUS_OK;
    log_info("device auto: using the CPU: %s", why.msg);
    return cpu_open(threads, out, err);
}

/* text: what follows "cuda": "" or ":N". */
static enum status open_cuda(const char *text, struct device **out, struct err *err)
{
    uint64_t index;
    if (!*text) return plugin_cuda_open(0, out, err);
    if (number_whole(text + 1, &index) && index < 1024) return plugin_cuda_open((int)index, out, err);
    return err_set(err, STATUS_INVALID, "device \"cuda%s\" is unknown: use cuda or cuda:N", text);
}

enum status device_open(const char *name, int threads, struct device **out, struct err *err)
{
    if (strcmp(name, "cpu") == 0) return cpu_open(threads, out, err);
    if (strcmp(name, "auto") == 0) return open_auto(threads, out, err);
    if (strncmp(name, "cuda", 4) == 0 && (name[4] == 0 || name[4] == ':')) return open_cuda(name + 4, out, err);
    return err_set(err, STATUS_INVALID, "device \"%s\" is unknown: use auto, cpu or cuda", name);
}

enum status device_advise(enum status status, const char *name, const char *cpu, struct err *err)
{
    if (!err || !cpu || status != STATUS_UNSUPPORTED || strncmp(name, "cuda", 4) != 0) return status;
    size_t used = strlen(err->msg);
    snprintf(err->msg + used, sizeof err->msg - used, "; use %s instead", cpu);
    return status;
}

const char *device_of_rank(const char *devices, int rank, int ranks, char out[DEVICE_NAME_BYTES])
{
    bool automatic = strcmp(devices, "auto") == 0;
    if (ranks == 1 && !strchr(devices, ',')) {
        snprintf(out, DEVICE_NAME_BYTES, "%s", devices);
    } else if (strncmp(devices, "cuda", 4) == 0 || (automatic && plugin_cuda_count() >= ranks)) {
        snprintf(out, DEVICE_NAME_BYTES, "cuda:%lu", gpu_share_device_number(devices, (uint32_t)rank));
    } else {
        snprintf(out, DEVICE_NAME_BYTES, "%s", automatic ? "cpu" : devices);
    }
    return out;
}

const char *device_names(struct device *const *devices, int n, char out[DEVICE_NAME_BYTES])
{
    const char *rest = strchr(devices[0]->name, ' ');
    size_t at = rest ? (size_t)(rest - devices[0]->name) : 0;
    snprintf(out, DEVICE_NAME_BYTES, "%s", devices[0]->name);
    for (int i = 1; i < n && rest && !devices[0]->host_memory; i++) {
        const char *number = strchr(devices[i]->name, ':');
        size_t digits = number ? strcspn(number + 1, " ") : 0;
        if (digits && at < DEVICE_NAME_BYTES)
            at += (size_t)snprintf(out + at, DEVICE_NAME_BYTES - at, ",%.*s", (int)digits, number + 1);
    }
    if (rest && at < DEVICE_NAME_BYTES) snprintf(out + at, DEVICE_NAME_BYTES - at, "%s", rest);
    return out;
}

void device_close(struct device *dev)
{
    if (dev) dev->ops->close(dev);
}
