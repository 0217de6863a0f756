/* A worker in virtual time: the shell around worker/sync/sync.h, as worker/outer/outer_loop.c is in a real worker. */
#ifndef CLI_VIRTUAL_WORKER_H
#define CLI_VIRTUAL_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/plan/virtual_link.h"
#include "cli/plan/virtual_run.h"
#include "worker/sync/sync.h"

struct virtual_update {
    uint64_t round, named_round; /* as in struct virtual_message */
};

struct virtual_worker {
    /* set by the owner */
    const struct virtual_setup *setup;
    struct event_queue *clock;
    struct virtual_line *up;
    uint32_t id;

    struct sync sync;
    struct virtual_queue inbox;
    struct virtual_update updates[LAYOUT_FRAGMENTS_MAX]; /* that arrive */
    uint64_t base[LAYOUT_FRAGMENTS_MAX];                 /* version that the next delta of the fragment starts from */
    uint64_t busy_us;                                    /* it handles nothing before this time */
    uint64_t wake_us;                                    /* of the event that looks again; 0: none */
    uint64_t saved_us;                                   /* the running save ends; 0: none runs */
    uint32_t step;                                       /* of the running segment: steps that are done */
    enum worker_state told;                              /* in its last heartbeat */
    struct virtual_parts parts;
};

/* The worker has joined a run at version 0. */
void virtual_worker_start(struct virtual_worker *w);
void virtual_worker_finish(struct virtual_worker *w);
/* A message arrived at the worker `ctx`; takes it. */
void virtual_worker_receive(void *ctx, struct virtual_message *m);

#endif
