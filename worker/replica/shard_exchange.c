#include "worker/replica/shard_exchange.h"

#include <assert.h>
#include <string.h>

#include "worker/inner/shard_deal.h"

/* Ticket b: gradients of bucket b. Ticket THETA_TICKETS + b: parameters of bucket b. */
enum { THETA_TICKETS = SHARD_BUCKETS_MAX };
_Static_assert(2 * SHARD_BUCKETS_MAX <= COLLECTIVE_TICKETS, "two tickets per bucket");

void shard_exchange_init(struct shard_exchange *x, const struct shard_map *map, struct collective *coll, float *theta,
                         float *grad)
{
    assert(map->n_buckets <= SHARD_BUCKETS_MAX);
    *x = (struct shard_exchange){.map = map, .coll = coll, .theta = theta, .grad = grad};
}

void shard_exchange_begin(struct shard_exchange *x, bool whole)
{
    x->whole = whole;
    x->n_started = 0;
    x->status = STATUS_OK;
    memset(x->final, 0, sizeof x->final);
}

static void start_gradients(struct shard_exchange *x, uint32_t bucket)
{
    float *grad = x->grad + shard_bucket_offset(x->map, bucket);
    uint64_t floats = shard_bucket_floats(x->map, bucket);
    const struct collective_ops *ops = x->coll->ops;
    if (x->status != STATUS_OK) return;
    const struct shard_deal *deal = x->map->deal;
    if (x->whole)
        x->status = ops->start(x->coll, COLLECTIVE_ALL_REDUCE, grad, floats, bucket);
    else if (deal)
        x->status = ops->start_parts(x->coll, COLLECTIVE_REDUCE, x->grad, deal->parts + deal->first[bucket],
                                     deal->first[bucket + 1] - deal->first[bucket], bucket);
    else
        x->status = ops->start(x->coll, COLLECTIVE_REDUCE_SCATTER, grad, floats / x->map->ranks, bucket);
    x->n_started++;
    assert(x->n_started <= x->map->n_buckets); /* each bucket starts once */
}

/* Starts the reduction of a bucket when its last gradient is final. All ranks run the same model, so they start the
 * buckets in the same order. */
static void on_ready(void *ctx, uint64_t offset, uint64_t count)
{
    struct shard_exchange *x = ctx;
    const struct shard_map *map = x->map;
    assert(offset + count <= map->n_params);
    for (uint32_t b = (uint32_t)(offset / map->bucket); count && b < map->n_buckets; b++) {
        uint64_t end = shard_bucket_offset(map, b) + shard_bucket_params(map, b), part = end - offset;
        if (part > count) part = count;
        x->final[b] += part;
        assert(x->final[b] <= shard_bucket_params(map, b)); /* each gradient is reported once */
        if (x->final[b] == shard_bucket_params(map, b) && x->warm) start_gradients(x, b);
        offset += part;
        count -= part;
    }
    assert(!count);
}

static void on_needs(void *ctx, uint64_t offset, uint64_t count)
{
    struct shard_exchange *x = ctx;
    const struct shard_map *map = x->map;
    assert(offset + count <= map->n_params);
    for (uint32_t b = (uint32_t)(offset / map->bucket); b < map->n_buckets && b * map->bucket < offset + count; b++) {
        if (!x->gathering[b]) continue;
        collective_wait(x->coll, THETA_TICKETS + b);
        x->gathering[b] = false;
    }
}

struct model_hooks shard_exchange_hooks(struct shard_exchange *x, bool last)
{
    return (struct model_hooks){.needs = on_needs, .ready = last ? on_ready : NULL, .ctx = x};
}

/* The first exchange runs without overlap. A GPU that loads a kernel at its first launch may wait for all running work,
 * and that work would wait for a rank that is blocked in the same way. */
static enum status sync_unless_warm(struct shard_exchange *x, struct err *err)
{
    return x->warm ? STATUS_OK : x->coll->dev->ops->sync(x->coll->dev, err);
}

enum status shard_exchange_finish(struct shard_exchange *x, struct err *err)
{
    const struct shard_map *map = x->map;
    TRY(sync_unless_warm(x, err));
    for (uint32_t b = map->n_buckets; b-- > 0 && !x->warm;) start_gradients(x, b);
    TRY(x->status);
    if (x->n_started != map->n_buckets)
        return err_set(err, STATUS_STATE, "%u of %u gradient buckets are incomplete", map->n_buckets - x->n_started,
                       map->n_buckets);
    for (uint32_t b = 0; b < map->n_buckets; b++) collective_wait(x->coll, b);
    TRY(sync_unless_warm(x, err));
    x->warm = x->warm || x->whole; /* ddp gathers no parameters */
    return STATUS_OK;
}

static enum status start_parameters(struct shard_exchange *x, uint32_t bucket)
{
    const struct shard_deal *deal = x->map->deal;
    const struct collective_ops *ops = x->coll->ops;
    uint64_t share = shard_bucket_floats(x->map, bucket) / x->map->ranks;
    if (deal)
        return ops->start_parts(x->coll, COLLECTIVE_BROADCAST, x->theta, deal->parts + deal->first[bucket],
                                deal->first[bucket + 1] - deal->first[bucket], THETA_TICKETS + bucket);
    return ops->start(x->coll, COLLECTIVE_ALL_GATHER, x->theta + shard_bucket_offset(x->map, bucket), share,
                      THETA_TICKETS + bucket);
}

static enum status start_copy(struct shard_exchange *x, uint32_t bucket)
{
    const struct collective_part part = {.offset = shard_bucket_offset(x->map, bucket),
                                         .n = shard_bucket_params(x->map, bucket)};
    return x->coll->ops->start_parts(x->coll, COLLECTIVE_BROADCAST, x->theta, &part, 1, THETA_TICKETS + bucket);
}

static enum status gather(struct shard_exchange *x, enum status (*start)(struct shard_exchange *x, uint32_t bucket),
                          struct err *err)
{
    TRY(sync_unless_warm(x, err));
    for (uint32_t b = 0; b < x->map->n_buckets; b++) { /* in the order that forward reads them */
        assert(!x->gathering[b]);
        TRY(start(x, b));
        x->gathering[b] = true;
    }
    if (!x->warm) shard_exchange_wait(x);
    return sync_unless_warm(x, err);
}

enum status shard_exchange_gather(struct shard_exchange *x, struct err *err)
{
    TRY(gather(x, start_parameters, err));
    x->warm = true;
    return STATUS_OK;
}

enum status shard_exchange_warmup(const struct shard_map *map, struct collective *coll, float *buf, bool whole,
                                  struct err *err)
{
    enum { COPY = 1, SUMS, KINDS };
    struct shard_exchange x;
    struct device *dev = coll->dev;
    shard_exchange_init(&x, map, coll, buf, buf);
    shard_exchange_begin(&x, whole);
    TRY(dev->ops->sync(dev, err));
    start_gradients(&x, 0);
    TRY(x.status);
    collective_wait(coll, 0);
    for (int kind = 0; kind < KINDS && !whole; kind++) {
        TRY(dev->ops->sync(dev, err));
        TRY(kind == COPY   ? start_copy(&x, 0)
            : kind == SUMS ? coll->ops->start(coll, COLLECTIVE_ALL_GATHER, buf, 1, THETA_TICKETS)
                           : start_parameters(&x, 0));
        collective_wait(coll, THETA_TICKETS);
    }
    return dev->ops->sync(dev, err);
}

enum status shard_exchange_broadcast(struct shard_exchange *x, struct err *err)
{
    return gather(x, start_copy, err);
}

void shard_exchange_wait(struct shard_exchange *x)
{
    on_needs(x, 0, x->map->n_params);
}
