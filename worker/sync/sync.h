/* The worker's half of the protocol as a pure state machine: events and the time go in, actions come out.
 *
 * It has no sockets, threads, clock or allocation. It holds versions, offsets and deadlines, but no parameters or
 * payloads. The caller (worker/outer/outer_loop.c) owns those bytes and reports what happened to them.
 *
 * Two state machines run side by side:
 *   - The connection (enum sync_phase) goes HELLO -> CONFIGURING -> JOINING -> JOINED. It returns to HELLO when the
 *     coordinator no longer knows the session.
 *   - The work (enum worker_state) keeps its state across sessions: when the coordinator restarts, the worker keeps
 *     training and offers its delta to the new process.
 *
 *     CATCHING_UP -> READY -> TRAINING -> SENDING -> WAITING -> READY ... FINISHED
 *                      \-> EVALUATING -> READY
 *
 * A round is trained in segments, which end at the sync and apply points of its fragments
 * (common/config/sync_points.h). Between two segments the state is TRAINING, or SENDING or WAITING if an apply point is
 * reached before its update. Without overlap and stagger a round is one segment.
 *
 * Each event is a function. After events the caller calls sync_poll until no action is due and sync_apply until no
 * object is ready, then sleeps until sync_deadline_us. Every message is resent after a timeout, so a duplicate, lost or
 * late message does no harm. docs/protocol.md specifies the messages. */
#ifndef WORKER_SYNC_H
#define WORKER_SYNC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/config/sync_points.h"
#include "wire/msg.h"
#include "worker/sync/sync_rate.h"

enum {
    SYNC_CHUNK = 256 << 10,    /* payload bytes of one CHUNK that the worker sends: 2 s at 1 Mbit/s */
    SYNC_GETS_MAX = 8,         /* fragments with an open GET */
    SYNC_CONNECT_US = 1000000, /* and two round trips: first resend of HELLO and JOIN; later ones back off */
    SYNC_DROPS_MAX = 5,        /* sync_drop calls in a row before the worker fails */
    SYNC_NAME_US = 90000000,   /* a name still refused after this belongs to another worker */
};

#define SYNC_NO_ROUND UINT64_MAX
#define SYNC_FAILED_HERE UINT16_MAX /* value of `refused`: the worker itself failed */

enum sync_phase {
    SYNC_HELLO,       /* send HELLO until CONFIG arrives */
    SYNC_CONFIGURING, /* the caller builds model and data, then calls sync_configured */
    SYNC_JOINING,     /* send JOIN until WELCOME arrives */
    SYNC_JOINED,
    SYNC_STOPPED, /* left, finished, failed or permanently refused */
};

enum sync_upload {
    SYNC_UPLOAD_NONE,
    SYNC_UPLOAD_OFFERED,   /* OFFER sent, no CREDIT yet */
    SYNC_UPLOAD_SENDING,   /* sending chunks up to the credit */
    SYNC_UPLOAD_DELIVERED, /* the coordinator holds the whole payload */
    SYNC_UPLOAD_NAMED,     /* an update names it: merged */
    SYNC_UPLOAD_REJECTED,
};

struct sync_fragment {
    uint64_t version; /* last one applied */

    /* Download of the next object: update `version` + 1, or a snapshot if `loading`. */
    bool loading;
    bool complete;             /* assembled, not yet applied */
    uint64_t target;           /* newest version known to exist */
    uint64_t get_version;      /* version of the object */
    uint64_t snapshot_hash;    /* of the snapshot being loaded, or loaded last */
    uint64_t have, total;      /* bytes received in order, and of the object; total 0: unknown */
    uint64_t usual;            /* bytes of the previous update: the estimate for the next one */
    uint64_t requested;        /* end of the range of the open GET; 0: none open */
    uint64_t own_from, own_to; /* range filled in locally, not downloaded; 0, 0: none */
    uint64_t get_at, get_wait; /* time of the next GET; current back-off */
    bool get_again;            /* the open GET was repeated, and no byte has arrived since */

    /* Upload of this round's delta. */
    enum sync_upload upload;
    bool passed; /* an update of this round or a later one does not name it */
    bool lost;   /* will never be merged, and the caller has not yet rolled it back */
    /* Offered again after a timeout: CREDIT for `probe` means that later chunks were lost, unless another fragment has
     * moved since. They share a connection, and on a slow one its bytes are in front. */
    bool probing;
    uint64_t probe_moved;       /* up_moved at the probe */
    uint64_t bytes, held, upto; /* payload size; bytes the coordinator holds; end of the credit */
    uint64_t sent, probe;       /* bytes handed to the transport; `held` at the probe */
    uint64_t up_at, up_wait;    /* time of the next OFFER; current back-off */
    bool up_again;              /* the OFFER was repeated without an answer since */
};

struct sync_eval {
    bool pending, running;
    bool answer;                   /* EVAL_RESULT is due */
    struct msg_eval task;          /* the one pending, running or answered last */
    struct msg_eval piece;         /* wanted parts of the task that are adjacent: those to evaluate next */
    uint64_t left;                 /* the wanted parts from the piece on, as bits */
    struct msg_eval_result sums;   /* of the pieces before it */
    struct msg_eval_result result; /* of the last evaluation; eval_id 0: none */
};

/* The upload of the initial model of a run without one (phase SYNC_JOINING). */
struct sync_initial {
    uint64_t id, total; /* of msg_upload, and of the object; id 0: none */
    uint64_t held, upto, sent, probe;
    bool probing; /* JOIN was repeated: UPLOAD for `probe` means that later chunks were lost */
};

struct sync {
    enum sync_phase phase;
    enum worker_state state;
    bool async;    /* no barrier: a round starts at the assigned versions or later, and updates apply while training */
    bool lockstep; /* a region: no fragment is applied more than one update ahead of another */
    bool holds;    /* every fragment is loaded, at a version of the log */
    uint32_t n_fragments; /* 0 until configured */
    uint32_t worker_id;   /* UINT32_MAX: unknown */
    uint64_t session;
    uint64_t jitter;   /* from the uuid: spreads the retries of the workers */
    uint64_t retry_at; /* next HELLO or JOIN */
    uint32_t retries;  /* HELLO or JOIN in a row without an answer */
    uint64_t joined_at;
    uint64_t name_since; /* time of the first refusal of its name; 0: not refused */
    uint64_t rtt_us;
    struct sync_rate up, down;
    uint64_t up_moved;      /* CREDITs with new bytes of any fragment */
    uint64_t blocked_until; /* the bulk queue was full: no chunk before this time */
    uint32_t drops;         /* calls of sync_drop since the last merged delta */
    bool bind_due;          /* send BIND */
    struct sync_initial initial;

    uint64_t round;      /* in training, upload or merge; SYNC_NO_ROUND: none */
    uint64_t last_round; /* the last that ended; SYNC_NO_ROUND: none */
    bool last_again;     /* async: last_round may be assigned again (a delta was refused, or a new session began) */
    bool has_task;       /* `task` is accepted, training has not begun */
    struct msg_assign task;
    const struct config *config; /* borrowed, for the schedule; NULL: no overlap */
    bool overlaps;               /* train.overlap or train.stagger: training goes on during transfers and saves */
    bool computing;              /* a segment is being trained */
    bool expects_task;           /* with overlap: ASSIGN of an open round will come; no update beyond its versions */
    struct msg_assign current;   /* the assignment of `round` */
    uint32_t step, segment;      /* its inner steps that are done, and those of the running segment */
    struct sync_points points[LAYOUT_FRAGMENTS_MAX]; /* of `current` */
    struct sync_eval eval;

    bool unsaved;        /* a save is running: the state of these deltas is not on disk */
    uint64_t unsaved_us; /* start of the save */

    bool done, finished;      /* DONE arrived; LEAVE says finished */
    bool leave_due;           /* send LEAVE */
    uint16_t refused;         /* REFUSE code that stopped it, or SYNC_FAILED_HERE; 0: none */
    char text[WIRE_TEXT_MAX]; /* why it stopped, or the refusal being retried */
    struct sync_fragment f[LAYOUT_FRAGMENTS_MAX];
};

enum sync_action_type {
    SYNC_SEND_HELLO,
    SYNC_SEND_JOIN,
    SYNC_SEND_BIND,
    SYNC_SEND_OFFER,       /* fragment */
    SYNC_SEND_CHUNK,       /* fragment, offset, length in the payload */
    SYNC_SEND_GET,         /* fragment, kind, version, offset, length */
    SYNC_SEND_EVAL_RESULT, /* eval.result */
    SYNC_SEND_LEAVE,       /* finished */
    SYNC_SEND_INITIAL,     /* version = id of the upload; offset, length in the initial model */
};

struct sync_action {
    enum sync_action_type type;
    uint32_t fragment;
    uint8_t kind; /* enum object_kind */
    uint64_t version, offset, length;
};

void sync_init(struct sync *s, uint64_t jitter, uint64_t now_us);

/* Returns whether a message is due and fills *a. The message counts as sent. If the transport does not accept a chunk,
 * the caller calls sync_blocked. */
bool sync_poll(struct sync *s, uint64_t now_us, struct sync_action *a);
void sync_blocked(struct sync *s, const struct sync_action *a, uint64_t now_us);
/* Bytes received and size of the objects that are being downloaded; 0, 0: none, or no size is known. */
void sync_receiving(const struct sync *s, uint64_t *received, uint64_t *expected);
/* Earliest time at which sync_poll returns an action; UINT64_MAX: none without another event. */
uint64_t sync_deadline_us(const struct sync *s);
/* Returns whether an assembled object may be applied now, and its fragment. The caller applies it, then calls
 * sync_applied (update) or sync_loaded (snapshot). Updates wait
 *   - during a save and an evaluation, and with a barrier during training: the parameters are in use;
 *   - at the versions that a pending evaluation needs, and with a barrier at those that an accepted task needs. */
bool sync_apply(const struct sync *s, uint32_t *fragment_p);
/* The next segment can begin now: the caller calls sync_train_begin. */
bool sync_wants_training(const struct sync *s);
/* An evaluation can begin now: the caller calls sync_eval_begin. */
bool sync_wants_eval(const struct sync *s);
/* Describes in out[cap] what the worker waits for; "" if it has work. */
void sync_waits_for(const struct sync *s, char *out, size_t cap);

/* --- connection --- */
/* CONFIG arrived. True: the caller builds model and data, then calls sync_configured. False: a duplicate. */
bool sync_on_config(struct sync *s, uint64_t now_us);
/* Model and data are ready: send JOIN. versions[n_fragments] are those of the saved state, NULL if there is none. A
 * rejoin ignores async, n_fragments and versions: the state machine has them already. */
void sync_configured(struct sync *s, bool async, uint32_t n_fragments, const uint64_t *versions, uint64_t now_us);
/* True: a new session began. `holds` tells whether it resumes. If not:
 *   - all work is dropped and every fragment is `loading` its snapshot;
 *   - the caller drops its payloads and residuals, and may call sync_loaded for a snapshot that it can compute itself;
 *   - progress of an earlier session on the same snapshot is kept, whole fragments as well as bytes. */
bool sync_on_welcome(struct sync *s, const struct msg_welcome *w, uint64_t now_us);
/* The run has no model yet: sends the initial model of `total` bytes, or waits for another worker's. */
void sync_on_upload(struct sync *s, const struct msg_upload *m, uint64_t total, uint64_t now_us);
/* Restarts the handshake, retries later, or stops permanently (phase SYNC_STOPPED, `refused`, `text`). */
void sync_on_refuse(struct sync *s, const struct msg_refuse *m, uint64_t now_us);
/* Drops the session and sends HELLO again; keeps the work. */
void sync_rejoin(struct sync *s, uint64_t now_us);
/* The worker has another name and uuid: joins with them. */
void sync_renamed(struct sync *s, uint64_t now_us);
/* Both lanes are connected again. Messages that were already repeated without an answer are sent again now.
 * Others wait for their timeout: the answer may be on its way. */
void sync_reconnected(struct sync *s, uint64_t now_us);
/* Drops session and work: all snapshots are loaded again, after a hash mismatch for example. The delay doubles with
 * each call. After SYNC_DROPS_MAX calls without a merged delta the worker fails. */
void sync_drop(struct sync *s, uint64_t now_us);
/* Stops the worker; sends LEAVE once if there is a session. */
void sync_leave(struct sync *s, const char *text, uint64_t now_us);
/* Stops with an error: the run cannot continue on this machine. */
void sync_fail(struct sync *s, const char *text);
void sync_set_rtt(struct sync *s, uint64_t rtt_us);

/* --- objects --- */
/* Whether this object is the one being assembled for its fragment. */
bool sync_expects(const struct sync *s, uint8_t kind, uint32_t fragment, uint64_t version);
/* A chunk of any object arrived; `bytes` is its size. One that the worker has (again) counts too: the link is alive. */
void sync_on_chunk(struct sync *s, uint64_t bytes, bool again, uint64_t now_us);
/* The assembled prefix grew to `have` of `total` bytes. */
void sync_on_progress(struct sync *s, uint32_t fragment, uint64_t have, uint64_t total, uint64_t now_us);
/* The caller filled in bytes [from, to) of the object being assembled, 0 < from < to < total: `have` and requests skip
 * them. */
void sync_on_local_bytes(struct sync *s, uint32_t fragment, uint64_t from, uint64_t to);
/* The assembled object is corrupt: download it again from byte 0. */
void sync_on_damaged(struct sync *s, uint32_t fragment, uint64_t now_us);
/* A snapshot was loaded or computed: the fragment is at `version`. */
void sync_loaded(struct sync *s, uint32_t fragment, uint64_t version, uint64_t now_us);
enum sync_verdict {
    SYNC_NOT_MINE,
    SYNC_NAMED,       /* the update merged the delta in flight: commit it */
    SYNC_NAMED_LATER, /* it merged a later delta, made by an earlier process and not saved: the residual is stale */
};
/* An update was applied. `round` is the update's. named_round is the round for which it names this worker,
 * SYNC_NO_ROUND if it does not. */
enum sync_verdict sync_applied(struct sync *s, uint32_t fragment, uint64_t round, uint64_t named_round,
                               uint64_t now_us);

/* --- work --- */
/* Returns whether the task is new and accepted; false for a duplicate. */
bool sync_on_assign(struct sync *s, const struct msg_assign *m, uint64_t now_us);
/* The schedule of the run's rounds; config outlives `s`. */
void sync_set_schedule(struct sync *s, const struct config *config);
/* Begins the next segment, the first of a new round if none is in progress. */
void sync_train_begin(struct sync *s, uint64_t now_us);
/* Fills *segment with the steps and samples of the running segment. */
void sync_segment_task(const struct sync *s, struct msg_assign *segment);
/* The segment is trained. Afterwards the caller makes the deltas of the fragments that sync_is_sent names, and calls
 * sync_work_ready. */
void sync_segment_done(struct sync *s);
/* The sync point of the fragment is the step that the round has reached. */
bool sync_is_sent(const struct sync *s, uint32_t fragment);
/* The last delta of the round is made at the step that the round has reached; all of them are made. */
bool sync_is_last_sent(const struct sync *s);
bool sync_all_sent(const struct sync *s);
/* The running segment, or the beginning of the round that is wanted, ends with a sync point. *last_p: of the round's
 * last delta. */
bool sync_sends_next(const struct sync *s, bool *last_p);
/* The round has reached the apply point of the fragment. */
bool sync_is_applied(const struct sync *s, uint32_t fragment);
/* Continues a round after a restart: `step` steps of `task` are done. Call sync_work_ready afterwards. */
void sync_resume_round(struct sync *s, const struct msg_assign *task, uint32_t step);
/* Training ended without a delta (fault, interruption): READY again, at the same versions. */
void sync_train_abandon(struct sync *s, uint64_t now_us);
/* A save starts; sync_saved ends it, also if it failed. During a save:
 *   - the last byte of each delta is held back: no delta is merged that this worker could not send again;
 *   - the parameters stay unchanged: no update is applied, no training begins, the state is not READY. With overlap the
 *     save has a copy of them, and the worker goes on;
 *   - fragments start one after the other, each when the measured rate should have sent those before it. The last byte
 *     of a fragment then does not queue behind the whole next one. */
void sync_unsaved(struct sync *s, uint64_t now_us);
void sync_saved(struct sync *s, uint64_t now_us);
/* Estimated microseconds until the bytes that may be sent before sync_saved are delivered. UINT64_MAX: no credit yet, a
 * fragment is partly sent, or no byte is held back. */
uint64_t sync_held_back_us(const struct sync *s);
/* Offers payloads of a round, at a sync point or restored after a restart. bytes[n_fragments] are their sizes; 0: none
 * for this fragment now. */
void sync_work_ready(struct sync *s, uint64_t round, const uint64_t *bytes, uint64_t now_us);
void sync_on_credit(struct sync *s, const struct msg_credit *m, uint64_t now_us);
/* True: the delta in flight is refused; the caller rolls it back. */
bool sync_on_reject(struct sync *s, const struct msg_reject *m, uint64_t now_us);
/* Returns whether a delta can no longer be merged (its round closed, or was never assigned), and its fragment; the
 * caller rolls it back. */
bool sync_take_rollback(struct sync *s, uint32_t *fragment_p);

void sync_on_eval(struct sync *s, const struct msg_eval *m, uint64_t now_us);
void sync_eval_begin(struct sync *s, uint64_t now_us);
/* The piece is evaluated: the next one begins, or the answer is due. parts [msg_eval_parts of the piece], and their
 * loss_sum; NULL: not evaluated. */
void sync_eval_done(struct sync *s, double loss_sum, const struct wire_part *parts, uint64_t now_us);
void sync_on_done(struct sync *s, const struct msg_done *m, uint64_t now_us);

#endif
