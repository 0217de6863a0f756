/* Admission: which connection may send, which worker may join, take work, evaluate and keep its place.
 *
 * - Questions change nothing. A function that refuses sends REFUSE with a reason and logs it; it returns OK or false.
 * - Times are microseconds of the caller's clock. `m` and `s` may be NULL only where a comment says so.
 * - The keys themselves: coordinator/admission/roster.h. Buckets of messages: coordinator/limits/rate.h.
 *
 * A part calls only parts further down in this list.
 *
 *     admission_limits.c    which messages are read, and how many
 *     admission_access.c    keys, names, ENROL
 *     admission_places.c    whose place a new worker gets
 *     admission_presence.c  heard, silent, ready; the time until an eviction
 *     admission_gate.c      workers whose deltas are clipped or refused
 *     admission_late.c      workers that lack updates
 *     admission_record.c    the MEMBER record */
#ifndef COORDINATOR_ADMISSION_H
#define COORDINATOR_ADMISSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "coordinator/ledger/record.h"
#include "wire/msg.h"
#include "wire/transport.h"

struct engine;
struct session;
struct member;
struct round_close;

/* --- messages (admission_limits.c, admission_access.c) --- */
enum admission_verdict {
    ADMISSION_ADMIT,
    ADMISSION_IGNORE, /* above a limit: the message gets no answer */
    ADMISSION_CLOSE   /* far above it, or refused because of that: the caller closes the connection */
};

/* Whether to read the encoded message data[size], before it is decoded. who > 0: whose limits count, a number for each
 * worker's key or for each connection. */
enum admission_verdict admission_message(struct engine *engine, uint64_t who, uint64_t peer, enum wire_lane lane,
                                         const uint8_t *data, size_t size, uint64_t now_us) MUST_CHECK;
/* The message admitted last does not decode: refuses it, within the limit for such messages. */
enum admission_verdict admission_malformed(struct engine *engine, uint64_t peer, enum wire_lane lane,
                                           const struct err *why, uint64_t now_us) MUST_CHECK;

/* Computes the limits from the run's model and settings. */
void admission_limits_size(struct engine *e);
/* A worker joined: allows the messages of its download of snapshots and updates. */
void admission_limits_grant(struct engine *e, const struct msg_welcome *m, const struct msg_join *join);
/* Logs ignored messages and repeated events, once a second. */
void admission_limits_report(struct engine *e);
uint64_t admission_limits_deadline_us(const struct engine *e); /* when it has something to log; UINT64_MAX: never */
void admission_probe(struct engine *e, uint64_t peer, const struct msg_probe *m);

#define ADMISSION_REVOKED_TEXT "the operator of this run has revoked the key of this worker"
/* The key of this connection may send this message. Otherwise the message is refused and the connection closed. */
bool admission_may_send(struct engine *e, uint64_t peer, const struct msg *m);
void admission_enrol(struct engine *e, uint64_t peer, const struct msg_enrol *m);

/* --- joining (admission_access.c, admission_places.c) --- */
/* Refuses a worker whose name is taken, whose folder is a copy, or whose key has another name. True: it was refused. */
bool admission_refuses(struct engine *e, uint64_t peer, const uint8_t uuid[WIRE_UUID], const char *name);
/* Makes a session and a place for a worker that joins. If all sessions are taken, it ends the session that has
 * delivered nothing for longest, if that is longer than the limit. *room_p false: none qualifies, and the worker was
 * refused. */
enum status admission_make_room(struct engine *e, uint64_t peer, const struct msg_join *m, bool *room_p,
                                struct err *err) MUST_CHECK;

/* --- taking part (admission_presence.c) --- */
enum admission_what {
    ADMISSION_WORK,     /* take an assignment now */
    ADMISSION_EVALUATE, /* take a share of an evaluation now */
    ADMISSION_STAY,     /* keep its session: it is neither silent for too long nor closed for its messages */
};
/* The worker of this session may do that. */
bool admission_may(const struct engine *e, const struct session *s, enum admission_what what);
/* Notes that a message of the session's worker arrived, on any lane. */
void admission_hear(struct engine *e, struct session *s);
bool admission_is_silent(const struct engine *e, const struct session *s);
/* At least one worker is connected and sends messages, or tries to join. Otherwise no eviction time runs: no worker
 * waits, and those of a run that was stopped overnight start one after the other. */
bool admission_anyone_here(const struct engine *e);
/* Recomputes whether the member can take work; called after a change of work, evaluation or state. */
void admission_refresh_ready(struct engine *e, struct session *s);
/* Silence after which the member of this session is evicted; s NULL: it has no session. Half of the usual limit if its
 * connection closed: its process ended, and a restart takes a few seconds. coordinator.evict_after_s sets both. */
uint64_t admission_evict_after_us(const struct engine *e, const struct session *s);
/* The rule behind that limit, for log lines; it names coordinator.evict_after_s. */
const char *admission_evict_rule(const struct engine *e, const struct session *s);
/* Gives a member that was put aside work again. */
enum status admission_readmit(struct engine *e, struct member *m, struct err *err) MUST_CHECK;

/* --- aside (admission_gate.c) --- */
/* The member's last deltas were refused: it gets no work until an hour has passed, or the operator readmits it. */
bool admission_is_aside(const struct engine *e, const struct member *m);
/* Writes "put aside for 3600 s after 3 refused deltas: REASON"; returns out. */
const char *admission_aside_text(const struct engine *e, const struct member *m, char *out, size_t cap);
/* Compares the norms of the deltas that `close` merges, and names workers that are clipped round after round. */
void admission_gate(struct engine *e, const struct round_close *close);

/* --- late (admission_late.c) --- */
/* An update exists that the worker has not applied yet, by its last heartbeat. */
bool admission_lacks_update(const struct engine *e, const struct session *s);

struct admission_lack {
    uint64_t updates, bytes; /* updates of the fragment that lacks most; bytes of all fragments */
};

/* What is missing at versions[n] of the first n fragments. */
struct admission_lack admission_lack_of(const struct engine *e, const uint64_t *versions, uint32_t n);
/* The median time of a round; before it is known, the time that the running one takes already. */
uint64_t admission_usual_round_us(const struct engine *e);
/* The worker has no part in the rounds, and lacks more updates than it can load while one round runs. */
bool admission_is_late(const struct engine *e, const struct session *s);
/* Writes "80 updates behind, 9 min 12 s at 1 Mbit/s; a round takes 300 ms: this link cannot keep up"; returns out. */
const char *admission_late_text(const struct engine *e, const struct session *s, char *out, size_t cap);

/* --- places in the journal (admission_record.c) --- */
/* Journals that an active member loses its place. what: LEAVE or EVICT. No effect after the end of the run. */
enum status admission_lose_place(struct engine *e, enum record_member_what what, const struct member *m,
                                 struct err *err) MUST_CHECK;
/* Journals that a member joins, leaves or is evicted. */
enum status admission_write_member(struct engine *e, enum record_member_what what, uint32_t id,
                                   const uint8_t uuid[WIRE_UUID], const char *name, struct err *err) MUST_CHECK;

#endif
