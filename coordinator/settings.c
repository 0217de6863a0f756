#include "coordinator/settings.h"

#include <stdio.h>

#include "common/log.h"
#include "compress/codec.h"

static enum status read_all(struct config *config, struct config_sources *sources, const char *path,
                            const struct options *options, struct err *err)
{
    config_defaults(config, sources);
    if (path) TRY(config_load(config, sources, path, err));
    TRY(config_env(config, sources, err));
    for (size_t i = 0; i < options->n_settings; i++)
        TRY(config_set(config, sources, options->settings[i], CONFIG_FLAG, err));
    TRY(config_resolve(config, sources, err));
    if (codec_spec_check(config->codec.up, err) != STATUS_OK) return err_prefix(err, "codec.up");
    char down[CONFIG_SPEC_MAX];
    config_down_spec(config, down);
    if (down[0] && codec_spec_check(down, err) != STATUS_OK) return err_prefix(err, "codec.down");
    return STATUS_OK;
}

enum status settings_read(struct config *config, struct config_sources *sources, const char *path,
                          const struct options *options, struct err *err)
{
    return read_all(config, sources, path, options, err) == STATUS_OK ? STATUS_OK : (err->code = STATUS_INVALID);
}

/* Values that topk passes over for each it sends, about: a coordinate is sent once in so many rounds. 0: no topk. */
static uint32_t topk_period(const char *spec)
{
    unsigned k, chunk;
    return sscanf(spec, "topk:%u/%u", &k, &chunk) == 2 && k ? chunk / k : 0;
}

void settings_warn(const struct config *c)
{
    uint32_t rounds = c->train.max_steps / c->train.sync_every, period = topk_period(c->codec.up);
    if (c->inner.warmup_steps >= c->train.max_steps)
        log_warn("inner.warmup_steps: %u reach past train.max_steps = %u: the learning rate never gets to its peak",
                 c->inner.warmup_steps, c->train.max_steps);
    if (rounds < period)
        log_warn("codec.up: %s sends a coordinate about once in %u rounds, and this run has %u: int4 or 1bit learn "
                 "more from so few",
                 c->codec.up, period, rounds);
    if (period && c->outer.optimizer == OPTIMIZER_NESTEROV && c->outer.momentum > 0)
        log_warn("outer.momentum: %g on top of %s overshoots, whose residual is a momentum already: outer.optimizer "
                 "sgd with rate 1 is what goes with it",
                 c->outer.momentum, c->codec.up);
}
