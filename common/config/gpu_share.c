#include "common/config/gpu_share.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/config/config_keys.h"
#include "common/os/environment.h"

enum status gpu_share_from_env(struct gpu_share *share, struct err *err)
{
    uint64_t workers, index = 0;
    TRY(environment_number(WORKERS_HERE_ENV, "a number of workers", 0, UINT32_MAX, &workers, err));
    if (workers) TRY(environment_number(WORKER_INDEX_ENV, "the number of a worker", 0, workers - 1, &index, err));
    *share = (struct gpu_share){.workers = (uint32_t)workers, .index = (uint32_t)index};
    return STATUS_OK;
}

bool gpu_share_deal(struct gpu_share *s, uint32_t gpus, uint32_t ranks, uint32_t batch_size)
{
    if (!s->workers || !gpus || ranks > gpus) return false;
    assert(s->index < s->workers);
    if (!ranks) {
        ranks = gpus > s->workers ? gpus / s->workers : 1;
        while (batch_size % ranks) ranks--;
    }
    uint32_t parts = gpus / ranks, mine = s->index % parts, taken = s->workers < parts ? s->workers : parts;
    s->gpus = gpus;
    s->ranks = ranks;
    /* Each worker starts at its equal part even if it uses fewer GPUs: adjacent GPUs have the faster links. */
    s->first = mine * (s->workers <= parts ? gpus / s->workers : ranks);
    s->sharers = (s->workers - 1 - mine) / parts + 1;
    s->idle = gpus - taken * ranks;
    assert(s->first + ranks <= gpus && s->sharers > 0 && taken * ranks <= gpus);
    return true;
}

/* auto | cpu | cuda | cuda:0,1 */
static bool devices_ok(const char *text)
{
    if (!strcmp(text, "auto") || !strcmp(text, "cpu") || !strcmp(text, "cuda")) return true;
    if (strncmp(text, "cuda:", 5)) return false;
    bool digit = false;
    for (const char *p = text + 5; *p; p++) {
        if (*p == ',' && !digit) return false;
        if (*p != ',' && !isdigit((unsigned char)*p)) return false;
        digit = *p != ',';
    }
    return digit;
}

static enum status check_devices(const char *devices, struct err *err)
{
    if (!devices_ok(devices))
        return err_set(err, STATUS_INVALID, "train.devices: \"%s\" is not valid; allowed: auto, cpu, cuda, cuda:0,1",
                       devices);
    if (strncmp(devices, "cuda:", 5)) return STATUS_OK;
    for (const char *at = devices + 4; at; at = strchr(at + 1, ','))
        for (const char *other = strchr(at + 1, ','); other; other = strchr(other + 1, ','))
            if (strtoul(at + 1, NULL, 10) == strtoul(other + 1, NULL, 10))
                return err_set(err, STATUS_INVALID, "train.devices: \"%s\" lists cuda:%lu twice", devices,
                               strtoul(at + 1, NULL, 10));
    return STATUS_OK;
}

enum status gpu_share_check(const struct config *config, const struct config_sources *sources, struct err *err)
{
    const int keys[] = {config_key_at(offsetof(struct config, train.devices)), -1};
    enum status status = check_devices(config->train.devices, err);
    if (status != STATUS_OK) config_prefix_sources(sources, keys, err);
    return status;
}

uint32_t gpu_share_count_listed(const char *devices)
{
    uint32_t n = 0;
    if (strncmp(devices, "cuda:", 5)) return 0;
    for (const char *at = devices + 4; at; at = strchr(at + 1, ',')) n++;
    return n;
}

unsigned long gpu_share_device_number(const char *devices, uint32_t i)
{
    if (strncmp(devices, "cuda:", 5)) return i;
    for (devices += 5; i && strchr(devices, ','); i--) devices = strchr(devices, ',') + 1;
    return strtoul(devices, NULL, 10);
}

static enum status write_devices(const struct gpu_share *s, struct config *config, struct err *err)
{
    char text[CONFIG_NAME_MAX];
    size_t at = 0;
    for (uint32_t i = 0; i < s->ranks && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%lu",
                               i ? "," : "cuda:", gpu_share_device_number(config->train.devices, s->first + i));
    if (at >= sizeof text)
        return err_set(err, STATUS_INVALID,
                       "train.devices: %" PRIu32
                       " GPUs are too many for one worker: start more workers or set train.ranks",
                       s->ranks);
    memcpy(config->train.devices, text, at + 1);
    return STATUS_OK;
}

enum status gpu_share_apply(struct gpu_share *s, uint32_t gpus, uint32_t most, struct config *config,
                            struct config_sources *sources, struct err *err)
{
    int key = config_key_at(offsetof(struct config, train.ranks));
    bool listed = gpu_share_count_listed(config->train.devices) > 0, chosen = sources->of[key] > CONFIG_PRESET;
    uint32_t ranks = chosen ? config->train.ranks : most && gpus / (s->workers ? s->workers : 1) > most ? most : 0;
    TRY(gpu_share_check(config, sources, err));
    if (listed && s->workers < 2) return STATUS_OK;
    if (!gpu_share_deal(s, gpus, ranks, listed ? 0 : config->train.batch_size)) return STATUS_OK;
    if (gpus > 1) TRY(write_devices(s, config, err));
    if (!chosen) {
        config->train.ranks = s->ranks;
        sources->of[key] = CONFIG_PRESET;
    }
    return STATUS_OK;
}

const char *gpu_share_text(const struct gpu_share *s, const char *devices, char *out, size_t cap)
{
    char others[48] = "";
    if (s->sharers > 1) snprintf(others, sizeof others, ", shared with %" PRIu32 " more", s->sharers - 1);
    snprintf(out, cap, "%" PRIu32 " worker%s on %" PRIu32 " GPU%s: this one has %s%s", s->workers,
             s->workers > 1 ? "s" : "", s->gpus, s->gpus > 1 ? "s" : "", devices, others);
    return out;
}
