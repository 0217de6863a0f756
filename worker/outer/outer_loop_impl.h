/* Inside of the outer loop, shared by its files only:
 *   outer_loop.c        events in, wants out
 *   outer_loop_send.c   what sync decided -> messages
 *   outer_loop_apply.c  chunks -> objects -> theta
 *   outer_loop_delta.c  what was trained -> deltas; commit, rollback, faults
 *   outer_loop_memory.c allocation when the layout is known
 *   outer_save.c        the state on its way to the disk, and back */
#ifndef WORKER_OUTER_LOOP_IMPL_H
#define WORKER_OUTER_LOOP_IMPL_H

#include "compress/codec.h"
#include "compress/feedback.h"
#include "compress/merge.h"
#include "wire/object.h"
#include "worker/outer/delta_device.h"
#include "worker/outer/outer_loop.h"
#include "worker/outer/worker_state.h"
#include "worker/sync/sync.h"

struct outer_fragment {
    uint64_t offset, count;  /* floats of theta */
    uint64_t hash;           /* hash_floats of theta at the version held */
    struct codec *up, *down; /* down: NULL when all updates are relayed */

    struct feedback fb;
    bool pending;     /* payload is encoded and neither named nor refused */
    uint8_t *payload; /* (payload_cap) */
    size_t payload_cap, payload_size;
    uint32_t payload_crc;
    float norm;
    uint64_t base_version;

    uint8_t *object;                            /* (object_cap): the update being assembled */
    size_t object_cap, object_max;              /* grows up to max with the number of deltas relayed */
    uint8_t snapshot_head[SNAPSHOT_HEAD_BYTES]; /* a snapshot's floats are assembled in theta itself */
    uint32_t damaged;                           /* objects in a row that could not be used */
};

/* The newest save, which may be under way. */
struct outer_save {
    bool running;
    uint64_t round;       /* whose deltas are in it */
    uint64_t saved_round; /* of the newest one on disk; SYNC_NO_ROUND: none */
    uint64_t bytes;
    uint64_t look_us;    /* when to see whether it has ended */
    uint64_t alone_us;   /* when there was nothing else to wait for any more; UINT64_MAX: there is */
    uint64_t held_up_us; /* what the round waited for it, with nothing else to do */
    bool failed;         /* said once */
    bool slow;           /* the same */
};

struct outer_loop {
    struct outer_setup setup;
    struct heartbeat heartbeat;
    struct sync sync;
    uint8_t run_id[WIRE_UUID];
    uint64_t config_hash;
    bool configured;
    struct outer_model model;

    bool async, feedback, lossless; /* lossless: of the upload codec */
    uint64_t n_params;
    uint32_t n_fragments;
    float *theta;   /* (n_params): the log's parameters at the versions held */
    float *base;    /* (n_params): what training started from; barrier, or with a delta device: theta itself */
    float *scratch; /* (largest fragment) */
    struct delta_device *delta_device; /* NULL: deltas are made in host memory */
    uint8_t *layout_bytes;
    size_t layout_size;
    struct update_named *named; /* (WIRE_NAMED_MAX) */
    bool relays;                /* updates may be relayed deltas: merged here */
    struct merger merger;
    struct merge_delta *deltas; /* (WIRE_NAMED_MAX) */
    uint64_t *weights;          /* (WIRE_NAMED_MAX) tokens of each */
    struct outer_part *parts;   /* (OUTER_PARTS_MAX + 1 + 2 per fragment) of a save */
    struct outer_fragment f[LAYOUT_FRAGMENTS_MAX];

    /* The deltas of sync.round. */
    uint8_t form;
    uint32_t steps;
    uint64_t tokens, compute_us;
    double loss_sum;

    struct outer_save save;
    uint32_t faults;   /* results in a row that were not finite, or refused as that */
    bool spoilt;       /* deltas of the round trained last were */
    bool inner_spoilt; /* the inner optimizer starts anew with the next round: a step may be under way now */

    struct outer_times times, running; /* of the round that ended, of the one under way */
    uint64_t sent_us, delivered_us;
    double applied_s; /* running.apply_s when its deltas were ready, then delivered */

    struct saved_state saved; /* of the save under way, or of the newest; scratch of restore */
    struct msg out;           /* the message being sent */
    char text[WIRE_TEXT_MAX + 320];
};

uint64_t outer_stopwatch(const struct outer_loop *loop);
/* Seconds from since_us to now_us, less those in which updates were applied since this was asked last. */
double outer_wait_seconds(struct outer_loop *loop, uint64_t since_us, uint64_t now_us);
enum status outer_send(struct outer_loop *loop, enum wire_lane lane);
/* Everything that is due. */
void outer_send_due(struct outer_loop *loop, uint64_t now_us);

void outer_on_chunk(struct outer_loop *loop, const struct msg_chunk *m, uint64_t now_us);
/* Room for an update of so many bytes. LIMIT: no update of this run has as many. */
enum status outer_reserve_object(struct outer_fragment *f, size_t bytes) MUST_CHECK;
/* Apply what sync lets through. */
void outer_apply_ready(struct outer_loop *loop, uint64_t now_us);
/* Make version 0 where WELCOME says that this is the snapshot and the hash agrees. */
void outer_make_version0(struct outer_loop *loop, const struct msg_welcome *w, uint64_t now_us);

/* The device has theta at the versions held from now on, if there is a delta device. Not while it is training. */
void outer_anchor_all(struct outer_loop *loop);
/* The fragment had the hash `before`, then this update was applied. */
void outer_anchor_update(struct outer_loop *loop, uint32_t fragment, uint64_t before, const struct update *u);
void outer_rollback(struct outer_loop *loop, uint32_t fragment);
/* The delta was refused for its values: rolled back they would be in each later one, too. */
void outer_drop_nonfinite_delta(struct outer_loop *loop, uint32_t fragment, uint64_t round);
/* Moments of a poisoned round are not used again. Between rounds. */
void outer_reset_inner_opt(struct outer_loop *loop);
/* fb.residual is the newest copy, or an error was logged. */
enum status outer_residual_read(struct outer_loop *loop, uint32_t fragment) MUST_CHECK;
/* fb.residual = 0 */
void outer_residual_reset(struct outer_loop *loop, uint32_t fragment);
/* Nothing of what it sent or kept back counts any more. */
void outer_drop_deltas(struct outer_loop *loop);

/* CONFIG was parsed: allocate everything, restore the saved state if it belongs to this run. */
enum status outer_memory_init(struct outer_loop *loop, struct err *err) MUST_CHECK;
void outer_memory_finish(struct outer_loop *loop);

/* This round is one of those that are saved. */
bool outer_save_due(const struct outer_loop *loop, uint64_t round);
/* None is under way. From here until a tick finds that it ended, or outer_save_join has waited for that, the storage
 * reads theta, residuals, the inner optimizer and payloads. Updates, training and the last bytes of the deltas wait for
 * the tick (sync_unsaved); whoever changes one of those memories before joins first. A failure is logged, the run goes
 * on. */
void outer_save_begin(struct outer_loop *loop, uint64_t round, uint64_t now_us);
void outer_save_tick(struct outer_loop *loop, uint64_t now_us);
void outer_save_join(struct outer_loop *loop);
/* Begin to save the state without the delta that it was saved with, if that was refused and nothing else tells it from
 * the next one. Call it before a heartbeat can say that the worker is READY. */
void outer_save_refusal(struct outer_loop *loop, uint64_t now_us);
void outer_restore(struct outer_loop *loop, uint64_t now_us);
/* The run id of the newest saved state, zeros when there is none. */
void outer_saved_run_id(struct outer_loop *loop, uint8_t run_id[WIRE_UUID]);

#endif
