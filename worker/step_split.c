#include "worker/step_split.h"

#include <inttypes.h>

#include "common/config/config_resolve.h"

bool step_split_has(int index)
{
    return index == AT(train.batch_size) || index == AT(train.grad_accum);
}

enum status step_split_apply(struct config *config, struct config_sources *sources, const struct config *own,
                             const struct config_sources *own_sources, struct err *err)
{
    bool has_size = own_sources->of[AT(train.batch_size)] == CONFIG_FLAG;
    bool has_accum = own_sources->of[AT(train.grad_accum)] == CONFIG_FLAG;
    uint64_t samples = (uint64_t)config->train.batch_size * config->train.grad_accum;
    uint64_t size = own->train.batch_size, accum = own->train.grad_accum;
    if (!has_size && !has_accum) return STATUS_OK;
    if (!has_accum) accum = samples >= size ? samples / size : 1;
    if (!has_size) size = samples >= accum ? samples / accum : 1;
    if (size * accum != samples)
        return err_set(err, STATUS_INVALID,
                       "command line: train.%s: %" PRIu64 " x %" PRIu64 " micro-steps are %" PRIu64
                       " samples, but a step of the run takes train.batch_size %u x train.grad_accum %u = %" PRIu64
                       ": give two factors of %" PRIu64,
                       has_size ? "batch_size" : "grad_accum", size, accum, size * accum, config->train.batch_size,
                       config->train.grad_accum, samples, samples);
    config->train.batch_size = (uint32_t)size;
    config->train.grad_accum = (uint32_t)accum;
    sources->of[AT(train.batch_size)] = sources->of[AT(train.grad_accum)] = CONFIG_FLAG;
    return STATUS_OK;
}
