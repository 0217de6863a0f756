/* Replaces the emulator in the tests of tests/parity that compare the CUDA device with the CPU: they use the plugin
 * that the programs load, for a GPU or from ATOLL_CUDA_PLUGIN. Without a device, a test exits with 77. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "gpu/cuda_plugin.h"
#include "gpu/plugin.h"
#include "tests/cuda/emulator/emulate.h"

static enum status count(int *n, struct err *err)
{
    (void)err;
    *n = 1; /* the tests use the first GPU */
    return STATUS_OK;
}

const struct cuda_plugin atoll_cuda_plugin = {.version = ATOLL_VERSION, .count = count, .open = plugin_cuda_open};

/* A GPU chooses its own order, so each case runs once, as under a checker (tests/lib/device/device_pair.c). */
const struct emulate_watch *emulate_watch = &(const struct emulate_watch){.launch = NULL};

void emulate_order(unsigned seed)
{
    (void)seed;
}

void emulate_queue_order(unsigned seed)
{
    (void)seed;
}

unsigned long emulate_idle_waits(void)
{
    return 0; /* not counted on a GPU */
}

unsigned long emulate_uploaded(void)
{
    return 0;
}

__attribute__((constructor)) static void leave_without_device(void)
{
    struct device *dev = NULL;
    struct err err = {.code = STATUS_OK};
    if (plugin_cuda_open(0, &dev, &err) == STATUS_OK) {
        printf("device %s\n", dev->name);
        device_close(dev);
        cmocka_set_skip_filter(GPU_SKIPS); /* the tests cannot make allocations of a plugin fail */
        return;
    }
    printf("skipped: %s\n", err.msg);
    fflush(stdout);
    _Exit(err.code == STATUS_UNSUPPORTED ? 77 : 1);
}
