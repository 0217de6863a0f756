/* What replica.c (steps, evaluation, parameters), replica_ranks.c (what a rank does, and the orders it gets) and
 * replica_create.c share. */
#ifndef WORKER_REPLICA_IMPL_H
#define WORKER_REPLICA_IMPL_H

#include <pthread.h>

#include "gpu/collective.h"
#include "worker/inner/shard_deal.h"
#include "worker/replica/batch.h"
#include "worker/replica/replica.h"
#include "worker/replica/replica_memory.h"
#include "worker/replica/shard_exchange.h"
#include "worker/replica/step_io.h"

/* The caller's thread is rank 0; the others wait for an order, do the same work on their share and report. */
enum order {
    ORDER_NONE,
    ORDER_WARMUP,
    ORDER_STEP,
    ORDER_APPLY, /* the second half of a step of ranks with memory of their own */
    ORDER_GRADIENT,
    ORDER_EVAL,
    ORDER_BROADCAST,
    ORDER_WAIT_SLOT,
    ORDER_SYNCHRONIZE,
    ORDER_QUIT
};

struct rank {
    struct replica *replica;
    int index;
    struct device *dev;
    struct collective coll;
    struct model *model;
    float *theta;                   /* [n_params], device: its own, or that of rank 0 (CPU devices share memory) */
    float *grad;                    /* [n_params], device */
    struct shard_exchange exchange; /* where each rank has memory of its own */
    int32_t *tokens, *targets;      /* [rows*seq], device */
    float *loss;                    /* [rows*seq], device */
    struct step_io io;
    double *row_loss;   /* [rows] nats of each sequence of a micro-step */
    uint32_t *scratch;  /* [seq+1] */
    enum status status; /* of the last order */
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
    bool sharded;       /* every rank has a theta of its own, and a shard of the optimizer (worker/inner/shard.h) */
    struct shard_map map;
    struct shard_deal deal; /* map.deal, for muon */
    struct inner_opt *opt;
    uint64_t *eval_counters; /* [batch_size] */
    /* Where the device's memory is not the host's, else NULL: */
    float *host_values;   /* [n_params] parameters or gradient, as the caller asked for last; not before it does where
                           * deltas are to be made by the device */
    struct flight flight; /* the one that is not read yet */
    uint64_t done_us;     /* when the last step was seen to be over */
    struct memory_plan memory, host; /* host: beside GPUs */
    char names[DEVICE_NAME_BYTES];   /* of the devices */
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
    const uint64_t *counters;
    size_t n_counters;
    int slot; /* of every rank's io */
    double lr;
};

/* ---- replica_ranks.c: the caller's thread gives orders, all ranks have obeyed when these return ---- */

/* Start the threads of the ranks after the first. LIMIT. */
enum status ranks_start(struct replica *r, struct err *err) MUST_CHECK;
/* What is under way ends, and the threads that were started. */
void ranks_stop(struct replica *r);
/* Let every rank do its share of `counters`. It is submitted to slot r->slot, not over: ranks_wait_slot. */
enum status ranks_order(struct replica *r, enum order order, const struct batch_source *source,
                        const uint64_t *counters, size_t n, struct err *err) MUST_CHECK;
/* Wait until all ranks did what the slot's order said. */
enum status ranks_wait_slot(struct replica *r, int slot, struct err *err) MUST_CHECK;
/* The first collectives, before anything else is done: what they take of the devices' memory is taken. */
enum status ranks_warmup_collectives(struct replica *r, struct err *err) MUST_CHECK;
/* Theta of rank 0 goes to all others; what they are ordered next finds it. */
enum status ranks_broadcast(struct replica *r, struct err *err) MUST_CHECK;
/* Nothing is under way on any device, and the caller may use them all. */
enum status ranks_synchronize(struct replica *r, struct err *err) MUST_CHECK;

#endif
