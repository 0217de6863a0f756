/* What one rank of a worker sends to and takes from the others (worker/inner/shard.h): gradients while backward still
 * runs, parameters while the next forward already does. One per rank, used by its thread. */
#ifndef WORKER_SHARD_EXCHANGE_H
#define WORKER_SHARD_EXCHANGE_H

#include <stdbool.h>

#include "common/base/status.h"
#include "gpu/collective.h"
#include "worker/inner/shard.h"
#include "worker/model/model.h"

struct shard_exchange {
    const struct shard_map *map;
    struct collective *coll;
    float *theta, *grad; /* [map->padded], device memory of the rank */
    bool whole;          /* every rank wants the whole sum of this gradient, not its shard of it */
    bool warm;           /* one gradient and one theta went around: from then on beside the computing */
    enum status status;  /* of the first collective that was refused */
    uint32_t n_started;
    uint64_t final[SHARD_BUCKETS_MAX]; /* gradients of each bucket that are said to be final */
    bool gathering[SHARD_BUCKETS_MAX]; /* parameters of the bucket are on their way */
};

/* theta and grad are borrowed, and so are map and coll. */
void shard_exchange_init(struct shard_exchange *x, const struct shard_map *map, struct collective *coll, float *theta,
                         float *grad);

/* Before the micro-step that leaves the gradient final; its hooks. Others take `shard_exchange_needs` alone. */
void shard_exchange_begin(struct shard_exchange *x, bool whole);
struct model_hooks shard_exchange_hooks(struct shard_exchange *x, bool last);
/* After it: the device goes on when the sum is there: of this rank's shares, or whole. CLOSED, or what the device
 * says. */
enum status shard_exchange_finish(struct shard_exchange *x, struct err *err) MUST_CHECK;

/* After the rank's shares of theta changed: they go to the others, theirs come. Until `settle`, or the hooks' `needs`,
 * nothing but these may touch theta. */
enum status shard_exchange_gather(struct shard_exchange *x, struct err *err) MUST_CHECK;
/* The same after rank 0 alone was given a theta: it goes to all others. */
enum status shard_exchange_broadcast(struct shard_exchange *x, struct err *err) MUST_CHECK;
/* Before there is an exchange: every kind of collective that it will make (whole: that of gradients only) and the one
 * of norms once, alone, on buf [floats of the first bucket], device memory that holds nothing after it. */
enum status shard_exchange_warmup(const struct shard_map *map, struct collective *coll, float *buf, bool whole,
                                  struct err *err) MUST_CHECK;
/* What is submitted to the device from now on finds theta whole. Nothing to do: costs nothing. */
void shard_exchange_wait(struct shard_exchange *x);

#endif
