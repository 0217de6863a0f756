#include "worker/replica.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "gpu/collective.h"
#include "worker/batch.h"
#include "worker/replica_memory.h"
#include "worker/shard_exchange.h"
#include "worker/step_io.h"

/* The caller's thread is rank 0; the others wait for an order, do the same work on their share and report. */
enum order { ORDER_NONE, ORDER_STEP, ORDER_GRADIENT, ORDER_EVAL, ORDER_REACH, ORDER_SYNC, ORDER_QUIT };

struct rank {
    struct replica *replica;
    int index;
    struct device *dev;
    struct collective coll;
    struct model *model;
    float *theta;                      /* [n_params], device: its own, or that of rank 0 (CPU devices share memory) */
    float *eval_theta;                 /* what the caller wants evaluated; NULL: the device reads host memory */
    float *grad;                       /* [n_params], device */
    struct shard_exchange exchange;    /* where each rank has memory of its own */
    int32_t *tokens, *targets;         /* [rows*seq], device */
    float *loss;                       /* [rows*seq], device */
    struct step_io io;
    double *row_loss;                  /* [rows] nats of each sequence of a micro-step */
    uint32_t *scratch;                 /* [seq+1] */
    enum status status;                /* of the last order */
    struct err err;
    pthread_t thread;
    bool started;
};

/* A step that was submitted. */
struct flight {
    size_t n; /* sequences; 0: none */
    int slot;
    uint64_t submitted_us;
};

struct replica {
    struct replica_config config;
    const struct layout *layout;
    struct batch_source train;
    uint32_t seq, rows; /* rows: sequences of one rank in one micro-step */
    bool apart;         /* every rank has a theta of its own, and a shard of the optimizer (worker/shard.h) */
    struct shard_map map;
    struct inner_opt *opt;
    uint64_t *eval_counters; /* [batch_size] */
    /* Where the device's memory is not the host's, else NULL: */
    float *host_values; /* [n_params] parameters or gradient, as the caller asked for last */
    struct flight flight; /* the one that is not read yet */
    uint64_t done_us;     /* when the last step was seen to be over */
    struct memory_plan memory;
    char names[DEVICE_NAME_BYTES]; /* of the devices */
    int n_ranks;
    struct rank ranks[COLLECTIVE_RANKS_MAX];
    bool group_open;

    /* The order, written by the caller before it raises `turn`. */
    pthread_mutex_t lock;
    pthread_cond_t ordered, reported;
    uint64_t turn;
    int pending;
    enum order order;
    const struct batch_source *source;
    const float *order_theta; /* NULL: the live parameters; else those in eval_theta, or here */
    const uint64_t *counters;
    size_t n_counters;
    int slot; /* of every rank's io */
    double lr;
};

/* --- one rank's work ---------------------------------------------------------------------------------------------- */

/* Rows of micro-step `micro` that belong to this rank: counters are dealt micro-step by micro-step, rank by rank. */
static enum status micro_step(struct rank *k, uint32_t micro, float dscale, bool train)
{
    struct replica *r = k->replica;
    const float *theta = !r->order_theta ? k->theta : k->eval_theta ? k->eval_theta : r->order_theta;
    struct model_hooks hooks = shard_exchange_hooks(&k->exchange, train && micro + 1 == r->config.grad_accum);
    const struct device_ops *ops = k->dev->ops;
    const struct step_slot *slot = &k->io.slots[r->slot];
    size_t first = (size_t)micro * r->config.batch_size + (size_t)k->index * r->rows, count = (size_t)r->rows * r->seq;
    size_t have = first < r->n_counters ? r->n_counters - first : 0, at = micro * count;
    if (have > r->rows) have = r->rows;
    TRY(batch_fill(r->source, r->counters + (have ? first : 0), have, r->rows, slot->tokens + at, slot->targets + at,
                   k->scratch, &k->err));
    ops->upload(k->dev, k->tokens, slot->tokens + at, count * sizeof *k->tokens);
    ops->upload(k->dev, k->targets, slot->targets + at, count * sizeof *k->targets);
    r->config.family->run(k->model, theta, k->tokens, k->targets, dscale, k->loss, train ? k->grad : NULL, micro > 0,
                          r->apart && theta == k->theta ? &hooks : NULL);
    ops->download(k->dev, slot->loss + at, k->loss, count * sizeof *k->loss);
    return STATUS_OK;
}

static enum status gradient_of_order(struct rank *k)
{
    struct replica *r = k->replica;
    /* The one division of the gradient rule: by the tokens of the whole step, all ranks and micro-steps. */
    float dscale = (float)(1.0 / ((double)r->n_counters * r->seq));
    shard_exchange_begin(&k->exchange, r->order == ORDER_GRADIENT);
    for (uint32_t micro = 0; micro < r->config.grad_accum; micro++) TRY(micro_step(k, micro, dscale, true));
    if (r->apart) return shard_exchange_finish(&k->exchange, &k->err);
    if (r->n_ranks == 1) return STATUS_OK; /* and nobody to wait for */
    return k->coll.ops->all_reduce_sum(&k->coll, k->grad, r->layout->n_params);
}

static enum status step_of_order(struct rank *k)
{
    struct replica *r = k->replica;
    if (r->apart)
        TRY(inner_opt_apply_apart(r->opt, k->index, k->theta, k->grad, r->lr));
    else
        inner_opt_apply(r->opt, k->index, k->theta, k->grad, r->lr);
    if (k->index == 0) inner_opt_norm(r->opt, k->io.slots[r->slot].norm);
    return r->apart ? shard_exchange_gather(&k->exchange, &k->err) : STATUS_OK;
}

static enum status obey(struct rank *k)
{
    struct replica *r = k->replica;
    switch (r->order) {
    case ORDER_REACH: return k->dev->ops->reached(k->dev, r->slot, &k->err);
    case ORDER_SYNC:
        if (r->apart) shard_exchange_settle(&k->exchange);
        return k->dev->ops->sync(k->dev, &k->err);
    case ORDER_EVAL: TRY(micro_step(k, 0, 1, false)); break;
    case ORDER_GRADIENT: TRY(gradient_of_order(k)); break;
    case ORDER_STEP:
        TRY(gradient_of_order(k));
        TRY(step_of_order(k));
        break;
    default: return STATUS_OK;
    }
    k->dev->ops->mark(k->dev, r->slot);
    /* What is over already may have failed: here the others are told. */
    return k->dev->host_memory ? k->dev->ops->sync(k->dev, &k->err) : STATUS_OK;
}

static void work(struct rank *k)
{
    k->err = (struct err){0};
    k->status = obey(k);
    if (k->status != STATUS_OK) k->coll.ops->abort(&k->coll); /* the others must not wait for this rank's share */
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
        if (--r->pending == 0) pthread_cond_signal(&r->reported);
        pthread_mutex_unlock(&r->lock);
        if (quit) return NULL;
    }
}

/* --- orders ------------------------------------------------------------------------------------------------------- */

static void give_order(struct replica *r, enum order order)
{
    pthread_mutex_lock(&r->lock);
    r->order = order;
    r->pending = 0;
    for (int i = 1; i < r->n_ranks; i++) r->pending += r->ranks[i].started;
    r->turn++;
    pthread_cond_broadcast(&r->ordered);
    pthread_mutex_unlock(&r->lock);
    if (order != ORDER_QUIT) work(&r->ranks[0]);
    pthread_mutex_lock(&r->lock);
    while (r->pending) pthread_cond_wait(&r->reported, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

/* The failure of the rank that failed first hand; CLOSED only says that another one did. */
static enum status order_status(const struct replica *r, struct err *err)
{
    enum status closed = STATUS_OK;
    for (int i = 0; i < r->n_ranks; i++) {
        const struct rank *k = &r->ranks[i];
        if (k->status == STATUS_CLOSED) closed = STATUS_CLOSED;
        if (k->status == STATUS_OK || k->status == STATUS_CLOSED) continue;
        if (!k->err.msg[0]) return err_set(err, k->status, "rank %d: %s", i, status_text(k->status));
        return err_set(err, k->status, "%s%s", k->err.msg,
                       r->apart ? "; the other ranks of this worker were stopped" : "");
    }
    if (closed == STATUS_OK) return STATUS_OK;
    return err_set(err, closed, "the ranks of this worker gave up after an earlier failure: restart the worker");
}

static enum status order_and_wait(struct replica *r, enum order order, const struct batch_source *source,
                                  const float *theta, const uint64_t *counters, size_t n, struct err *err)
{
    r->source = source;
    r->order_theta = theta;
    r->counters = counters;
    r->n_counters = n;
    r->slot = r->flight.n ? r->ranks[0].io.n_slots - 1 - r->flight.slot : 0; /* not the one that is in flight */
    give_order(r, order);
    return order_status(r, err);
}

/* Nothing is under way on any device, and the caller may use them all. Each rank waits for its own: one that fails must
 * be seen by its thread while the others wait for it. */
static enum status quiet(struct replica *r, struct err *err)
{
    give_order(r, ORDER_SYNC);
    return order_status(r, err);
}

/* Wait until all ranks did what the slot's order said. */
static enum status slot_reached(struct replica *r, int slot, struct err *err)
{
    if (r->apart) {
        r->slot = slot;
        give_order(r, ORDER_REACH);
        return order_status(r, err);
    }
    for (int i = 0; i < r->n_ranks; i++) {
        struct device *dev = r->ranks[i].dev;
        TRY(dev->ops->reached(dev, slot, err));
    }
    return STATUS_OK;
}

/* Sequence by sequence in the order of the counters, so the sum does not depend on the number of ranks. */
static double loss_of_slot(const struct replica *r, int slot, uint32_t micro_steps)
{
    double sum = 0;
    for (uint32_t micro = 0; micro < micro_steps; micro++)
        for (int i = 0; i < r->n_ranks; i++) {
            const struct rank *k = &r->ranks[i];
            step_io_row_losses(&k->io, slot, micro, r->rows, k->row_loss);
            for (uint32_t row = 0; row < r->rows; row++) sum += k->row_loss[row];
        }
    return sum;
}

static enum status check_counters(const struct replica *r, size_t n, struct err *err)
{
    if (r->config.eval_only) return err_set(err, STATUS_STATE, "a replica made for evaluation does not train");
    if (!n || n > replica_step_samples(r))
        return err_set(err, STATUS_INVALID, "a step takes 1 to %u sequences, not %zu", replica_step_samples(r), n);
    return STATUS_OK;
}

/* Values of device memory, for the host: in place, or copied to `mirror`. */
static enum status in_host_memory(struct replica *r, const float *values, float *mirror, const float **out,
                                  struct err *err)
{
    struct device *dev = r->ranks[0].dev;
    *out = mirror ? mirror : values;
    if (!mirror) return STATUS_OK;
    dev->ops->download(dev, mirror, values, r->layout->n_params * sizeof *mirror);
    return dev->ops->sync(dev, err);
}

/* Wait for a flight and read what it left. */
static enum status land(struct replica *r, const struct flight *flight, struct step_result *result, struct err *err)
{
    uint64_t begin = r->done_us > flight->submitted_us ? r->done_us : flight->submitted_us;
    TRY(slot_reached(r, flight->slot, err));
    r->done_us = clock_monotonic_us();
    *result = (struct step_result){.loss_sum = loss_of_slot(r, flight->slot, r->config.grad_accum),
                                   .tokens = (uint64_t)flight->n * r->seq,
                                   .grad_norm = *r->ranks[0].io.slots[flight->slot].norm,
                                   .compute_s = (double)(r->done_us - begin) * 1e-6};
    result->skipped = !inner_opt_finish(r->opt, *r->ranks[0].io.slots[flight->slot].norm);
    return STATUS_OK;
}

static enum status land_last(struct replica *r, struct step_result *result, struct err *err)
{
    struct flight flight = r->flight;
    *result = (struct step_result){0};
    if (!flight.n) return STATUS_OK;
    r->flight.n = 0;
    TRY(land(r, &flight, result, err));
    result->late = true;
    return STATUS_OK;
}

enum status replica_flush(struct replica *r, struct step_result *result, struct err *err)
{
    TRY(land_last(r, result, err));
    return r->apart ? quiet(r, err) : STATUS_OK;
}

enum status replica_train_step(struct replica *r, const uint64_t *counters, size_t n, double lr,
                               struct step_result *result, struct err *err)
{
    struct flight flight = {.n = n, .submitted_us = clock_monotonic_us()};
    TRY(check_counters(r, n, err));
    r->lr = lr;
    TRY(order_and_wait(r, ORDER_STEP, &r->train, NULL, counters, n, err));
    flight.slot = r->slot;
    if (r->ranks[0].dev->host_memory) return land(r, &flight, result, err);
    TRY(land_last(r, result, err));
    r->flight = flight;
    return STATUS_OK;
}

enum status replica_gradient(struct replica *r, const uint64_t *counters, size_t n, const float **grad,
                             struct step_result *result, struct err *err)
{
    uint64_t start = clock_monotonic_us();
    TRY(check_counters(r, n, err));
    TRY(order_and_wait(r, ORDER_GRADIENT, &r->train, NULL, counters, n, err));
    if (r->apart) TRY(quiet(r, err));
    struct rank *k = &r->ranks[0];
    float *norm = k->io.slots[r->slot].norm;
    k->dev->ops->sumsq(k->dev, r->layout->n_params, k->grad, k->loss);
    k->dev->ops->download(k->dev, norm, k->loss, sizeof *norm);
    TRY(slot_reached(r, r->slot, err));
    TRY(k->dev->ops->sync(k->dev, err));
    *result = (struct step_result){.loss_sum = loss_of_slot(r, r->slot, r->config.grad_accum),
                                   .tokens = (uint64_t)n * r->seq, .grad_norm = sqrt(*norm)};
    result->compute_s = (double)(clock_monotonic_us() - start) * 1e-6;
    if (!isfinite(result->grad_norm)) return err_set(err, STATUS_NONFINITE, "the gradient is not finite");
    return in_host_memory(r, k->grad, r->host_values, grad, err);
}

enum status replica_eval(struct replica *r, const float *theta, const struct tokens *val, uint64_t first,
                         uint64_t count, double *loss_sum, uint64_t *tokens, struct err *err)
{
    struct batch_source source;
    TRY(batch_source_init(&source, val, r->seq, r->config.model.vocab_size, 0, true, err));
    if (first > source.n_samples) first = source.n_samples;
    if (count > source.n_samples - first) count = source.n_samples - first;
    double sum = 0;
    if (theta && r->ranks[0].eval_theta) {
        if (r->apart) TRY(quiet(r, err));
        for (int i = 0; i < r->n_ranks; i++) {
            struct device *dev = r->ranks[i].dev;
            dev->ops->upload(dev, r->ranks[i].eval_theta, theta, r->layout->n_params * sizeof *theta);
            TRY(dev->ops->sync(dev, err));
        }
    }
    for (uint64_t done = 0; done < count;) {
        size_t n = count - done < r->config.batch_size ? (size_t)(count - done) : r->config.batch_size;
        for (size_t i = 0; i < n; i++) r->eval_counters[i] = first + done + i;
        TRY(order_and_wait(r, ORDER_EVAL, &source, theta, r->eval_counters, n, err));
        TRY(slot_reached(r, r->slot, err));
        sum += loss_of_slot(r, r->slot, 1);
        done += n;
    }
    *loss_sum = sum;
    *tokens = count * r->seq;
    return STATUS_OK;
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

static enum status check_config(const struct replica_config *c, struct err *err)
{
    if (!c->ranks || c->ranks > COLLECTIVE_RANKS_MAX)
        return err_set(err, STATUS_INVALID, "train.ranks %u: 1 to %d", c->ranks, COLLECTIVE_RANKS_MAX);
    if (!c->batch_size || c->batch_size % c->ranks) {
        uint32_t below = c->batch_size / c->ranks * c->ranks;
        return err_set(err, STATUS_INVALID, "train.batch_size %u is not a multiple of train.ranks %u: take %u",
                       c->batch_size, c->ranks, below ? below : c->ranks);
    }
    if (!c->grad_accum || !c->threads)
        return err_set(err, STATUS_INVALID, "train.grad_accum and train.threads must be at least 1");
    return STATUS_OK;
}

static enum status rank_init(struct replica *r, int index, struct err *err)
{
    struct rank *k = &r->ranks[index];
    const struct replica_config *c = &r->config;
    uint32_t threads = c->threads / c->ranks + ((uint32_t)index < c->threads % c->ranks);
    char device[DEVICE_NAME_BYTES];
    size_t count = (size_t)r->rows * r->seq;
    k->replica = r;
    k->index = index;
    TRY(device_open(device_of_rank(c->device, index, r->n_ranks, device), threads ? (int)threads : 1, &k->dev, err));
    if (c->bf16 && !k->dev->host_memory) TRY(k->dev->ops->use_bf16(k->dev, err));
    if (c->bf16 && k->dev->host_memory && k->dev->ops->use_bf16(k->dev, NULL) != STATUS_OK && index == 0)
        log_warn("train.precision: bf16 is computed in fp32 on %s", k->dev->name);
    if (index == 0) TRY(replica_memory_plan(&r->memory, c, r->layout, k->dev, err)); /* all ranks are alike */
    unsigned uses = c->eval_only ? MODEL_LOSS : model_uses(MODEL_LOSS | MODEL_TRAIN, r->memory.level);
    TRY(c->family->create(&c->model, k->dev, r->rows, r->seq, uses, &k->model, err));
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

/* Theta of each rank, and what the caller reads and writes where it cannot see the device's memory. */
static enum status make_params(struct replica *r)
{
    size_t n = r->layout->n_params;
    for (int i = 0; i < r->n_ranks; i++) {
        struct rank *k = &r->ranks[i];
        const struct device_ops *ops = k->dev->ops;
        bool own = i == 0 || r->apart;
        k->theta = own ? ops->alloc(k->dev, r->map.padded * sizeof *k->theta) : r->ranks[0].theta;
        if (!k->dev->host_memory) k->eval_theta = ops->alloc(k->dev, n * sizeof *k->eval_theta);
        if (!r->config.eval_only) k->grad = ops->alloc(k->dev, r->map.padded * sizeof *k->grad);
        if (!k->theta || (!k->dev->host_memory && !k->eval_theta) || (!r->config.eval_only && !k->grad))
            return STATUS_NOMEM;
    }
    if (!r->ranks[0].dev->host_memory) r->host_values = mem_alloc(n, sizeof *r->host_values);
    return r->ranks[0].dev->host_memory || r->host_values ? STATUS_OK : STATUS_NOMEM;
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
    if (!r->apart) return inner_opt_create(&r->opt, &r->config.opt, r->layout, devices, r->n_ranks, err);
    return inner_opt_create_apart(&r->opt, &r->config.opt, r->layout, &r->map, colls, err);
}

static enum status fill(struct replica *r, const struct tokens *train, struct err *err)
{
    const struct replica_config *c = &r->config;
    struct device *devices[COLLECTIVE_RANKS_MAX];
    struct collective colls[COLLECTIVE_RANKS_MAX];
    r->eval_counters = mem_alloc(c->batch_size, sizeof *r->eval_counters);
    if (!r->eval_counters) return err_set(err, STATUS_NOMEM, "no memory for the batch");
    if (!c->eval_only) TRY(batch_source_init(&r->train, train, r->seq, c->model.vocab_size, c->seed, false, err));
    for (int i = 0; i < r->n_ranks; i++) {
        TRY(rank_init(r, i, err));
        devices[i] = r->ranks[i].dev;
    }
    (void)device_names(devices, r->n_ranks, r->names);
    r->apart = r->n_ranks > 1 && (!devices[0]->host_memory || c->apart);
    r->map = shard_map_make(r->layout->n_params, r->apart ? c->ranks : 1, c->bucket);
    if (!r->apart) r->map.padded = r->layout->n_params;
    if (make_params(r) != STATUS_OK)
        return err_set(err, STATUS_NOMEM, "no memory for %llu parameters and gradients%s",
                       (unsigned long long)r->layout->n_params, r->n_ranks > 1 ? " on every rank" : "");
    TRY(collective_open(devices, r->n_ranks, colls, err));
    r->group_open = true;
    for (int i = 0; i < r->n_ranks; i++) r->ranks[i].coll = colls[i];
    TRY(make_optimizer(r, devices, err));
    for (int i = 1; i < r->n_ranks; i++) {
        if (pthread_create(&r->ranks[i].thread, NULL, rank_main, &r->ranks[i]) != 0)
            return err_set(err, STATUS_LIMIT, "cannot start the thread of rank %d", i);
        r->ranks[i].started = true;
    }
    return STATUS_OK;
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
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->ordered, NULL);
    pthread_cond_init(&r->reported, NULL);
    enum status status = fill(r, train, err);
    if (status == STATUS_OK)
        *out = r;
    else
        replica_destroy(r);
    return status;
}

/* shared: its theta is another's. */
static void rank_finish(struct rank *k, const struct model_family *family, bool shared)
{
    if (k->dev) {
        const struct device_ops *ops = k->dev->ops;
        family->destroy(k->model);
        ops->release(k->dev, k->grad);
        ops->release(k->dev, k->eval_theta);
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
    if (r->apart && r->group_open) (void)quiet(r, NULL); /* what is under way needs all ranks */
    give_order(r, ORDER_QUIT);
    for (int i = 1; i < r->n_ranks; i++)
        if (r->ranks[i].started) pthread_join(r->ranks[i].thread, NULL);
    inner_opt_destroy(r->opt);
    if (r->group_open) collective_close(&r->ranks[0].coll);
    mem_free(r->host_values);
    for (int i = r->n_ranks - 1; i >= 0; i--) rank_finish(&r->ranks[i], r->config.family, i > 0 && !r->apart);
    pthread_cond_destroy(&r->reported);
    pthread_cond_destroy(&r->ordered);
    pthread_mutex_destroy(&r->lock);
    mem_free(r->eval_counters);
    mem_free(r);
}

float *replica_params(struct replica *r)
{
    return r->ranks[0].theta;
}

enum status replica_set_params(struct replica *r, const float *values, struct err *err)
{
    if (r->apart) TRY(quiet(r, err));
    for (int i = 0; i == 0 || (r->apart && i < r->n_ranks); i++) {
        struct rank *k = &r->ranks[i];
        k->dev->ops->upload(k->dev, k->theta, values, r->layout->n_params * sizeof *values);
        TRY(k->dev->ops->sync(k->dev, err));
    }
    return STATUS_OK;
}

enum status replica_get_params(struct replica *r, const float **values, struct err *err)
{
    if (r->apart) TRY(quiet(r, err));
    return in_host_memory(r, r->ranks[0].theta, r->host_values, values, err);
}

struct device *replica_device(struct replica *r)
{
    return r->ranks[0].dev;
}

uint64_t replica_n_params(const struct replica *r)
{
    return r->layout->n_params;
}

uint64_t replica_epoch_samples(const struct replica *r)
{
    return r->train.n_samples;
}

uint32_t replica_step_samples(const struct replica *r)
{
    return r->config.batch_size * r->config.grad_accum;
}

uint32_t replica_seq(const struct replica *r)
{
    return r->seq;
}

const char *replica_device_name(const struct replica *r)
{
    return r->names;
}

const struct memory_plan *replica_memory(const struct replica *r)
{
    return &r->memory;
}

struct inner_opt *replica_optimizer(struct replica *r)
{
    return r->opt;
}
