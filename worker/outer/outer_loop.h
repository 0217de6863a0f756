/* The outer loop of one worker: joins the run, keeps theta at the versions of the run's log, turns what was trained
 * into deltas, sends them, and applies the updates that come back. It knows no model: flat fp32 parameters in, flat
 * fp32 parameters out. Event driven and single-threaded, without sockets, threads or a clock of its own: the trainer
 * (worker/train.c), the simulated cluster of the tests and an embedding program drive the same code.
 *
 *     loop:  outer_loop_on_message(every message that came); outer_loop_tick(now);
 *            switch (outer_loop_want()):
 *              OUTER_WAIT   sleep until a message or outer_loop_deadline_us
 *              OUTER_TRAIN  outer_loop_train_begin; start from outer_loop_params; take assignment->steps inner steps,
 *                           doing the first line between steps; stop when want is no longer OUTER_TRAIN (revoked);
 *                           outer_loop_train_done
 *              OUTER_EVAL   outer_loop_eval_begin; evaluate outer_loop_params; outer_loop_eval_done
 *              OUTER_DONE, OUTER_FAILED  flush, close
 *
 * Heartbeats are not sent from here but by whoever owns the transport, from outer_loop_heartbeat, so that they go on
 * while the caller computes. All memory is allocated when the layout is known (the CONFIG message); nothing afterwards.
 */
#ifndef WORKER_OUTER_LOOP_H
#define WORKER_OUTER_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/tensor/layout.h"
#include "wire/msg.h"
#include "worker/link/heartbeat.h"

struct outer_loop; /* opaque */
struct device;
struct pool;
struct saved_state; /* worker/outer/worker_state.h */

/* A piece of a file to be written: borrowed bytes. */
struct outer_part {
    const void *data;
    size_t size;
};

/* What the inner optimizer must keep across restarts, as bytes only it understands. */
struct outer_inner {
    void *ctx;
    /* Fill up to `cap` parts; returns how many, 0 when the state cannot be had. They stay as they are until the next
     * step of training, load or parts: evaluations leave them alone. The same total size always. */
    size_t (*parts)(void *ctx, struct outer_part *parts, size_t cap);
    /* Take back the concatenation of what `parts` gave. NULL, 0: as at the start of the run. */
    enum status (*load)(void *ctx, const uint8_t *data, size_t size);
};

enum { OUTER_PARTS_MAX = 16 };

/* What the caller built from the run's configuration. Everything is borrowed and stays valid as long as the loop. */
struct outer_model {
    const struct config *config; /* resolved: shared keys of the run, local keys of this machine */
    const struct layout *layout;
    uint64_t train_hash, val_hash, train_samples, val_samples;
    uint32_t sample_tokens, ranks;
    const char *devices;      /* "cpu x2" */
    const char *model_config; /* config.json text */
    struct outer_inner inner; /* parts NULL: there is none */
    /* Where the trained parameters are when that is not the host's memory, else NULL: the deltas are made there if
     * device and codec can (outer_loop_on_device). Used inside train_begin, train_done and what saves. */
    struct device *device;
    const float *device_theta; /* [n_params] */
    struct pool *pool;         /* threads for what updates and deltas take of the host; NULL: the caller's alone */
};

struct outer_setup {
    uint8_t uuid[WIRE_UUID];
    uint8_t run_id[WIRE_UUID]; /* the run to join; zeros: whichever is served there. on_config refuses another one */
    char name[WIRE_NAME_MAX];

    /* Queue one message. AGAIN: the queue is full (a chunk is offered again later, anything else counts as lost and
     * heals by repetition). */
    void *io_ctx;
    enum status (*send)(void *ctx, enum wire_lane lane, const struct msg *m);

    /* The run's shared configuration arrived: build layout, model and data, fill *model. Called once (a rejoin brings
     * the same configuration again and only its hash is compared). On failure err says why and the loop fails. */
    void *host_ctx;
    enum status (*on_config)(void *ctx, const struct msg_config *config, struct outer_model *model, struct err *err);

    /* Storage of the worker's state; save_begin NULL: none. save_begin starts to write a state, head
     * (saved_state_head) and body, which replaces the newest atomically; the one before is kept. It may go on beside
     * the caller: what is passed stays, unchanged, until save_poll says how it ended. AGAIN: it has not, never with
     * `wait`; OK too when none is under way. One at a time.
     * load gives the newest (age 0) or the one before (age 1), NOTFOUND when there is none; release ends a load. */
    void *storage_ctx;
    void (*save_begin)(void *ctx, const struct saved_state *state, const struct outer_part *body, size_t n);
    enum status (*save_poll)(void *ctx, bool wait, struct err *err);
    enum status (*load)(void *ctx, int age, const uint8_t **data_p, size_t *size_p, struct err *err);
    void (*release)(void *ctx, const uint8_t *data, size_t size);

    /* Microseconds for the timings of METRICS only, never for decisions; NULL: they are 0. */
    uint64_t (*stopwatch_us)(void);
};

enum outer_want { OUTER_WAIT, OUTER_TRAIN, OUTER_EVAL, OUTER_DONE, OUTER_FAILED };

/* Seconds of the round that ended last; round UINT64_MAX: none yet. They do not overlap, and all that the caller's
 * thread does from one round's begin to the next one's is in one of them, but for evaluations, the wait for an
 * assignment, and what steps and the outer loop's own messages leave between them. What a device does by itself beside
 * the host, such as copies on their way when the first step is submitted, shows in compute_s. */
struct outer_times {
    uint64_t round;
    double compute_s;  /* steps */
    double compress_s; /* deltas made and encoded; parameters fetched for that, and what is to be saved */
    double send_s;     /* until all of them were delivered, which is not before the state is saved */
    double wait_s;     /* until the update of the last one was there */
    double apply_s;    /* updates applied, while it trained, too; and parameters put where they are trained */
};

enum status outer_loop_create(struct outer_loop **loop_p, const struct outer_setup *setup, uint64_t now_us) MUST_CHECK;
void outer_loop_destroy(struct outer_loop *loop);

/* One message of the coordinator, HEARTBEAT_ACK included; `m` is only used during the call. Never fails: what does not
 * fit is ignored, what is wrong is logged, and outer_loop_want tells when it is over. */
void outer_loop_on_message(struct outer_loop *loop, enum wire_lane lane, const struct msg *m, uint64_t now_us);
/* Send what is due, see whether a save has ended. Call it after messages and at outer_loop_deadline_us. */
void outer_loop_tick(struct outer_loop *loop, uint64_t now_us);
uint64_t outer_loop_deadline_us(const struct outer_loop *loop);

enum outer_want outer_loop_want(const struct outer_loop *loop);
/* OUTER_WAIT: what for; OUTER_FAILED: why; OUTER_DONE: the coordinator's closing line. Valid until the next call. */
const char *outer_loop_text(struct outer_loop *loop, uint64_t now_us);
/* OUTER_FAILED, and for good: it is the coordinator that does not want this worker. */
bool outer_loop_refused(const struct outer_loop *loop);
struct heartbeat *outer_loop_heartbeat(struct outer_loop *loop);

/* NULL unless wanted or under way. */
const struct msg_assign *outer_loop_assignment(const struct outer_loop *loop);
const struct msg_eval *outer_loop_evaluation(const struct outer_loop *loop);
/* Theta at the versions held: (n_params) fp32; NULL before the layout is known. Do not write. Changes as updates are
 * applied: copy it when training begins. */
const float *outer_loop_params(const struct outer_loop *loop);
uint64_t outer_loop_version(const struct outer_loop *loop, uint32_t fragment);
const struct outer_times *outer_loop_times(const struct outer_loop *loop);

/* The deltas are made from outer_model.device_theta: outer_result.values is not looked at. */
bool outer_loop_on_device(const struct outer_loop *loop);
/* After train_begin and eval_begin: outer_loop_params as they were then, in the memory of outer_model.device; NULL:
 * they are not there. Do not write. */
const float *outer_loop_device_params(const struct outer_loop *loop);
void outer_loop_train_begin(struct outer_loop *loop, uint64_t now_us);
/* `step` inner steps are done. */
void outer_loop_train_step(struct outer_loop *loop, uint32_t step, uint64_t step_us);

struct outer_result {
    const float *values; /* (n_params): parameters after the last step; method ddp: mean gradient over its tokens */
    uint64_t tokens;     /* trained on */
    uint32_t steps;
    double loss_sum; /* nats, summed over tokens */
    uint64_t compute_us;
    uint64_t place_us; /* from train_begin until the parameters lay where they are trained */
    uint64_t fetch_us; /* until `values` were there, after the last step */
};

/* Makes the deltas, begins to save the worker's state, offers them. NONFINITE: values hold NaN or infinity: nothing is
 * sent, the inner optimizer is reset, the worker leaves and joins again; the third time in a row the loop fails. Any
 * other error is final too (outer_loop_want says OUTER_FAILED). */
enum status outer_loop_train_done(struct outer_loop *loop, const struct outer_result *result,
                                  uint64_t now_us) MUST_CHECK;

void outer_loop_eval_begin(struct outer_loop *loop, uint64_t now_us);
/* Over the windows of outer_loop_evaluation: nats summed over `tokens`. */
void outer_loop_eval_done(struct outer_loop *loop, double loss_sum, uint64_t tokens, uint64_t now_us);

/* The session in hand, 0: none. No two sessions of a run are alike. */
uint64_t outer_loop_session(const struct outer_loop *loop);
/* Send METRICS (its session is filled here). CLOSED: there is no session; AGAIN: no room. */
enum status outer_loop_metrics(struct outer_loop *loop, const struct msg_metrics *metrics) MUST_CHECK;
/* Wait for a save that is under way, save what a boundary allows, send LEAVE(finished = false). Afterwards
 * outer_loop_want says OUTER_DONE. */
void outer_loop_leave(struct outer_loop *loop, const char *text, uint64_t now_us);

#endif
