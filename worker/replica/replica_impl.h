/* Private structs of replica.c (steps, evaluation, parameters), replica_ranks.c (orders and the work of a rank) and
 * replica_create.c. */
#ifndef WORKER_REPLICA_IMPL_H
#define WORKER_REPLICA_IMPL_H

#include <pthread.h>

#include "gpu/collective.h"
#include "worker/inner/shard_deal.h"
#include "worker/replica/batch.h"
#include "worker/replica/replica.h"
#include "worker/replica/shard_exchange.h"
#include "worker/replica/step_io.h"

/* The caller's thread is rank 0. The other ranks wait for an order, execute it on their share, and report. */
enum order {
    ORDER_NONE,
    ORDER_WARMUP, /* the first collectives, before any other work, so that their device memory is allocated */
    ORDER_STEP,
    ORDER_APPLY, /* second half of a sharded step */
    ORDER_GRADIENT,
    ORDER_EVAL,
    ORDER_BROADCAST, /* theta of rank 0; the next order sees it */
    ORDER_WAIT_SLOT,
    ORDER_SYNCHRONIZE, /* each rank waits for its own device: its thread notices a failure while the others wait */
    ORDER_QUIT
};

struct rank {
    struct replica *replica;
    int index;
    struct device *dev;
    struct collective coll;
    struct model *model;
    float *theta;                   /* [n_params], device: own if sharded, else that of rank 0 */
    float *grad;                    /* [n_params], device */
    struct shard_exchange exchange; /* used if sharded */
    int32_t *tokens, *targets;      /* [rows*seq], device */
    float *loss;                    /* [rows*seq], device */
    struct step_io io;
    double *row_loss;   /* [rows] nats per sequence of a micro-step */
    uint32_t *scratch;  /* [seq+1] */
    enum status status; /* result of the last order */
    struct err err;
    pthread_t thread;
    bool started;
};

/* A submitted step. */
struct flight {
    size_t n; /* sequences; 0: none */
    int slot;
    uint64_t submitted_us;
};

struct replica {
    struct replica_config config;
    const struct layout *layout;
    struct batch_source train;
    uint32_t seq, rows; /* rows: sequences per rank and micro-step */
    bool sharded;       /* every rank has its own theta and a shard of the optimizer (worker/inner/shard.h) */
    struct shard_map map;
    struct shard_deal deal; /* map.deal, for muon */
    struct inner_opt *opt;
    uint64_t *eval_counters; /* [batch_size] */
    /* Used only if device memory is not host memory: */
    float *host_values;   /* [n_params] host copy of parameters or gradient; if the device computes deltas, allocated at
                             its first use */
    struct flight flight; /* the submitted step whose result is not read yet */
    uint64_t done_us;     /* time when the last step was seen to finish */
    struct memory_plan memory, host; /* host: for GPUs only */
    char names[DEVICE_NAME_BYTES];   /* of all devices */
    int n_ranks;
    struct rank ranks[COLLECTIVE_RANKS_MAX];
    bool group_open;

    /* The current order; the caller writes it before it increments `turn`. */
    pthread_mutex_t lock;
    pthread_cond_t ordered, reported;
    uint64_t turn;
    int pending;
    enum order order;
    const struct batch_source *source;
    const uint64_t *counters;
    size_t n_counters;
    int slot; /* index into io.slots of every rank */
    double lr;
};

/* --- replica_ranks.c: the caller gives orders; all ranks have executed them on return ----------------------------- */

/* Starts the threads of ranks 1 .. n_ranks - 1. LIMIT. */
enum status ranks_start(struct replica *r, struct err *err) MUST_CHECK;
/* Waits for submitted work and ends the threads. */
void ranks_stop(struct replica *r);
/* Every rank submits its share of counters[n] to slot r->slot; ranks_wait_slot waits for it. Returns the first failure
 * of any rank. */
enum status ranks_order(struct replica *r, enum order order, const struct batch_source *source,
                        const uint64_t *counters, size_t n, struct err *err) MUST_CHECK;
/* Waits until all devices have finished the work of the slot. */
enum status ranks_wait_slot(struct replica *r, int slot, struct err *err) MUST_CHECK;
/* One order that needs no samples. */
enum status ranks_run(struct replica *r, enum order order, struct err *err) MUST_CHECK;

#endif
