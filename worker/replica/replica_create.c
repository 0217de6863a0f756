#include "worker/replica/replica_impl.h"

#include <assert.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "worker/model/decoder.h"

static enum status check_config(const struct replica_config *c, struct err *err)
{
    if (!c->ranks || c->ranks > COLLECTIVE_RANKS_MAX)
        return err_set(err, STATUS_INVALID, "train.ranks is %u: give 1 to %d", c->ranks, COLLECTIVE_RANKS_MAX);
    if (!c->batch_size || c->batch_size % c->ranks) {
        uint32_t below = c->batch_size / c->ranks * c->ranks;
        return err_set(err, STATUS_INVALID, "train.batch_size %u is not a multiple of train.ranks %u: use %u",
                       c->batch_size, c->ranks, below ? below : c->ranks);
    }
    if (!c->grad_accum || !c->threads)
        return err_set(err, STATUS_INVALID, "train.grad_accum and train.threads must be at least 1");
    return STATUS_OK;
}

static enum status rank_open(struct replica *r, int index, struct err *err)
{
    struct rank *k = &r->ranks[index];
    const struct replica_config *c = &r->config;
    uint32_t threads = c->threads / c->ranks + ((uint32_t)index < c->threads % c->ranks);
    char device[DEVICE_NAME_BYTES];
    k->replica = r;
    k->index = index;
    (void)device_of_rank(c->device, index, r->n_ranks, device);
    TRY(device_advise(device_open(device, threads ? (int)threads : 1, &k->dev, err), device, c->on_cpu, err));
    if (c->bf16 && !k->dev->host_memory) TRY(device_use_bf16(k->dev, err));
    if (c->bf16 && k->dev->host_memory && device_use_bf16(k->dev, NULL) != STATUS_OK && index == 0)
        log_warn("train.precision: %s computes bf16 in fp32", k->dev->name);
    return STATUS_OK;
}

static enum status rank_init(struct replica *r, int index, struct err *err)
{
    struct rank *k = &r->ranks[index];
    const struct replica_config *c = &r->config;
    size_t count = (size_t)r->rows * r->seq;
    assert(r->memory.level <= MODEL_RECOMPUTE_BLOCK);
    unsigned uses = c->eval_only ? MODEL_LOSS : model_uses(MODEL_LOSS | MODEL_TRAIN, r->memory.level);
    TRY(device_advise(decoder_create(c->family, &c->model, k->dev, r->rows, r->seq, uses, &k->model, err), k->dev->name,
                      c->on_cpu, err));
    const struct device_ops *ops = k->dev->ops;
    k->tokens = ops->alloc(k->dev, count * sizeof *k->tokens);
    k->targets = ops->alloc(k->dev, count * sizeof *k->targets);
    k->loss = ops->alloc(k->dev, count * sizeof *k->loss);
    k->row_loss = mem_alloc(r->rows, sizeof *k->row_loss);
    k->scratch = mem_alloc(r->seq + 1u, sizeof *k->scratch);
    bool ok = k->tokens && k->targets && k->loss && k->row_loss && k->scratch &&
              step_io_open(&k->io, k->dev, count, c->eval_only ? 1 : c->grad_accum) == STATUS_OK;
    return ok ? STATUS_OK : err_set(err, STATUS_NOMEM, "no memory for rank %d's batch", index);
}

/* Allocates theta and gradient of each rank, and the host copy if the host cannot read device memory. */
static enum status make_params(struct replica *r)
{
    size_t n = r->layout->n_params;
    assert(r->map.n_params == n && r->map.padded >= n);
    for (int i = 0; i < r->n_ranks; i++) {
        struct rank *k = &r->ranks[i];
        const struct device_ops *ops = k->dev->ops;
        bool own = i == 0 || r->sharded;
        k->theta = own ? ops->alloc(k->dev, r->map.padded * sizeof *k->theta) : r->ranks[0].theta;
        if (!r->config.eval_only) k->grad = ops->alloc(k->dev, r->map.padded * sizeof *k->grad);
        if (!k->theta || (!r->config.eval_only && !k->grad)) return STATUS_NOMEM;
    }
    if (!r->host.bytes[MEMORY_PARAMS]) return STATUS_OK; /* the plan has no host copy */
    r->host_values = mem_alloc(n, sizeof *r->host_values);
    return r->host_values ? STATUS_OK : STATUS_NOMEM;
}

static enum status make_optimizer(struct replica *r, struct device *const *devices, struct err *err)
{
    struct collective *colls[COLLECTIVE_RANKS_MAX];
    for (int i = 0; i < r->n_ranks; i++) {
        struct rank *k = &r->ranks[i];
        colls[i] = &k->coll;
        shard_exchange_init(&k->exchange, &r->map, &k->coll, k->theta, k->grad);
    }
    if (r->config.eval_only) return STATUS_OK;
    assert(r->sharded || !r->map.deal);
    if (!r->sharded) return inner_opt_create(&r->opt, &r->config.opt, r->layout, devices, r->n_ranks, err);
    return inner_opt_create_sharded(&r->opt, &r->config.opt, r->layout, &r->map, colls, err);
}

/* Plans the pinned buffers for transfers of parameters. */
static void plan_stage(const struct rank *k)
{
    size_t bytes = replica_stage_bytes(k->replica->layout->n_params);
    if (device_stage_plan(k->dev, bytes, k->replica->config.pool) != STATUS_OK)
        log_warn("%s: no pinned memory; transfers are slower", k->dev->name);
}

/* Shards theta over ranks that have their own memory. */
static enum status make_map(struct replica *r)
{
    const struct replica_config *c = &r->config;
    r->sharded = r->n_ranks > 1 && (!r->ranks[0].dev->host_memory || c->sharded);
    r->map = shard_map_make(r->layout->n_params, r->sharded ? c->ranks : 1, c->bucket);
    if (!r->sharded) r->map.padded = r->layout->n_params;
    if (!r->sharded || c->eval_only || c->opt.kind != OPTIMIZER_MUON) return STATUS_OK;
    assert(r->map.padded % c->ranks == 0);
    TRY(shard_deal_make(&r->deal, &r->map, r->layout, c->family->hidden_blocks));
    r->map.deal = &r->deal;
    return STATUS_OK;
}

/* Opens the group of ranks and starts their threads. NCCL allocates GPU buffers of unknown size, most of them at the
 * first collectives. Warm them up before the plan, so that the plan sees the memory that is left. */
static enum status join(struct replica *r, struct device *const *devices, struct err *err)
{
    struct collective colls[COLLECTIVE_RANKS_MAX];
    uint64_t before, after, all;
    devices[0]->ops->memory(devices[0], &before, &all);
    TRY(collective_open(devices, r->n_ranks, r->config.end, colls, err));
    r->group_open = true;
    for (int i = 0; i < r->n_ranks; i++) r->ranks[i].coll = colls[i];
    TRY(ranks_start(r, err));
    if (!r->sharded || devices[0]->host_memory || r->config.eval_only) return STATUS_OK;
    TRY(ranks_run(r, ORDER_WARMUP, err));
    devices[0]->ops->memory(devices[0], &after, &all);
    log_info("NCCL initialized: %.0f MiB on %s", before > after ? (double)(before - after) / (1 << 20) : 0.0,
             devices[0]->name);
    return STATUS_OK;
}

static enum status fill(struct replica *r, const struct tokens *train, struct err *err)
{
    const struct replica_config *c = &r->config;
    struct device *devices[COLLECTIVE_RANKS_MAX];
    r->eval_counters = mem_alloc(c->batch_size, sizeof *r->eval_counters);
    if (!r->eval_counters) return err_set(err, STATUS_NOMEM, "no memory for the batch");
    if (!c->eval_only) TRY(batch_source_init(&r->train, train, r->seq, c->model.vocab_size, c->seed, false, err));
    for (int i = 0; i < r->n_ranks; i++) {
        TRY(rank_open(r, i, err));
        devices[i] = r->ranks[i].dev;
    }
    (void)device_names(devices, r->n_ranks, r->names);
    if (make_map(r) != STATUS_OK) return err_set(err, STATUS_NOMEM, "no memory for the inner optimizer");
    TRY(join(r, devices, err));
    TRY(replica_memory_plan(&r->memory, c, r->layout, devices, err));
    if (!devices[0]->host_memory) TRY(replica_host_plan(&r->host, c, r->layout, devices, &r->memory, err));
    for (int i = 0; i < r->n_ranks; i++) TRY(rank_init(r, i, err));
    if (make_params(r) != STATUS_OK)
        return err_set(err, STATUS_NOMEM, "no memory for %llu parameters and gradients%s",
                       (unsigned long long)r->layout->n_params, r->n_ranks > 1 ? " on every rank" : "");
    for (int i = 0; i < r->n_ranks; i++) plan_stage(&r->ranks[i]);
    return make_optimizer(r, devices, err);
}

/* A failed allocation may be the first sign of a failed device; report the cause from the device. */
static enum status find_cause(struct replica *r, enum status status, struct err *err)
{
    struct err why = {0};
    for (int i = 0; i < r->n_ranks && status == STATUS_NOMEM; i++) {
        struct device *dev = r->ranks[i].dev;
        if (!dev || dev->ops->sync(dev, &why) == STATUS_OK) continue;
        status = err_set(err, why.code, "%s", why.msg);
    }
    return status;
}

enum status replica_create(struct replica **out, const struct replica_config *config, const struct layout *layout,
                           const struct tokens *train, struct err *err)
{
    TRY(check_config(config, err));
    struct replica *r = mem_alloc(1, sizeof *r);
    if (!r) return err_set(err, STATUS_NOMEM, "no memory for the model");
    r->config = *config;
    r->config.opt.hidden_blocks = config->family->hidden_blocks;
    r->layout = layout;
    r->seq = config->model.block_size;
    r->n_ranks = (int)config->ranks;
    r->rows = config->batch_size / config->ranks;
    assert(r->rows > 0 && r->rows * config->ranks == config->batch_size);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->ordered, NULL);
    pthread_cond_init(&r->reported, NULL);
    enum status status = find_cause(r, fill(r, train, err), err);
    if (status == STATUS_OK)
        *out = r;
    else
        replica_destroy(r);
    return status;
}

/* shared: theta is owned by rank 0. */
static void rank_finish(struct rank *k, bool shared)
{
    if (k->dev) {
        const struct device_ops *ops = k->dev->ops;
        decoder_destroy(k->model);
        ops->release(k->dev, k->grad);
        if (!shared) ops->release(k->dev, k->theta);
        ops->release(k->dev, k->tokens);
        ops->release(k->dev, k->targets);
        ops->release(k->dev, k->loss);
        step_io_close(&k->io);
        device_close(k->dev);
    }
    mem_free(k->row_loss);
    mem_free(k->scratch);
}

void replica_destroy(struct replica *r)
{
    if (!r) return;
    ranks_stop(r);
    inner_opt_destroy(r->opt);
    shard_deal_finish(&r->deal);
    if (r->group_open) collective_close(&r->ranks[0].coll);
    mem_free(r->host_values);
    for (int i = r->n_ranks - 1; i >= 0; i--) rank_finish(&r->ranks[i], i > 0 && !r->sharded);
    pthread_cond_destroy(&r->reported);
    pthread_cond_destroy(&r->ordered);
    pthread_mutex_destroy(&r->lock);
    mem_free(r->eval_counters);
    mem_free(r);
}
