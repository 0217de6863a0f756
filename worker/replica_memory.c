#include "worker/replica_memory.h"

#include "worker/step_io.h"

enum status replica_memory_plan(struct memory_plan *plan, const struct replica_config *config,
                                const struct layout *layout, struct device *dev, struct err *err)
{
    uint64_t theta = layout->n_params * sizeof(float);
    uint32_t here = dev->host_memory ? config->ranks : 1, accum = config->eval_only ? 1 : config->grad_accum;
    size_t seq = config->model.block_size;
    struct memory_ask ask = {.family = config->family, .model = &config->model, .dev = dev, .seq = seq, .ranks = here,
                             .batch_size = config->batch_size, .batch_unit = config->ranks,
                             .uses = MODEL_LOSS | (config->eval_only ? 0 : MODEL_TRAIN),
                             .outer = dev->host_memory ? config->outer.host : config->outer.device};
    ask.fixed[MEMORY_PARAMS] = dev->host_memory ? theta : 2 * theta;
    if (dev->act_bytes < sizeof(float)) ask.fixed[MEMORY_IMAGE] = layout->n_params * dev->act_bytes;
    if (!config->eval_only) {
        ask.fixed[MEMORY_GRADIENT] = here * theta;
        ask.fixed[MEMORY_MOMENTS] = inner_opt_moment_bytes(&config->opt, layout->n_params);
        if (!dev->host_memory) ask.fixed[MEMORY_MOMENTS] /= config->ranks; /* a shard each, worker/shard.h */
        struct inner_opt_config opt = config->opt;
        opt.hidden_blocks = config->family->hidden_blocks;
        ask.fixed[MEMORY_WORKSPACE] = here * inner_opt_scalar_bytes();
        ask.fixed[MEMORY_WORKSPACE] += inner_opt_matrix_bytes(&opt, layout, dev, (int)here);
    }
    ask.row_bytes = seq * (2 * sizeof(int32_t) + sizeof(float)); /* tokens, targets, losses */
    if (dev->host_memory) ask.row_bytes += step_io_bytes(dev, seq, accum);
    dev->ops->memory(dev, &ask.free_bytes, &ask.total_bytes);
    return memory_plan_make(plan, &ask, config->recompute, err);
}
