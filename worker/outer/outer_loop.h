/* The outer loop of one worker: joins the run, keeps theta at the versions of the run's log, makes and sends deltas,
 * and applies updates. It sees flat fp32 parameters and knows no model.
 *
 * It is event driven, without sockets, threads or clock. One thread at a time calls it. The session of a worker
 * (worker/session/worker_session.h) and the simulated cluster of the tests drive the same code.
 *
 *     loop:  outer_loop_on_message for every message that arrived; outer_loop_tick(now);
 *            switch (outer_loop_want()):
 *              OUTER_WAIT   sleep until a message or outer_loop_deadline_us
 *              OUTER_TRAIN  outer_loop_train_begin; start from outer_loop_params; take assignment->steps inner steps,
 *                           running the first line between steps; stop unless outer_loop_computing (revoked);
 *                           outer_loop_train_done. This is a whole round, or a segment of it with train.overlap or
 *                           train.stagger: the caller does the same for both
 *              OUTER_EVAL   outer_loop_eval_begin; evaluate outer_loop_params; outer_loop_eval_done
 *              OUTER_DONE, OUTER_FAILED  flush, close
 *
 * The owner of the transport sends heartbeats, from outer_loop_heartbeat, so that they continue while the caller
 * computes. All memory is allocated when the layout is known (CONFIG arrived). Only relayed updates may grow their
 * buffers later.
 */
#ifndef WORKER_OUTER_LOOP_H
#define WORKER_OUTER_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/tensor/frozen.h"
#include "common/tensor/layout.h"
#include "wire/msg.h"
#include "worker/link/heartbeat.h"

struct outer_loop; /* opaque */
struct device;
struct pool;
struct saved_state; /* worker/outer/worker_state.h */

/* A part of a file to write: borrowed bytes. */
struct outer_part {
    const void *data;
    size_t size;
};

/* The state of the inner optimizer to save, as opaque bytes. */
struct outer_inner {
    void *ctx;
    /* Fills up to `cap` parts and returns their number, 0 on error. The bytes stay unchanged until the next training
     * step, load or parts; evaluations do not change them. */
    size_t (*parts)(void *ctx, struct outer_part *parts, size_t cap);
    /* Restores the concatenation of these parts. NULL, 0: resets the state to that of a new run. */
    enum status (*load)(void *ctx, const uint8_t *data, size_t size);
    /* After parts: the files that the program's processes write themselves for this state (worker/outer/rank_file.h).
     * *n_ranks_p 0: none. NULL: never any. */
    void (*files)(void *ctx, uint64_t *tag_p, uint32_t *n_ranks_p);
};

enum { OUTER_PARTS_MAX = 4096 }; /* a part for each tensor of an inner optimizer */

/* A file of the model's Hugging Face folder: borrowed bytes. */
struct outer_file {
    const char *name; /* hf_files_allowed (common/tensor/hf_files.h) */
    const void *data;
    size_t size;
};

/* What the caller builds from the run's configuration. All pointers are borrowed and outlive the loop. */
struct outer_model {
    const struct config *config; /* resolved: shared keys of the run, local keys of this worker */
    const struct layout *layout;
    uint64_t train_hash, val_hash, train_samples, val_samples;
    uint32_t sample_tokens, ranks;
    const char *devices;      /* "cpu x2" */
    const char *model_config; /* text of config.json; "": it is one of `files`, if there is any */
    /* The program's own parameters, in the order of the layout. A run of model.family external without a model starts
     * from those of its first worker, which uploads them with `files`. They are unchanged until the first session
     * begins; afterwards they are only used if their hashes are those of version 0. NULL: layout_fill. */
    const float *initial; /* [n_params] */
    /* Memory for theta, which may hold `initial`; it is used instead of own memory. NULL: none. */
    float *theta; /* [n_params] */
    /* Memory for the residuals, if outer_loop_adds: between train_begin and train_done the caller adds theta - trained
     * parameters to it, and writes those of mean tensors there. outer_result.values is ignored. NULL: none. */
    float *change;                  /* [n_params] */
    const struct outer_file *files; /* [n_files] at most HF_FILES_MAX */
    uint32_t n_files;
    const struct frozen *frozen; /* the tensors that are not exchanged; NULL: none */
    bool frozen_any;             /* they may differ from the run's */
    /* With `initial`: checkpoints hold the frozen tensors, too. Fills out[size] with the bytes from `offset` of tensor
     * i of `frozen`. Returns 0, or -1. NULL: checkpoints do not hold them. */
    int (*frozen_read)(void *ctx, uint32_t i, uint64_t offset, void *out, size_t size);
    void *frozen_ctx;
    struct outer_inner inner; /* parts NULL: no state */
    /* The device that holds the trained parameters, NULL if they are in host memory. It makes the deltas if device and
     * codec support that (outer_loop_on_device). Used in train_begin, eval_begin, train_done, updates and saves. */
    struct device *device;
    const float *device_theta; /* [n_params] */
    struct pool *pool;         /* threads for updates and deltas on the host; NULL: the caller's thread only */
};

struct outer_setup {
    uint8_t uuid[WIRE_UUID];
    uint8_t run_id[WIRE_UUID]; /* the run to join; zeros: any run of the coordinator. on_config refuses another run */
    char name[WIRE_NAME_MAX];
    bool may_rename; /* the host watches outer_loop_name_refused */

    /* Queues one message. AGAIN: the queue is full (a chunk is sent again later; any other message counts as lost and
     * is resent after a timeout). */
    void *io_ctx;
    enum status (*send)(void *ctx, enum wire_lane lane, const struct msg *m);

    /* CONFIG arrived: builds layout, model and data, and fills *model. Called once. On failure err says why, and the
     * loop fails. */
    void *host_ctx;
    enum status (*on_config)(void *ctx, const struct msg_config *config, struct outer_model *model, struct err *err);
    /* A later CONFIG of the same run has other settings (atoll-coordinator --change): takes them (config_take_changes).
     * Not during a step. */
    enum status (*on_settings)(void *ctx, const struct msg_config *config, struct err *err);

    /* A region: the next update of a fragment, object[size], is complete and will be applied when this returns true.
     * named: it merged this worker's delta; taken: it did, or this worker keeps that delta in its residual. False: the
     * loop fails. NULL: none. */
    bool (*on_update)(void *ctx, const uint8_t *object, size_t size, bool taken, bool named);

    /* Storage of the worker's state; save_begin NULL: none. One save at a time.
     * save_begin starts to write a state: head (saved_state_head), then body[n]. It atomically replaces the newest
     * saved state and keeps the previous one, after the files of its ranks are durable. It may run in another thread:
     * state, body and their bytes stay unchanged until save_poll returns its result. save_poll returns the result of
     * the save. AGAIN: still running (never if `wait`); OK also if none is running. load returns the newest state (age
     * 0) or the previous one (age 1); NOTFOUND: none. release ends a load. has_files checks the files of the ranks of a
     * loaded state; NULL: there are none. */
    void *storage_ctx;
    void (*save_begin)(void *ctx, const struct saved_state *state, const struct outer_part *body, size_t n);
    enum status (*save_poll)(void *ctx, bool wait, struct err *err);
    enum status (*load)(void *ctx, int age, const uint8_t **data_p, size_t *size_p, struct err *err);
    void (*release)(void *ctx, const uint8_t *data, size_t size);
    enum status (*has_files)(void *ctx, uint64_t tag, uint32_t n_ranks, struct err *err);

    /* Clock in microseconds, for the timings in METRICS only; NULL: all timings are 0. */
    uint64_t (*stopwatch_us)(void);
};

enum outer_want { OUTER_WAIT, OUTER_TRAIN, OUTER_EVAL, OUTER_DONE, OUTER_FAILED };

/* Seconds of the round that ended last; round UINT64_MAX: none yet. The times do not overlap and cover the caller's
 * thread from the start of a round to the next, except:
 *   - evaluations and the wait for an assignment;
 *   - handling of messages between steps, and by another thread during them.
 * Work of the device beside the host, such as copies still running at the first step, counts as compute_s. */
struct outer_times {
    uint64_t round;
    double compute_s;  /* steps */
    double compress_s; /* making and encoding deltas, downloading parameters for them, and preparing the save */
    double send_s;     /* until all deltas are delivered, which is after the save */
    double wait_s;     /* until the last update of the round arrived */
    double apply_s;    /* applying updates, also during training, and uploading parameters to the device */
};

enum status outer_loop_create(struct outer_loop **loop_p, const struct outer_setup *setup, uint64_t now_us) MUST_CHECK;
void outer_loop_destroy(struct outer_loop *loop);

/* Handles one message of the coordinator, HEARTBEAT_ACK included; `m` is borrowed for the call. It returns no error:
 * unexpected messages are ignored, faults are logged, and outer_loop_want reports the end. */
void outer_loop_on_message(struct outer_loop *loop, enum wire_lane lane, const struct msg *m, uint64_t now_us);
/* Sends messages that are due and polls a running save. Call it after messages and at outer_loop_deadline_us. */
void outer_loop_tick(struct outer_loop *loop, uint64_t now_us);
/* Both lanes are connected again: resend what may be lost. Call outer_loop_tick afterwards. */
void outer_loop_reconnected(struct outer_loop *loop, uint64_t now_us);
uint64_t outer_loop_deadline_us(const struct outer_loop *loop);

enum outer_want outer_loop_want(const struct outer_loop *loop);
/* OUTER_WAIT: what the worker waits for; OUTER_FAILED: the error; OUTER_DONE: the coordinator's last line. Valid until
 * the next call of any function of the loop. */
const char *outer_loop_text(struct outer_loop *loop, uint64_t now_us);
/* OUTER_FAILED because the coordinator permanently refused this worker: enum refuse_code; 0 otherwise. */
uint16_t outer_loop_refused(const struct outer_loop *loop);
/* OUTER_FAILED without a refusal: NONFINITE, INVALID or NOMEM of the initial model, otherwise STATE. */
enum status outer_loop_fault(const struct outer_loop *loop);
/* Another worker has this worker's name, and nothing is lost with this one's: it has no saved state and did not join.
 */
bool outer_loop_name_refused(const struct outer_loop *loop);
/* After outer_loop_name_refused: joins as another worker. The caller's connection must have the key of this uuid. */
void outer_loop_rename(struct outer_loop *loop, const uint8_t uuid[WIRE_UUID], const char *name, uint64_t now_us);
/* Whether a coordinator has sent the run's configuration. */
bool outer_loop_configured(const struct outer_loop *loop);
struct heartbeat *outer_loop_heartbeat(struct outer_loop *loop);

/* The task or evaluation that is wanted or running; NULL: none. Between train_begin and train_done the task is the
 * running segment of the round: `steps`, `step0` and the samples are those of the segment. */
const struct msg_assign *outer_loop_assignment(const struct outer_loop *loop);
const struct msg_eval *outer_loop_evaluation(const struct outer_loop *loop);
/* Inner steps of the round before the running segment. */
uint32_t outer_loop_first_step(const struct outer_loop *loop);
/* Theta [n_params] at the versions held; between train_begin and train_done with overlap: the parameters from which the
 * segment starts. NULL before the layout is known. Read-only. Updates change it: copy it when training begins. */
const float *outer_loop_params(const struct outer_loop *loop);
/* The run's parameters [n_params] at the versions held, also during training; NULL before the layout is known. */
const float *outer_loop_theta(const struct outer_loop *loop);
/* Whether a run of this configuration lets the caller add its changes to the residuals (outer_model.change): it has a
 * barrier without overlap, and a lossy codec. */
bool outer_loop_adds(const struct config *config);
/* Why the last train_done returned NONFINITE, if the caller adds its changes: "tensor 'x' has ..."; "": otherwise. */
const char *outer_loop_nonfinite(const struct outer_loop *loop);
/* Every fragment is loaded, at a version of the run's log. */
bool outer_loop_holds(const struct outer_loop *loop);
uint64_t outer_loop_version(const struct outer_loop *loop, uint32_t fragment);
const struct outer_times *outer_loop_times(const struct outer_loop *loop);

/* The device makes the deltas from outer_model.device_theta: outer_result.values is ignored. */
bool outer_loop_on_device(const struct outer_loop *loop);
/* A copy of outer_loop_params [n_params] at train_begin or eval_begin, in the memory of outer_model.device; NULL: no
 * such copy. Read-only. */
const float *outer_loop_device_params(const struct outer_loop *loop);
void outer_loop_train_begin(struct outer_loop *loop, uint64_t now_us);
/* The segment that train_begin started is still wanted. False: the run went on without it, or has ended. */
bool outer_loop_computing(const struct outer_loop *loop);
/* outer_loop_computing, and deltas and updates travel meanwhile (train.overlap, train.stagger, async). While another
 * thread computes, outer_loop_on_message (except for CONFIG, UPLOAD and WELCOME) and outer_loop_tick then call neither
 * the host's functions nor the device. */
bool outer_loop_exchanges(const struct outer_loop *loop);
/* What the end of the running segment (outer_loop_train_done), or the beginning of the wanted one, does with the state
 * of the inner optimizer. Waits for a save that still runs.
 *   - NONE: nothing.
 *   - HELD: saves it. The parts stay unchanged until training begins; the last byte of the delta waits for the save.
 *   - BESIDE: saves a copy while training goes on. `bytes`: memory that the program takes for a copy of its own.
 * Without room for all copies the answer is HELD, and with train.overlap BESIDE. */
enum outer_next_save { OUTER_SAVE_NONE, OUTER_SAVE_HELD, OUTER_SAVE_BESIDE };
enum outer_next_save outer_loop_next_save(struct outer_loop *loop, uint64_t bytes);
/* Rounds between two saves now; 0: never. *worst_p: a kill costs at most the training of so many rounds. */
uint64_t outer_loop_save_every(const struct outer_loop *loop, uint64_t *worst_p);
/* `step` inner steps are done; the last one took step_us. */
void outer_loop_train_step(struct outer_loop *loop, uint32_t step, uint64_t step_us);

struct outer_result {
    const float *values; /* [n_params]: parameters after the last step; method ddp: mean gradient over `tokens` */
    uint64_t tokens;     /* trained on in this segment */
    uint32_t steps;
    double loss_sum;   /* nats, summed over tokens */
    bool loss_unknown; /* loss_sum is not known */
    uint64_t compute_us;
    uint64_t place_us; /* from train_begin until the parameters are on the device */
    uint64_t fetch_us; /* from the last step until `values` are on the host */
};

/* A segment is trained. At a sync point: makes the deltas, starts the save of the worker's state, and offers the
 * deltas. NONFINITE: values or loss hold NaN or infinity. Nothing is sent, the inner optimizer is reset, the worker
 * leaves and joins again; the third time in a row the loop fails. Any other error makes the loop fail at once
 * (OUTER_FAILED). */
enum status outer_loop_train_done(struct outer_loop *loop, const struct outer_result *result,
                                  uint64_t now_us) MUST_CHECK;

void outer_loop_eval_begin(struct outer_loop *loop, uint64_t now_us);
/* parts [msg_eval_parts of outer_loop_evaluation], and their loss_sum; NULL: not evaluated. If more windows are wanted,
 * outer_loop_evaluation has them now, at the same parameters. */
void outer_loop_eval_done(struct outer_loop *loop, double loss_sum, const struct wire_part *parts, uint64_t now_us);

/* The current session, unique in the run; 0: none. */
uint64_t outer_loop_session(const struct outer_loop *loop);
/* Sends METRICS and fills in its session. CLOSED: there is no session; AGAIN: the queue is full. */
enum status outer_loop_metrics(struct outer_loop *loop, const struct msg_metrics *metrics) MUST_CHECK;
/* Waits for a running save, saves once more at a round boundary, sends LEAVE(finished = false). Afterwards
 * outer_loop_want returns OUTER_DONE. */
void outer_loop_leave(struct outer_loop *loop, const char *text, uint64_t now_us);

#endif
