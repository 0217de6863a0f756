/* The exchange of one rank of a worker with the other ranks (worker/inner/shard.h). Gradients are reduced while
 * backward still runs; parameters are gathered while the next forward already runs. One per rank, used by the rank's
 * thread. */
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
    bool whole;          /* all-reduce the gradient to every rank instead of reducing shards */
    bool warm;           /* after the first exchange of gradient and theta; from then on overlapped with computation */
    enum status status;  /* of the first collective that failed to start */
    uint32_t n_started;
    uint64_t final[SHARD_BUCKETS_MAX]; /* final gradients per bucket */
    bool gathering[SHARD_BUCKETS_MAX]; /* the all-gather of the bucket is in flight */
};

/* All pointers are borrowed. */
void shard_exchange_init(struct shard_exchange *x, const struct shard_map *map, struct collective *coll, float *theta,
                         float *grad);

/* Call begin before the first micro-step of a step. hooks returns the hooks of a micro-step; only the last one makes
 * gradients final. */
void shard_exchange_begin(struct shard_exchange *x, bool whole);
struct model_hooks shard_exchange_hooks(struct shard_exchange *x, bool last);
/* Call after the last micro-step. The device continues when the sum has arrived: this rank's shares, or the whole
 * gradient. CLOSED, STATE, or the error of the device. */
enum status shard_exchange_finish(struct shard_exchange *x, struct err *err) MUST_CHECK;

/* Call after the rank's shares of theta changed: starts the all-gather of theta. Until `shard_exchange_wait` or the
 * `needs` hook, only these may touch theta. CLOSED, or the error of the device. */
enum status shard_exchange_gather(struct shard_exchange *x, struct err *err) MUST_CHECK;
/* Starts the broadcast of theta from rank 0; otherwise like gather. */
enum status shard_exchange_broadcast(struct shard_exchange *x, struct err *err) MUST_CHECK;
/* Runs every kind of collective of the exchange once, one at a time, and the all-gather of norms; with `whole` only
 * that of gradients. Call before the first exchange. buf: [floats of the first bucket] device memory, overwritten. */
enum status shard_exchange_warmup(const struct shard_map *map, struct collective *coll, float *buf, bool whole,
                                  struct err *err) MUST_CHECK;
/* Operations submitted after this call see the whole theta. Returns at once if no gather is in flight. */
void shard_exchange_wait(struct shard_exchange *x);

#endif
