#include "worker/replica/replica_memory.h"

#include <assert.h>

#include "common/os/host_memory.h"
#include "worker/inner/inner_shard.h"
#include "worker/inner/shard_deal.h"
#include "worker/replica/step_io.h"

enum { STAGE_BYTES = 32 << 20 }; /* maximum size of a pinned buffer */

size_t replica_stage_bytes(uint64_t n_params)
{
    uint64_t theta = n_params * sizeof(float);
    return theta < STAGE_BYTES ? (size_t)theta : STAGE_BYTES;
}

/* Adds the sharded optimizer: of all ranks if they share this memory (here > 1), else of the rank that needs the most.
 */
static void add_shards(uint64_t fixed[MEMORY_CLASSES], const struct shard_map *map, struct device *dev, uint32_t here,
                       size_t moment)
{
    for (int r = 0; r < (int)map->ranks; r++) {
        uint64_t own = inner_shard_moment_bytes(map, r, moment), work = inner_shard_work_bytes(map, r, dev);
        if (here == 1 && own + work < fixed[MEMORY_MOMENTS] + fixed[MEMORY_WORKSPACE]) continue;
        fixed[MEMORY_MOMENTS] = here == 1 ? own : fixed[MEMORY_MOMENTS] + own;
        fixed[MEMORY_WORKSPACE] = here == 1 ? work : fixed[MEMORY_WORKSPACE] + work;
    }
}

/* Parameters, gradient and optimizer of the `here` ranks that share the memory. */
static enum status add_vectors(struct memory_request *request, const struct replica_config *config,
                               const struct layout *layout, uint32_t here)
{
    struct device *dev = request->dev;
    uint64_t *fixed = request->fixed;
    bool sharded = config->ranks > 1 && (!dev->host_memory || config->sharded); /* worker/inner/shard.h */
    struct shard_map map = shard_map_make(layout->n_params, sharded ? config->ranks : 1, config->bucket);
    uint64_t theta = (sharded ? map.padded : layout->n_params) * sizeof(float);
    fixed[MEMORY_PARAMS] = sharded ? here * theta : theta;
    fixed[MEMORY_BF16_WEIGHTS] = device_params_bytes(dev, layout->n_params);
    if (config->eval_only) return STATUS_OK;
    fixed[MEMORY_GRADIENT] = here * theta;
    struct inner_opt_config opt = config->opt;
    opt.hidden_blocks = config->family->hidden_blocks;
    if (sharded) {
        struct shard_deal deal = {0};
        if (opt.kind == OPTIMIZER_MUON) {
            TRY(shard_deal_make(&deal, &map, layout, opt.hidden_blocks));
            map.deal = &deal;
        }
        add_shards(fixed, &map, dev, here, inner_opt_moment_size(&opt));
        shard_deal_finish(&deal);
    } else {
        fixed[MEMORY_MOMENTS] = inner_opt_moment_bytes(&opt, layout->n_params);
        fixed[MEMORY_WORKSPACE] = inner_opt_matrix_bytes(&opt, layout, dev, (int)here);
    }
    fixed[MEMORY_WORKSPACE] += here * inner_opt_scalar_bytes();
    return STATUS_OK;
}

/* Finds the device with the least free memory. */
static void read_free_memory(struct memory_request *request, struct device *const *devices, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t left, all;
        devices[i]->ops->memory(devices[i], &left, &all);
        if (i && left >= request->free_bytes) continue;
        request->dev = devices[i];
        request->free_bytes = left;
        request->total_bytes = all;
    }
}

/* Bytes of the copy that a save reads while training goes on. */
static uint64_t copy_bytes(const struct replica_config *config, const struct layout *layout)
{
    if (!config->outer.saved || config->eval_only) return 0;
    return config->outer.saved + inner_opt_host_bytes(&config->opt, layout->n_params);
}

enum status replica_memory_plan(struct memory_plan *plan, const struct replica_config *config,
                                const struct layout *layout, struct device *const *devices, struct err *err)
{
    struct device *dev = devices[0];
    uint32_t here = dev->host_memory ? config->ranks : 1, accum = config->eval_only ? 1 : config->grad_accum;
    size_t seq = config->model.block_size;
    struct memory_request request = {.family = config->family,
                                     .model = &config->model,
                                     .dev = dev,
                                     .seq = seq,
                                     .ranks = here,
                                     .batch_size = config->batch_size,
                                     .batch_unit = config->ranks,
                                     .uses = MODEL_LOSS | (config->eval_only ? 0 : MODEL_TRAIN),
                                     .outer = dev->host_memory ? config->outer.host : config->outer.device};
    if (dev->host_memory) request.outer.messages += config->outer.inbox + copy_bytes(config, layout);
    if (add_vectors(&request, config, layout, here) != STATUS_OK)
        return err_set(err, STATUS_NOMEM, "no memory for the memory plan");
    request.row_bytes = seq * (2 * sizeof(int32_t) + sizeof(float)); /* tokens, targets, losses */
    if (dev->host_memory) request.row_bytes += step_io_bytes(dev, seq, accum);
    read_free_memory(&request, devices, dev->host_memory ? 1 : config->ranks);
    if (!config->eval_only) TRY(memory_request_share(&request, dev->host_memory, config->sharers, err));
    return memory_plan_make(plan, &request, config->recompute, err);
}

enum status replica_host_plan(struct memory_plan *plan, const struct replica_config *config,
                              const struct layout *layout, struct device *const *devices,
                              const struct memory_plan *device, struct err *err)
{
    const struct replica_outer *outer = &config->outer;
    bool delta_device = outer->device.anchor && !device->outer_left_out; /* the GPU computes deltas */
    size_t tokens = config->batch_size / config->ranks * (size_t)config->model.block_size;
    uint64_t each = DEVICE_STAGES * replica_stage_bytes(layout->n_params) +
                    step_io_bytes(devices[0], tokens, config->eval_only ? 1 : config->grad_accum);
    struct memory_request request = {.dev = devices[0]};
    request.fixed[MEMORY_PARAMS] = delta_device ? 0 : layout->n_params * sizeof(float);
    request.fixed[MEMORY_MOMENTS] = config->eval_only ? 0 : inner_opt_host_bytes(&config->opt, layout->n_params);
    request.fixed[MEMORY_ANCHOR] = outer->host.anchor - (delta_device ? outer->base : 0);
    request.fixed[MEMORY_RESIDUAL] = outer->host.residual;
    request.fixed[MEMORY_MESSAGES] = outer->host.messages + outer->inbox + copy_bytes(config, layout);
    request.fixed[MEMORY_PINNED] = config->ranks * each + (delta_device ? outer->pinned : 0);
    host_memory(&request.free_bytes, &request.total_bytes);
    if (!config->eval_only) TRY(memory_request_share(&request, true, 0, err));
    return memory_plan_host(plan, &request, err);
}
