#include "worker/device_share.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/config/config_keys.h"
#include "gpu/plugin.h"

static uint32_t count_gpus(const struct config *c)
{
    uint32_t listed = gpu_share_count_listed(c->train.devices);
    int count = listed || !strcmp(c->train.devices, "cpu") ? 0 : plugin_cuda_count();
    return listed ? listed : count > 0 ? (uint32_t)count : 0;
}

/* Logs why GPUs are idle. single_reason: why a worker cannot use two GPUs, or NULL. */
static void warn_idle_gpus(const struct gpu_share *s, const struct config *c, bool chosen, const char *single_reason)
{
    char why[320];
    uint32_t part = s->gpus / s->workers;
    if (chosen)
        snprintf(why, sizeof why, "train.ranks=%u", s->ranks);
    else if (single_reason)
        snprintf(why, sizeof why, "%.300s", single_reason);
    else if (s->ranks < part)
        snprintf(why, sizeof why, "train.batch_size=%u is not divisible by %u", c->train.batch_size, part);
    else
        snprintf(why, sizeof why, "a number of workers that divides %u uses all GPUs", s->gpus);
    log_warn("%u of %u GPUs are idle: %u worker%s with %u each; %s", s->idle, s->gpus, s->workers,
             s->workers > 1 ? "s" : "", s->ranks, why);
}

enum status device_share_take(struct gpu_share *share, struct config *config, struct config_sources *sources,
                              struct err *err)
{
    char text[256], asked[CONFIG_NAME_MAX];
    struct err single_reason = {0};
    TRY(gpu_share_from_env(share, err));
    if (!share->workers) return STATUS_OK;
    TRY(gpu_share_check(config, sources, err));
    memcpy(asked, config->train.devices, sizeof asked);
    bool chosen = sources->of[config_key_at(offsetof(struct config, train.ranks))] > CONFIG_PRESET;
    uint32_t gpus = count_gpus(config);
    /* Several GPUs per worker are only a default here: use one if they cannot work together. */
    bool several = gpus / share->workers > 1 && !chosen && !gpu_share_count_listed(asked);
    bool single = several && plugin_cuda_together(&single_reason) != STATUS_OK;
    TRY(gpu_share_apply(share, gpus, single ? 1 : 0, config, sources, err));
    if (share->gpus < 2 && share->sharers < 2) return STATUS_OK;
    const char *devices = share->gpus > 1 ? config->train.devices : "it";
    log_info("%s", gpu_share_text(share, devices, text, sizeof text));
    if (share->idle && share->index == 0) warn_idle_gpus(share, config, chosen, single ? single_reason.msg : NULL);
    return STATUS_OK;
}
