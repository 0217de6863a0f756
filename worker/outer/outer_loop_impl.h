/* Internals of the outer loop, shared by its files only:
 *   outer_loop.c        events; the public functions
 *   outer_loop_send.c   actions of sync -> messages
 *   outer_loop_apply.c  chunks -> objects -> theta
 *   outer_loop_delta.c  trained parameters -> deltas; commit, rollback, faults
 *   outer_segment.c     segments of a round: trained parameters and updates
 *   outer_loop_memory.c allocation when the layout is known
 *   outer_initial.c     the initial model as bytes
 *   outer_save.c        saves the worker's state
 *   outer_save_pace.c   how often, and whether beside the training
 *   outer_restore.c     loads it */
#ifndef WORKER_OUTER_LOOP_IMPL_H
#define WORKER_OUTER_LOOP_IMPL_H

#include "compress/codec.h"
#include "compress/feedback.h"
#include "compress/merge.h"
#include "wire/object.h"
#include "worker/outer/delta_device.h"
#include "worker/outer/delta_host.h"
#include "worker/outer/outer_initial.h"
#include "worker/outer/outer_loop.h"
#include "worker/outer/worker_state.h"
#include "worker/sync/sync.h"

struct outer_fragment {
    uint64_t offset, count;  /* floats of theta */
    uint64_t hash;           /* hash_floats of theta at the version held */
    struct codec *up, *down; /* down: NULL if all updates are relayed */

    struct feedback fb;
    uint8_t form;     /* enum delta_form */
    bool copied;      /* the delta is made in scratch before it is encoded */
    bool pending;     /* payload is encoded, and neither merged nor refused */
    uint8_t *payload; /* [payload_cap] */
    size_t head;      /* bytes of the payload before those of the codec: its name, with codec.up_allowed */
    size_t payload_cap, payload_size;
    uint32_t payload_crc;
    float norm;
    uint64_t base_version;
    bool moved; /* a delta was sent or theta changed, and the trained parameters have not adopted theta since */

    uint8_t *object;                            /* [object_cap]: the update being assembled */
    size_t object_cap, object_max;              /* cap grows up to max with the number of relayed deltas */
    uint8_t snapshot_head[SNAPSHOT_HEAD_BYTES]; /* a snapshot's floats are assembled in theta */
    uint32_t damaged;                           /* corrupt objects in a row */
};

/* Sums over the segments that one round of deltas covers. */
struct outer_window {
    uint32_t steps;
    uint64_t tokens, compute_us;
    double loss_sum;
    bool loss_unknown;
};

/* checkpoint.worker_every auto: how often the worker saves, by what saves cost. */
struct outer_pace {
    uint64_t every;           /* rounds between saves; 0: not yet chosen, as 1 */
    uint64_t round, begun_us; /* of the save before; begun_us 0: there is none */
    uint64_t copy_us;         /* that the copies of the last save took */
    uint64_t save_us;         /* from the begin of the last save to its end */
    uint64_t round_us;        /* of the rounds between the last two saves, without what saves held up */
    uint64_t held_up_us;      /* by the save before */
    uint64_t waited_us;       /* for the save before, which still ran */
    uint32_t slow, quick;     /* saves in a row that held up rounds; that would not, each round */
    bool unmeasured;          /* the last save ended when the next one was due */
    bool asked;               /* outer_loop_next_save has answered for the next save: `beside` */
    bool beside;
};

/* The newest save. */
struct outer_save {
    bool running;
    uint64_t round;       /* round of the deltas in it */
    uint64_t saved_round; /* round of the newest save on disk; SYNC_NO_ROUND: none */
    uint64_t bytes;
    uint64_t begun_us;   /* when it began */
    uint64_t look_us;    /* time of the next poll */
    uint64_t alone_us;   /* since when only the save delays the round; UINT64_MAX: something else does */
    uint64_t held_up_us; /* how long only the save delayed the round */
    bool failed;         /* logged once */
    uint8_t *copy;       /* [copy_cap]: the bytes that are being saved beside the training */
    size_t copy_cap;
    bool beside;    /* the save has a copy: training goes on during it */
    bool held_back; /* deltas wait for the save that runs */
    bool slow;      /* logged once */
    bool told;      /* the first line of checkpoint.worker_every auto */
    bool tell;      /* send SAVES */
    struct outer_pace pace;
};

struct outer_loop {
    struct outer_setup setup;
    struct heartbeat heartbeat;
    struct sync sync;
    uint8_t run_id[WIRE_UUID];
    uint64_t config_hash, text_hash; /* of the last CONFIG */
    enum status fault;               /* of the initial model; 0: none */
    bool configured, stateless;      /* stateless: no state was saved when the loop began */
    struct outer_model model;

    bool async, feedback, lossless; /* lossless: the upload codec is */
    uint64_t n_params;
    uint32_t n_fragments;
    float *theta; /* [n_params]: the log's parameters at the versions held */
    float *live;  /* [n_params], with overlap: the trained parameters between two segments; NULL: those are theta */
    /* [n_params]: from an apply point to the next sync point, theta as adopted; from there to the apply point, the
     * trained parameters that were sent. The same memory as theta if theta cannot change meanwhile. */
    float *base;
    bool fresh; /* live is void: training starts from theta */
    enum apply_rule rule;
    double alpha;
    bool adds;                            /* the program adds its changes to the residuals, in model.change */
    float *scratch;                       /* [largest fragment]; NULL: not needed */
    float *zeros;                         /* [largest fragment of means]: the residual of these in a saved state */
    struct delta_device *delta_device;    /* NULL: the host makes the deltas */
    uint8_t *layout_bytes, *frozen_bytes; /* of JOIN */
    size_t layout_size, frozen_size;
    struct update_named *named; /* [WIRE_NAMED_MAX] */
    bool relays;                /* updates may be relayed deltas, which the worker merges */
    struct merger merger;
    struct merge_delta *deltas; /* [WIRE_NAMED_MAX] */
    uint64_t *weights;          /* [WIRE_NAMED_MAX]: tokens of each delta */
    struct outer_part *parts;   /* [OUTER_PARTS_MAX + 3 + 2 n_fragments] of a save */
    struct outer_fragment f[LAYOUT_FRAGMENTS_MAX];

    struct msg_assign segment;  /* the running one */
    struct outer_window window; /* training since the last sync point of the round before */

    /* The deltas of sync.round. */
    uint32_t steps;
    uint64_t tokens, compute_us;
    double loss_sum;

    struct outer_save save;
    uint32_t faults;  /* results in a row that were not finite, here or at the coordinator */
    bool nonfinite;   /* the coordinator refused deltas of the last round as not finite */
    bool reset_inner; /* reset the inner optimizer at the start of the next round: a step may be running now */

    struct outer_times times, running; /* of the last round, of the current round */
    uint64_t sent_us, delivered_us;    /* time of the offer, of the delivery (0: not yet) */
    double applied_s;                  /* running.apply_s at the offer, then at the delivery */
    uint64_t idle_us;                  /* since when a round in progress waits for an update; 0: it does not */

    struct outer_initial *initial; /* of an upload; NULL: none */

    char nonfinite_text[DELTA_HOST_TEXT]; /* of the last deltas, if `adds` */

    struct saved_state saved; /* of the newest save; scratch of restore */
    struct msg out;           /* the message being sent */
    char text[WIRE_TEXT_MAX + 320];
};

uint64_t outer_stopwatch(const struct outer_loop *loop);
/* Seconds from since_us to now_us, minus the time spent applying updates since the last call. */
double outer_wait_seconds(struct outer_loop *loop, uint64_t since_us, uint64_t now_us);
/* Sends loop->out. Errors are logged; AGAIN: the queue is full, CLOSED. */
enum status outer_send(struct outer_loop *loop, enum wire_lane lane);
/* Sends every message that is due. */
void outer_send_due(struct outer_loop *loop, uint64_t now_us);

void outer_on_chunk(struct outer_loop *loop, const struct msg_chunk *m, uint64_t now_us);
/* Grows the object buffer to `bytes`. LIMIT: more than any update of this run has; NOMEM. */
enum status outer_reserve_object(struct outer_fragment *f, size_t bytes) MUST_CHECK;
/* Applies every object that sync_apply returns. */
void outer_apply_ready(struct outer_loop *loop, uint64_t now_us);
/* theta gets other values: the program's initial parameters are lost if they lie there. */
void outer_replace_initial(struct outer_loop *loop);
/* Computes the snapshot of version 0 locally, for fragments whose hash matches that of WELCOME. */
void outer_make_version0(struct outer_loop *loop, const struct msg_welcome *w, uint64_t now_us);

/* Sets the delta device's anchor, if there is one, to theta at the versions held. Not during training. */
void outer_anchor_all(struct outer_loop *loop);
/* Update `u` was applied to the fragment; `before` is its hash before that. */
void outer_anchor_update(struct outer_loop *loop, uint32_t fragment, uint64_t before, const struct update *u);
/* Puts a refused payload back into the residual. */
void outer_rollback(struct outer_loop *loop, uint32_t fragment);
/* The coordinator refused the delta as not finite: reset the residual, because a rollback would spoil later deltas. */
void outer_drop_nonfinite_delta(struct outer_loop *loop, uint32_t fragment, uint64_t round);
/* Resets the inner optimizer after a round that was not finite. Only between rounds. */
void outer_reset_inner_opt(struct outer_loop *loop);
/* Brings fb.residual up to date with the device; errors are logged. */
enum status outer_residual_read(struct outer_loop *loop, uint32_t fragment) MUST_CHECK;
/* Sets the residual to 0. */
void outer_residual_reset(struct outer_loop *loop, uint32_t fragment);
/* Drops all pending deltas and residuals. */
void outer_drop_deltas(struct outer_loop *loop);
/* Puts all pending deltas back into the residuals, which the worker keeps. */
void outer_return_deltas(struct outer_loop *loop);

/* With train.overlap = H the first thing of a round is to send the delta of the round before. */
void outer_send_at_start(struct outer_loop *loop, uint64_t now_us);
/* A segment begins: adopts the updates whose apply points have been reached; in a new round all. */
void outer_segment_begin(struct outer_loop *loop, bool new_round);
/* A segment of the round ended with these results: adds them up. */
void outer_segment_add(struct outer_loop *loop, const struct outer_result *result);
/* A fragment's delta was made from the trained parameters. */
void outer_segment_sent(struct outer_loop *loop, uint32_t fragment);
/* Sets what the OFFERs of this sync point say. */
void outer_segment_report(struct outer_loop *loop);

/* After CONFIG: allocates all memory. */
enum status outer_memory_init(struct outer_loop *loop, struct err *err) MUST_CHECK;
void outer_memory_finish(struct outer_loop *loop);

/* Whether the state is saved in this round. */
bool outer_save_due(const struct outer_loop *loop, uint64_t round);
/* Starts a save; none may be running. Until it ends, the storage reads theta, residuals, the inner optimizer and
 * payloads. Updates, training and the last byte of each delta wait for outer_save_tick (sync_unsaved). Code that
 * changes this memory before then calls outer_save_join first. A failure is logged, and the run continues. */
void outer_save_begin(struct outer_loop *loop, uint64_t round, uint64_t now_us);
/* A save that training and updates need not wait for: one with a copy. */
static inline bool outer_save_is_beside(const struct outer_loop *loop)
{
    return loop->live || loop->save.beside;
}
/* Whether the next save has a copy of `bytes`, beside `more` bytes of the program's. */
bool outer_save_goes_beside(const struct outer_loop *loop, uint64_t bytes, uint64_t more);
/* A save is over at now_us; begun_us: its begin. Chooses the number of rounds between saves. */
void outer_save_measured(struct outer_loop *loop, uint64_t now_us);
/* Sends SAVES if the coordinator does not know yet how often the worker saves. */
void outer_save_tell(struct outer_loop *loop);
/* Polls a running save; ends sync_unsaved when it is over. */
void outer_save_tick(struct outer_loop *loop, uint64_t now_us);
/* Waits until a running save has ended. */
void outer_save_finish(struct outer_loop *loop);
/* Waits until no running save reads theta, residuals, the inner optimizer or payloads: they are about to change. */
void outer_save_join(struct outer_loop *loop);
/* Saves the state again without its delta if that delta was refused: after a restart it could pass for the delta of a
 * later assignment of the same round. Call it before a heartbeat reports READY. */
void outer_save_refusal(struct outer_loop *loop, uint64_t now_us);
/* Loads the newest usable saved state of this run and worker, then calls sync_configured. */
void outer_restore(struct outer_loop *loop, uint64_t now_us);
/* Reads the run id of the newest saved state; zeros if there is none. */
void outer_saved_run_id(struct outer_loop *loop, uint8_t run_id[WIRE_UUID]);

#endif
