#include "common/config/codec_choice.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/config/codec_spec.h"

/* The value stage of "union" (the default, "+sign") or "union+VALUES"; NULL for other specs. */
static const char *union_values(const char *spec)
{
    if (strncmp(spec, "union", 5)) return NULL;
    return !spec[5] ? "+sign" : spec[5] == '+' ? spec + 5 : NULL;
}

enum config_down config_down(const struct config *config)
{
    const char *spec = config->codec.down;
    if (!strcmp(spec, "relay")) return CONFIG_DOWN_RELAY;
    if (!strcmp(spec, "auto")) return CONFIG_DOWN_AUTO;
    return union_values(spec) ? CONFIG_DOWN_UNION : CONFIG_DOWN_CODEC;
}

bool config_may_relay(const struct config *config)
{
    enum config_down down = config_down(config);
    return down == CONFIG_DOWN_RELAY || down == CONFIG_DOWN_AUTO;
}

const char *config_up_spec(const struct config *config, bool mean)
{
    return mean ? "fp32" : config->codec.up;
}

void config_down_spec(const struct config *config, bool mean, char out[CODEC_SPEC_MAX])
{
    if (mean) {
        memcpy(out, "fp32", sizeof "fp32");
        return;
    }
    switch (config_down(config)) {
    case CONFIG_DOWN_CODEC: snprintf(out, CODEC_SPEC_MAX, "%s", config->codec.down); break;
    case CONFIG_DOWN_RELAY: out[0] = 0; break;
    /* topk:4095/4096 sends every nonzero value of a chunk, except for the smallest one if all 4096 are nonzero. */
    case CONFIG_DOWN_UNION:
        assert(union_values(config->codec.down));
        snprintf(out, CODEC_SPEC_MAX, "topk:4095/4096%.40s", union_values(config->codec.down));
        break;
    case CONFIG_DOWN_AUTO: snprintf(out, CODEC_SPEC_MAX, "topk:4095/4096+sign"); break;
    }
}

bool config_down_loses(const struct config *config)
{
    return config_down(config) != CONFIG_DOWN_RELAY && !codec_spec_lossless(config->codec.down);
}

uint32_t config_outer_vectors(const struct config *config)
{
    return config->outer.optimizer == OPTIMIZER_ADAMW ? 2 : config->outer.optimizer != OPTIMIZER_SGD;
}

bool config_outer_half(const struct config *config)
{
    return config->outer.state == OUTER_BF16 && config->outer.optimizer != OPTIMIZER_ADAMW;
}

bool config_up_mixed(const struct config *config)
{
    return config->codec.up_allowed[0] != '\0';
}

uint32_t config_up_specs(const struct config *config, char out[CONFIG_UP_MAX][CODEC_SPEC_MAX])
{
    uint32_t n = 1;
    memcpy(out[0], config->codec.up, CODEC_SPEC_MAX);
    for (const char *at = config->codec.up_allowed; *at; n++) {
        at += strspn(at, " ");
        size_t length = strcspn(at, ", ");
        if (n == CONFIG_UP_MAX || !length || length >= CODEC_SPEC_MAX) return 0;
        snprintf(out[n], CODEC_SPEC_MAX, "%.*s", (int)length, at);
        at += length;
        at += strspn(at, " ");
        if (*at && *at != ',') return 0;
        if (*at && !*++at) return 0;
    }
    return n;
}

const char *config_merge_spec(const struct config *config, bool mean)
{
    return mean || config_up_mixed(config) ? "fp32" : config->codec.up;
}

bool config_update_replaces(const struct config *config, bool mean)
{
    bool relay = config_down(config) == CONFIG_DOWN_RELAY;
    return mean || codec_spec_lossless(relay ? config->codec.up : config->codec.down);
}

bool config_delta_replaces(const struct config *config, bool mean)
{
    if (config->train.method == METHOD_ASYNC || config->train.method == METHOD_DDP) return false;
    return mean || (!config_up_mixed(config) && codec_spec_lossless(config->codec.up));
}
