#include "worker/replica/replica_impl.h"

#include <assert.h>

#include "common/base/thread.h"
#include "worker/model/decoder.h"

/* --- one rank's work ---------------------------------------------------------------------------------------------- */

/* Submits this rank's rows of micro-step `micro`. Counters are assigned micro-step by micro-step, then rank by rank. */
static enum status micro_step(struct rank *k, uint32_t micro, float dscale, bool train)
{
    struct replica *r = k->replica;
    struct model_hooks hooks = shard_exchange_hooks(&k->exchange, train && micro + 1 == r->config.grad_accum);
    const struct device_ops *ops = k->dev->ops;
    const struct step_slot *slot = &k->io.slots[r->slot];
    size_t first = (size_t)micro * r->config.batch_size + (size_t)k->index * r->rows, count = (size_t)r->rows * r->seq;
    size_t have = first < r->n_counters ? r->n_counters - first : 0, at = micro * count;
    if (have > r->rows) have = r->rows;
    assert(micro < r->config.grad_accum && (!have || first + have <= r->n_counters));
    TRY(batch_fill(r->source, r->counters + (have ? first : 0), have, r->rows, slot->tokens + at, slot->targets + at,
                   k->scratch, &k->err));
    ops->upload(k->dev, k->tokens, slot->tokens + at, count * sizeof *k->tokens);
    ops->upload(k->dev, k->targets, slot->targets + at, count * sizeof *k->targets);
    decoder_run(k->model, k->theta, k->tokens, k->targets, dscale, k->loss, train ? k->grad : NULL, micro > 0,
                r->sharded ? &hooks : NULL);
    ops->download(k->dev, slot->loss + at, k->loss, count * sizeof *k->loss);
    return STATUS_OK;
}

static enum status gradient_of_order(struct rank *k)
{
    struct replica *r = k->replica;
    /* The only division of the gradient: by the tokens of the whole step, over all ranks and micro-steps. */
    assert(k->grad && r->n_counters > 0 && r->n_counters <= replica_step_samples(r));
    float dscale = (float)(1.0 / ((double)r->n_counters * r->seq));
    shard_exchange_begin(&k->exchange, r->order == ORDER_GRADIENT);
    for (uint32_t micro = 0; micro < r->config.grad_accum; micro++) TRY(micro_step(k, micro, dscale, true));
    if (r->sharded) return shard_exchange_finish(&k->exchange, &k->err);
    if (r->n_ranks == 1) return STATUS_OK; /* nothing to reduce */
    return collective_sum(&k->coll, k->grad, r->layout->n_params);
}

static enum status apply_of_order(struct rank *k)
{
    struct replica *r = k->replica;
    assert(r->opt && (r->order == ORDER_APPLY) == r->sharded); /* a sharded step has two orders */
    if (r->sharded)
        inner_opt_apply_sharded(r->opt, k->index, k->theta, k->grad, r->lr);
    else
        inner_opt_apply(r->opt, k->index, k->theta, k->grad, r->lr);
    if (k->index == 0) inner_opt_download_norm(r->opt, k->io.slots[r->slot].norm);
    return r->sharded ? shard_exchange_gather(&k->exchange, &k->err) : STATUS_OK;
}

static enum status warmup_collectives(struct rank *k)
{
    struct replica *r = k->replica;
    assert(r->sharded && !r->opt); /* before the optimizer exists */
    const struct device_ops *ops = k->dev->ops;
    float *buf = ops->alloc(k->dev, shard_bucket_floats(&r->map, 0) * sizeof *buf);
    if (!buf) return err_set(&k->err, STATUS_NOMEM, "%s: no memory for a bucket of gradients", k->dev->name);
    enum status status = shard_exchange_warmup(&r->map, &k->coll, buf, r->config.gradients, &k->err);
    ops->release(k->dev, buf);
    return status;
}

static enum status execute_order(struct rank *k)
{
    struct replica *r = k->replica;
    switch (r->order) {
    case ORDER_WAIT_SLOT: return device_reached(k->dev, r->slot, &k->err);
    case ORDER_SYNCHRONIZE:
        if (r->sharded && k->exchange.map) shard_exchange_wait(&k->exchange);
        return k->dev->ops->sync(k->dev, &k->err);
    case ORDER_WARMUP: return warmup_collectives(k);
    case ORDER_BROADCAST: assert(r->sharded); return shard_exchange_broadcast(&k->exchange, &k->err);
    case ORDER_EVAL: TRY(micro_step(k, 0, 1, false)); break;
    case ORDER_GRADIENT: TRY(gradient_of_order(k)); break;
    case ORDER_STEP:
        TRY(gradient_of_order(k));
        if (r->sharded) return inner_opt_measure_sharded(r->opt, k->index, k->grad); /* ORDER_APPLY follows */
        TRY(apply_of_order(k));
        break;
    case ORDER_APPLY: TRY(apply_of_order(k)); break;
    default: return STATUS_OK;
    }
    device_mark(k->dev, r->slot);
    /* A synchronous device may have failed already; report it now so that the other ranks stop. */
    return k->dev->host_memory ? k->dev->ops->sync(k->dev, &k->err) : STATUS_OK;
}

static void work(struct rank *k)
{
    const struct collective_ops *ops = k->coll.ops;
    k->err = (struct err){0};
    collective_at_work(&k->coll, true);
    k->status = execute_order(k);
    collective_at_work(&k->coll, false);
    if (k->status == STATUS_OK && ops->failure(&k->coll)) k->status = STATUS_CLOSED;
    if (k->status == STATUS_OK) return;
    if (!k->err.msg[0]) err_set(&k->err, k->status, "rank %d: %s", k->index, status_text(k->status));
    ops->abort(&k->coll, &k->err); /* the others must not wait for this rank's share */
}

static void *rank_main(void *arg)
{
    struct rank *k = arg;
    struct replica *r = k->replica;
    uint64_t seen = 0;
    for (;;) {
        pthread_mutex_lock(&r->lock);
        while (r->turn == seen) pthread_cond_wait(&r->ordered, &r->lock);
        seen = r->turn;
        bool quit = r->order == ORDER_QUIT;
        pthread_mutex_unlock(&r->lock);
        if (!quit) work(k);
        pthread_mutex_lock(&r->lock);
        assert(r->pending > 0);
        if (--r->pending == 0) pthread_cond_signal(&r->reported);
        pthread_mutex_unlock(&r->lock);
        if (quit) return NULL;
    }
}

/* --- orders ------------------------------------------------------------------------------------------------------- */

static void give_order(struct replica *r, enum order order)
{
    pthread_mutex_lock(&r->lock);
    assert(r->pending == 0); /* all ranks have finished the previous order */
    r->order = order;
    for (int i = 1; i < r->n_ranks; i++) r->pending += r->ranks[i].started;
    r->turn++;
    pthread_cond_broadcast(&r->ordered);
    pthread_mutex_unlock(&r->lock);
    if (order != ORDER_QUIT) work(&r->ranks[0]);
    pthread_mutex_lock(&r->lock);
    while (r->pending) pthread_cond_wait(&r->reported, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

/* Returns the first failure; a failing GPU can make others fail after it. */
static enum status order_status(struct replica *r, struct err *err)
{
    struct collective *coll = &r->ranks[0].coll;
    bool failed = false;
    for (int i = 0; i < r->n_ranks; i++) failed = failed || r->ranks[i].status != STATUS_OK;
    if (!failed) return STATUS_OK;
    const struct err *why = coll->ops->failure(coll);
    assert(why && why->code != STATUS_OK); /* the failed rank aborted the collective */
    return err_set(err, why->code, "%s%s", why->msg, r->sharded ? "; the other ranks of this worker were stopped" : "");
}

enum status ranks_run(struct replica *r, enum order order, struct err *err)
{
    give_order(r, order);
    return order_status(r, err);
}

enum status ranks_order(struct replica *r, enum order order, const struct batch_source *source,
                        const uint64_t *counters, size_t n, struct err *err)
{
    r->source = source;
    r->counters = counters;
    r->n_counters = n;
    r->slot = r->flight.n ? r->ranks[0].io.n_slots - 1 - r->flight.slot : 0; /* the slot that is not in flight */
    assert(r->slot >= 0 && r->slot < r->ranks[0].io.n_slots);
    return ranks_run(r, order, err);
}

enum status ranks_wait_slot(struct replica *r, int slot, struct err *err)
{
    assert(slot >= 0 && slot < r->ranks[0].io.n_slots);
    if (r->sharded) {
        r->slot = slot;
        return ranks_run(r, ORDER_WAIT_SLOT, err);
    }
    for (int i = 0; i < r->n_ranks; i++) {
        struct device *dev = r->ranks[i].dev;
        TRY(device_reached(dev, slot, err));
    }
    return STATUS_OK;
}

enum status ranks_start(struct replica *r, struct err *err)
{
    for (int i = 1; i < r->n_ranks; i++) {
        if (thread_start(&r->ranks[i].thread, rank_main, &r->ranks[i]) != 0)
            return err_set(err, STATUS_LIMIT, "cannot start the thread of rank %d", i);
        r->ranks[i].started = true;
    }
    return STATUS_OK;
}

void ranks_stop(struct replica *r)
{
    /* Submitted collectives need all ranks and the watchdog, so finish them before the threads end. */
    if (r->group_open && (r->sharded || !r->ranks[0].dev->host_memory)) give_order(r, ORDER_SYNCHRONIZE);
    give_order(r, ORDER_QUIT);
    for (int i = 1; i < r->n_ranks; i++)
        if (r->ranks[i].started) pthread_join(r->ranks[i].thread, NULL);
}
