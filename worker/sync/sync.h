/* The worker's half of the protocol as a pure machine: events and the time go in, decisions come out. No sockets,
 * threads, clock or allocation; no floats either: it knows versions, offsets and deadlines, and whoever owns the bytes
 * (worker/outer/outer_loop.c) tells it what became of them.
 *
 * Two things run side by side. The *connection* (enum sync_phase) goes HELLO -> CONFIGURING -> JOINING -> JOINED, and
 * back to HELLO whenever the coordinator does not know the session any more. The *work* (enum worker_state) keeps its
 * state through that: a worker whose coordinator restarts goes on training and offers its delta to the new one.
 *
 *     CATCHING_UP -> READY -> TRAINING -> SENDING -> WAITING -> READY ... FINISHED
 *                      \-> EVALUATING -> READY
 *
 * Events are functions. What to do follows from the state: call sync_poll until it says that nothing is due, sync_apply
 * until no object is ready, and sleep until sync_deadline_us. Everything that was sent is sent again after silence; a
 * duplicate, lost or late message changes nothing that matters. docs/protocol.md says what the messages mean. */
#ifndef WORKER_SYNC_H
#define WORKER_SYNC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/msg.h"
#include "worker/sync/sync_rate.h"

enum {
    SYNC_CHUNK = 256 << 10,    /* payload bytes of one CHUNK we send: 2 s at 1 Mbit/s */
    SYNC_WINDOW = 4 << 20,     /* bytes asked for and not yet here, all fragments together */
    SYNC_GETS_MAX = 8,         /* fragments with an open GET */
    SYNC_CONNECT_US = 1000000, /* HELLO and JOIN are sent again after this, then later and later */
    SYNC_DROPS_MAX = 5,
    SYNC_NAME_US = 90000000, /* a name that is still taken after this is another worker's */
};

#define SYNC_NO_ROUND UINT64_MAX
#define SYNC_FAILED_HERE UINT16_MAX /* `refused`: not by the coordinator */

enum sync_phase {
    SYNC_HELLO,       /* HELLO is sent until CONFIG comes */
    SYNC_CONFIGURING, /* the owner builds model and data; then sync_configured */
    SYNC_JOINING,     /* JOIN is sent until WELCOME comes */
    SYNC_JOINED,
    SYNC_STOPPED, /* left, finished or refused for good */
};

enum sync_upload {
    SYNC_UPLOAD_NONE,
    SYNC_UPLOAD_OFFERED,   /* OFFER sent, no credit yet */
    SYNC_UPLOAD_SENDING,   /* chunks go out under credit */
    SYNC_UPLOAD_DELIVERED, /* the coordinator holds all of it */
    SYNC_UPLOAD_NAMED,     /* an update named it: merged */
    SYNC_UPLOAD_REJECTED,
};

struct sync_fragment {
    uint64_t version; /* applied */

    /* Download of the next object: update version + 1, or a snapshot while `loading`. */
    bool loading;
    bool complete;             /* assembled, not applied yet */
    uint64_t target;           /* newest version known to exist */
    uint64_t get_version;      /* of the object */
    uint64_t snapshot_hash;    /* of the snapshot that is being loaded, or was loaded last */
    uint64_t have, total;      /* bytes; total 0: not known */
    uint64_t usual;            /* bytes of the update before: what the next one is expected to have */
    uint64_t requested;        /* end of what the open GET asks for; 0: none open */
    uint64_t own_from, own_to; /* bytes of the object that are not waited for; 0, 0: none */
    uint64_t get_at, get_wait; /* when to ask again; current back-off */

    /* Upload of this round's delta. */
    enum sync_upload upload;
    bool passed;                /* an update of this round or a later one did not name it */
    bool lost;                  /* delivered, and passed all the same: will never be merged */
    bool probing;               /* offered again after silence: if still only `probe` is held, the rest was lost */
    uint64_t bytes, held, upto; /* payload size; what the coordinator has; what it allows */
    uint64_t sent, probe;       /* bytes given to the transport */
    uint64_t up_at, up_wait;    /* when to offer again */
};

struct sync_eval {
    bool pending, running;
    bool answer;                   /* EVAL_RESULT is to be sent */
    struct msg_eval task;          /* pending, running or answered last */
    struct msg_eval_result result; /* of the last one; eval_id 0: none */
};

struct sync {
    enum sync_phase phase;
    enum worker_state state;
    bool async;           /* policy: start from these versions *or later*; updates are applied during training */
    bool holds;           /* every fragment is at a version of the log */
    uint32_t n_fragments; /* 0 until configured */
    uint32_t worker_id;   /* UINT32_MAX: not known yet */
    uint64_t session;
    uint64_t jitter;               /* from the uuid: spreads the retries of many workers */
    uint64_t retry_at, retry_wait; /* of HELLO or JOIN */
    uint64_t joined_at;
    uint64_t name_since; /* since when its name is refused; 0: it is not */
    uint64_t rtt_us;
    struct sync_rate up, down;
    uint64_t blocked_until; /* the bulk queue was full */
    uint32_t drops;         /* times everything was dropped since the last merged delta */
    bool bind_due;

    uint64_t round;      /* being trained, sent or waited for; SYNC_NO_ROUND: none */
    uint64_t last_round; /* last one that ended; SYNC_NO_ROUND: none */
    bool last_again;     /* without a barrier: it may be assigned again: it was refused, or another session began */
    bool has_task;       /* `task` is accepted and not yet trained */
    struct msg_assign task;
    struct sync_eval eval;

    bool unsaved;        /* the state that the deltas belong to is not on disk yet */
    uint64_t unsaved_us; /* since when */

    bool done, finished; /* DONE came; LEAVE(finished) to be sent */
    bool leave_due;
    uint16_t refused;         /* code that stopped it, or SYNC_FAILED_HERE; 0: none */
    char text[WIRE_TEXT_MAX]; /* why it stopped, or the last refusal that is being retried */
    struct sync_fragment f[LAYOUT_FRAGMENTS_MAX];
};

enum sync_action_type {
    SYNC_SEND_HELLO,
    SYNC_SEND_JOIN,
    SYNC_SEND_BIND,
    SYNC_SEND_OFFER,       /* fragment */
    SYNC_SEND_CHUNK,       /* fragment, offset, length: bytes of the payload */
    SYNC_SEND_GET,         /* fragment, kind, version, offset, length */
    SYNC_SEND_EVAL_RESULT, /* eval.result */
    SYNC_SEND_LEAVE,       /* finished */
};

struct sync_action {
    enum sync_action_type type;
    uint32_t fragment;
    uint8_t kind; /* enum object_kind */
    uint64_t version, offset, length;
};

void sync_init(struct sync *s, uint64_t jitter, uint64_t now_us);

/* The next message to send now, if any. It counts as sent; for a chunk that the transport did not take call
 * sync_blocked. */
bool sync_poll(struct sync *s, uint64_t now_us, struct sync_action *a);
void sync_blocked(struct sync *s, const struct sync_action *a, uint64_t now_us);
/* Earliest time at which sync_poll has something; UINT64_MAX: not before an event. */
uint64_t sync_deadline_us(const struct sync *s);
/* A fragment whose assembled object may be applied now: apply it and call sync_applied (or sync_loaded). False: none.
 * Updates wait while the parameters are in use (barrier: training; a save) and while an evaluation needs this version.
 */
bool sync_apply(const struct sync *s, uint32_t *fragment_p);
/* Training begins with sync_train_begin, not with the assignment. */
bool sync_wants_training(const struct sync *s);
bool sync_wants_eval(const struct sync *s);
/* What it waits for, for people; "" while it has work. */
void sync_waits_for(const struct sync *s, char *out, size_t cap);

/* --- connection --- */
/* CONFIG came. True: new to us, the owner prepares and calls sync_configured; false: a duplicate. */
bool sync_on_config(struct sync *s, uint64_t now_us);
/* Model and data are ready; JOIN follows. versions[n_fragments]: those of the saved state, NULL: nothing is held (both
 * are ignored at a rejoin, where what it holds is known). */
void sync_configured(struct sync *s, bool async, uint32_t n_fragments, const uint64_t *versions, uint64_t now_us);
/* True: a new session began. When it does not resume, all work is dropped and every fragment is `loading` its snapshot:
 * the owner drops its payloads and residuals, and may call sync_loaded for what it can make itself. What a session
 * before loaded of the same snapshot is kept: fragments that are not `loading`, and bytes of those that are. */
bool sync_on_welcome(struct sync *s, const struct msg_welcome *w, uint64_t now_us);
/* May start the handshake again, wait, or stop for good (phase SYNC_STOPPED, `refused`, `text`). */
void sync_on_refuse(struct sync *s, const struct msg_refuse *m, uint64_t now_us);
/* Forget the session and say HELLO again, keeping the work. */
void sync_rejoin(struct sync *s, uint64_t now_us);
/* Same, and the work with it: everything is loaded again (a hash did not match), each time a little later, and after
 * SYNC_DROPS_MAX times without a merged delta in between not at all. */
void sync_drop(struct sync *s, uint64_t now_us);
/* Stop: LEAVE is sent once if there is a session. */
void sync_leave(struct sync *s, const char *text, uint64_t now_us);
/* The run cannot go on here. */
void sync_fail(struct sync *s, const char *text);
void sync_set_rtt(struct sync *s, uint64_t rtt_us);

/* --- objects --- */
/* Where a chunk of this object would go: true when it is the one being assembled. */
bool sync_expects(const struct sync *s, uint8_t kind, uint32_t fragment, uint64_t version);
/* A chunk of so many bytes came, of whatever object: a copy of what is here already is a sign of life, too. */
void sync_on_chunk(struct sync *s, uint64_t bytes, uint64_t now_us);
/* The assembled prefix grew to `have` of `total` bytes. */
void sync_on_progress(struct sync *s, uint32_t fragment, uint64_t have, uint64_t total, uint64_t now_us);
/* Bytes [from, to) of the object being assembled are in place without the network, 0 < from and to < total: `have`
 * skips them, and so do requests. */
void sync_on_local_bytes(struct sync *s, uint32_t fragment, uint64_t from, uint64_t to);
/* The assembled object was useless: ask for it again from its start. */
void sync_on_damaged(struct sync *s, uint32_t fragment, uint64_t now_us);
/* A snapshot was loaded (or made): the fragment is at `version`. */
void sync_loaded(struct sync *s, uint32_t fragment, uint64_t version, uint64_t now_us);
enum sync_verdict {
    SYNC_NOT_MINE,
    SYNC_NAMED,       /* the delta in flight was merged: commit it */
    SYNC_NAMED_LATER, /* a later delta of this worker, of a life that was not saved: its residual is not ours */
};
/* An update was applied. `round` is the update's; named_round is the round under which it names this worker,
 * SYNC_NO_ROUND when it does not. */
enum sync_verdict sync_applied(struct sync *s, uint32_t fragment, uint64_t round, uint64_t named_round,
                               uint64_t now_us);

/* --- work --- */
/* True when it was taken (a repetition of the task in hand: false). */
bool sync_on_assign(struct sync *s, const struct msg_assign *m, uint64_t now_us);
void sync_train_begin(struct sync *s, uint64_t now_us);
/* Training ended without a delta (fault, interruption): back to READY at the same versions. */
void sync_train_abandon(struct sync *s, uint64_t now_us);
/* The state of this worker is being saved, from here to sync_saved (or to where that failed): the last byte of each
 * delta stays here, so that nothing is merged that this worker could not send again, and the parameters stay as they
 * are: no update is applied, no training begins, and it is not READY. Fragments begin one after the other, each when
 * the rate of the last rounds has those before it through, so that the last byte of one need not wait for all of the
 * next. */
void sync_unsaved(struct sync *s, uint64_t now_us);
void sync_saved(struct sync *s, uint64_t now_us);
/* What may go of the deltas before sync_saved needs about so many microseconds more; UINT64_MAX: it is not under way
 * yet, a fragment is only partly handed over, or nothing is held back. */
uint64_t sync_held_back_us(const struct sync *s);
/* Payloads are ready: offer them. bytes[n_fragments]. Also after a restart with saved payloads. A fragment with 0 bytes
 * was settled before. */
void sync_work_ready(struct sync *s, uint64_t round, const uint64_t *bytes, uint64_t now_us);
void sync_on_credit(struct sync *s, const struct msg_credit *m, uint64_t now_us);
/* True: the delta in flight is refused, roll it back. */
bool sync_on_reject(struct sync *s, const struct msg_reject *m, uint64_t now_us);
/* A delivered delta that an update of its round passed over (it cannot be merged any more): roll it back. */
bool sync_take_rollback(struct sync *s, uint32_t *fragment_p);

void sync_on_eval(struct sync *s, const struct msg_eval *m, uint64_t now_us);
void sync_eval_begin(struct sync *s, uint64_t now_us);
void sync_eval_done(struct sync *s, double loss_sum, uint64_t tokens, uint64_t now_us);
void sync_on_done(struct sync *s, const struct msg_done *m, uint64_t now_us);

#endif
