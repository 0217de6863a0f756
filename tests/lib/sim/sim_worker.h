/* One worker process of the simulated cluster: worker/outer/outer_loop.h on a virtual link.
 * It trains the toy model at its own speed and has a disk that survives the process. */
#ifndef TESTS_LIB_SIM_WORKER_H
#define TESTS_LIB_SIM_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/config/config.h"
#include "common/tensor/layout.h"
#include "tests/lib/rigs/toy.h"
#include "tests/lib/sim/sim_check.h"
#include "tests/lib/sim/sim_disk.h"
#include "tests/lib/sim/sim_net.h"
#include "worker/outer/outer_loop.h"

struct sim_worker {
    /* set by the owner before the first start */
    struct sim_net *net;
    struct sim_check *check;
    const struct toy *toy;
    int client;
    uint64_t step_us, eval_us; /* compute time of an inner step and of an evaluation */
    bool lazy;                 /* reads its messages only between inner steps, like the real trainer */
    uint64_t nan_round;        /* produces NaN once in this round; UINT64_MAX: never */
    enum { SIM_WORKER_COPIES, SIM_WORKER_ON_DEVICE, SIM_WORKER_LENDS } kind; /* by client */
    uint8_t stranger; /* part of its uuid; sim_worker_forget increments it */

    /* the process */
    bool up, frozen;
    uint64_t life; /* counts starts: events of an earlier process are ignored */
    uint64_t wake_us;
    struct transport *transport;
    struct outer_loop *loop;
    enum outer_want last_want; /* at its end */
    char last_text[WIRE_TEXT_MAX];
    struct config config;
    struct layout layout;
    bool built;
    float *theta, *anchor, *velocity; /* [n_params] each */
    double *gradient;                 /* [n_params] */
    struct device *device;            /* ON_DEVICE: makes the deltas, if the codec can */
    float *lent_theta, *change;       /* LENDS: outer_model.theta and change, [n_params] each; otherwise NULL */
    enum { SIM_WORKER_IDLE, SIM_WORKER_TRAINS, SIM_WORKER_EVALUATES } busy;
    struct msg_assign task;
    struct msg_eval eval;
    struct msg_assign whole; /* the assignment of which `task` is a segment */
    bool in_round;           /* `whole`, sent and is_sent are of this process */
    float *sent;             /* [n_params], with overlap: the trained parameters at the latest sync points */
    bool follows;     /* this process began a round, and has kept its parameters since: `sent` and is_sent are known */
    float *evaluated; /* [n_params] */
    bool is_sent[LAYOUT_FRAGMENTS_MAX]; /* sent since the last apply point */
    uint32_t step, first_step;          /* of the segment; steps of the round before it */
    uint64_t used;                      /* samples of the task used so far */
    double loss;

    struct sim_disk disk;
};

void sim_worker_init(struct sim_worker *w, struct sim_net *net, struct sim_check *check, const struct toy *toy,
                     int client);
/* Kill the worker and free everything, including its disk. */
void sim_worker_finish(struct sim_worker *w);

void sim_worker_start(struct sim_worker *w);
/* kill -9: unsaved state is lost. */
void sim_worker_kill(struct sim_worker *w);
/* SIGTERM: the worker saves its state if it is at a boundary, sends LEAVE and ends. sim_worker_start continues it. */
void sim_worker_leave(struct sim_worker *w);
/* SIGSTOP and SIGCONT. */
void sim_worker_freeze(struct sim_worker *w, bool frozen);
/* The network has a message for the worker. */
void sim_worker_ready(struct sim_worker *w);
/* Erase its disk: the next start is a new worker with the same name. */
void sim_worker_forget(struct sim_worker *w);
/* Return whether it ended by itself: finished or failed (last_want tells which). */
bool sim_worker_ended(const struct sim_worker *w);
/* Encode m and send it over a transport of the simulation. */
enum status sim_send(struct transport *t, uint64_t peer, enum wire_lane lane, const struct msg *m);
/* Tells the check the windows of this loop, before each message that it sends. */
void sim_note_windows(struct sim_check *check, int client, const struct outer_loop *loop);

#endif
