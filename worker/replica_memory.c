#include "worker/replica_memory.h"

#include "worker/shard.h"
#include "worker/step_io.h"

/* Parameters, gradient and optimizer of the `here` ranks that share the memory. */
static void add_vectors(struct memory_ask *ask, const struct replica_config *config, const struct layout *layout,
                        uint32_t here)
{
    struct device *dev = ask->dev;
    uint64_t *fixed = ask->fixed;
    bool apart = config->ranks > 1 && (!dev->host_memory || config->apart); /* worker/shard.h */
    struct shard_map map = shard_map_make(layout->n_params, apart ? config->ranks : 1, config->bucket);
    uint64_t theta = (apart ? map.padded : layout->n_params) * sizeof(float);
    fixed[MEMORY_PARAMS] = apart ? here * theta : theta;
    if (!dev->host_memory) fixed[MEMORY_PARAMS] += layout->n_params * sizeof(float);
    fixed[MEMORY_IMAGE] = dev->ops->params_bytes(dev, layout->n_params);
    if (config->eval_only) return;
    fixed[MEMORY_GRADIENT] = here * theta;
    fixed[MEMORY_MOMENTS] = apart ? here * inner_opt_moment_bytes(&config->opt, shard_floats(&map))
                                  : inner_opt_moment_bytes(&config->opt, layout->n_params);
    struct inner_opt_config opt = config->opt;
    opt.hidden_blocks = config->family->hidden_blocks;
    fixed[MEMORY_WORKSPACE] = here * inner_opt_scalar_bytes() + inner_opt_matrix_bytes(&opt, layout, dev, (int)here);
    if (apart) fixed[MEMORY_WORKSPACE] += (uint64_t)here * config->ranks * map.n_buckets * sizeof(float);
}

enum status replica_memory_plan(struct memory_plan *plan, const struct replica_config *config,
                                const struct layout *layout, struct device *dev, struct err *err)
{
    uint32_t here = dev->host_memory ? config->ranks : 1, accum = config->eval_only ? 1 : config->grad_accum;
    size_t seq = config->model.block_size;
    struct memory_ask ask = {.family = config->family, .model = &config->model, .dev = dev, .seq = seq, .ranks = here,
                             .batch_size = config->batch_size, .batch_unit = config->ranks,
                             .uses = MODEL_LOSS | (config->eval_only ? 0 : MODEL_TRAIN),
                             .outer = dev->host_memory ? config->outer.host : config->outer.device};
    add_vectors(&ask, config, layout, here);
    ask.row_bytes = seq * (2 * sizeof(int32_t) + sizeof(float)); /* tokens, targets, losses */
    if (dev->host_memory) ask.row_bytes += step_io_bytes(dev, seq, accum);
    dev->ops->memory(dev, &ask.free_bytes, &ask.total_bytes);
    return memory_plan_make(plan, &ask, config->recompute, err);
}
