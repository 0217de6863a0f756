/* Sessions: connections of workers that have joined, with their last reports. Sessions are not part of the run's state.
 * A session ends with the process, after a silence, or when the same worker joins again. */
#ifndef COORDINATOR_SESSION_H
#define COORDINATOR_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "coordinator/outer/held.h"
#include "coordinator/round/download.h"
#include "coordinator/round/transfer.h"
#include "coordinator/round/upload.h"
#include "wire/msg.h"
#include "wire/path_watch.h"

#define SESSION_NO_MEMBER UINT32_MAX
#define SESSION_NO_PEER UINT64_MAX

/* The last delta of a fragment that this session delivered completely. Its worker keeps the bytes until an update names
 * the delta. */
struct session_own {
    uint64_t round;             /* round + 1; 0: none */
    uint64_t version, from, to; /* bytes [from, to) of update `version` relay it; version 0: no update does */
};

/* Sums over the reported steps of a round whose learning rate is known. */
struct session_rates {
    uint64_t round;
    double lr, position;
    uint32_t n;
};

/* Means over a finished round. */
struct session_rate {
    bool known;
    uint64_t round;
    double lr, position;
};

struct session {
    uint64_t id; /* random, except for its last 16 bits: its slot + 1; 0: the slot is free */
    uint8_t uuid[WIRE_UUID];
    char name[WIRE_NAME_MAX];
    char devices[WIRE_NAME_MAX]; /* its devices, from JOIN */
    bool evaluates;              /* it has validation data */
    uint32_t member;             /* member id; SESSION_NO_MEMBER before the first round (session_seat) */
    uint64_t control, bulk;      /* peers; SESSION_NO_PEER: not connected (session_bind) */
    uint64_t joined_us, heard_us;
    uint64_t moved_us; /* time of its last progress: a new state, a new step, or bytes of a delta */
    uint64_t idle_us;  /* since then the worker has delivered no delta: its last one, or the time it took a place */
    bool greeted;      /* HELLO came on its connection since it joined: the next JOIN is another one */
    uint64_t before;   /* id of the session it replaced; 0: none */
    uint32_t times;    /* number of short-lived sessions in a row before this one */
    struct msg_heartbeat last;        /* zeros before the first heartbeat */
    struct msg_saves saves;           /* zeros: it did not say how often it saves */
    bool beating;                     /* a heartbeat has arrived */
    bool silent;                      /* its silence was logged */
    bool closed;                      /* its control connection is closed, and no message has arrived since */
    bool flooded;                     /* closed for its messages: it loses its place at the next tick */
    uint64_t probe_us;                /* time of the next probe while it is silent; 0: none was sent */
    uint64_t ready_us;                /* ready for work since then; 0: not ready */
    uint64_t step_round, step_tokens; /* the round of its reported steps, and their tokens */
    uint32_t last_step;               /* the last reported step of that round */
    struct session_rates rates;       /* of the running round */
    struct session_rate rate;         /* of the last round whose last step was reported */
    uint32_t share;                   /* the share of an evaluation that it got last */
    uint64_t eval_passed;             /* serial of the evaluation in which it returned a share, or was late */
    uint64_t eval_late;               /* id of the EVAL that it has not answered in time; 0: none */
    uint64_t strange, strange_us;     /* ignored step records not logged yet; time of the last line, 0: never */
    uint64_t skips, skips_logged_us;  /* skipped steps not logged yet; time of the last log line, 0: never */
    struct transfer up, down;         /* its delta; the objects that it downloads */
    struct path_watch path_up, path_down;
    bool path_stuck;                   /* the path drops large packets */
    uint64_t up_from_us, down_from_us; /* the first OFFER of its round; the publication of an update that it lacks; 0 */
    uint64_t up_us, down_us;           /* the last transfers took this long; 0: not measured */
    uint32_t aged;           /* snapshots in a row that were out of reach again when the worker had loaded them */
    uint64_t renew_us;       /* when it gets a newer one; 0: it needs none */
    uint64_t data_hashes[2]; /* of all training and validation tokens; 0: not known yet */
    struct download download;
    struct upload *uploads;  /* [n_fragments], owned (session_upload) */
    struct session_own *own; /* [n_fragments], owned */
};

/* Finds a slot by a number: a hash table whose chains run through `next`. Slots are counted from 1; 0: none. */
struct session_index {
    uint32_t *heads, *next; /* [n_heads], [cap + 1] */
    uint64_t *keys;         /* [cap + 1] */
    uint32_t n_heads;
};

enum { SESSIONS_MAX = (1 << 16) - 1 };

struct session_table {
    struct session *sessions; /* [cap] */
    uint32_t cap, n_fragments, words;
    uint64_t changes;           /* sessions added and removed so far */
    struct upload_pool uploads; /* the credit of all sessions */
    struct held *held;          /* borrowed; NULL: all uploads are spooled */
    struct session_index by_member, by_bulk;
    uint64_t *to_serve; /* [words] bits of the slots that may have something to send */
    uint64_t *spooled;  /* [n_fragments][words] bits of the spool's slots in use */
};

enum status session_table_init(struct session_table *t, uint32_t cap, uint32_t n_fragments) MUST_CHECK;
void session_table_finish(struct session_table *t);
/* True: no slot is free. */
bool session_table_full(const struct session_table *t);
/* Makes a free slot a session; its id is `random` with the number of the slot. NULL: no free slot, or no memory. */
struct session *session_add(struct session_table *t, uint64_t random);
void session_remove(struct session_table *t, struct session *s);
/* The session after s; s NULL: the first. NULL: none. s may have been removed. */
struct session *session_next(const struct session_table *t, const struct session *s);
/* NULL: not found; the same below. */
struct session *session_by_id(const struct session_table *t, uint64_t id);
struct session *session_by_uuid(const struct session_table *t, const uint8_t uuid[WIRE_UUID]);
/* The session that replaced `id`. */
struct session *session_after(const struct session_table *t, uint64_t id);
struct session *session_by_name(const struct session_table *t, const char *name);
struct session *session_by_member(const struct session_table *t, uint32_t member);
struct session *session_by_bulk(const struct session_table *t, uint64_t peer);
/* Sets s->member, and s->bulk. */
void session_seat(struct session_table *t, struct session *s, uint32_t member);
void session_bind(struct session_table *t, struct session *s, uint64_t peer);

/* Starts an upload in memory, and in the first free slot of the spool, whose size then follows the number of
 * simultaneous uploads of a fragment. A running upload keeps its place and slot. */
struct upload *session_upload(struct session_table *t, struct session *s, const struct msg_offer *offer);
/* Ends an upload and frees its place and slot. */
void session_upload_drop(struct session_table *t, uint32_t fragment, struct upload *u);

/* The session may have something to send, or nothing any more. */
void session_serve(struct session_table *t, const struct session *s, bool serve);
/* As session_next, over these sessions only. */
struct session *session_next_to_serve(const struct session_table *t, const struct session *s);

const char *session_state_name(uint8_t state);

#endif
