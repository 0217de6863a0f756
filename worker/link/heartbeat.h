/* The content of heartbeats, shared by two threads: the compute thread writes progress, the link thread sends it.
 * Heartbeats therefore continue while an inner step takes minutes. Every function locks; none blocks for long. */
#ifndef WORKER_HEARTBEAT_H
#define WORKER_HEARTBEAT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "wire/msg.h"

/* SILENT: without an answer for this long, the coordinator is not answering: it acknowledges one heartbeat per second.
 * LOST: without an answer for this long, or LOST_RTTS round trips, the connection is closed and opened again. The limit
 * doubles with each such attempt, up to LOST_MAX. */
enum {
    HEARTBEAT_SILENT_US = 5000000,
    HEARTBEAT_LOST_US = 20000000,
    HEARTBEAT_LOST_RTTS = 8,
    HEARTBEAT_LOST_MAX_US = 120000000,
};

struct heartbeat {
    pthread_mutex_t lock;
    struct msg_heartbeat beat;  /* heartbeat_take fills sent_us */
    bool joined;                /* beat.session is valid: send heartbeats */
    bool changed;               /* state or versions changed: send one now */
    uint64_t every_us, next_us; /* interval; time of the next heartbeat */
    uint64_t heard_us;          /* time of the coordinator's last message; 0: none yet */
    uint64_t rtt_us;            /* smoothed round trip; 0: unknown */
    uint64_t busy_us;           /* time of the last answer that names no heartbeat: earlier ones were not read then */
    uint64_t dialled_rtt_us;    /* round trip of the newest connection, until rtt_us is known; 0: unknown */
    uint64_t alive_us;          /* time of the last answer that was expected, or of the last redial; 0: no wait yet */
    uint32_t redials;           /* without an answer since */
    uint64_t acked_us;          /* sent_us of this session's last HEARTBEAT_ACK; 0: none yet */
    char waiting_for[WIRE_TEXT_MAX]; /* from the last HEARTBEAT_ACK: what the run waits for */
};

void heartbeat_init(struct heartbeat *p);
void heartbeat_finish(struct heartbeat *p);

/* --- compute thread ----------------------------------------------------------------------------------------------- */
/* A session began: send heartbeats every heartbeat_ms. */
void heartbeat_join(struct heartbeat *p, uint64_t session, uint32_t heartbeat_ms);
/* The session ended: stop sending. */
void heartbeat_leave(struct heartbeat *p);
/* Replaces state, round, steps, eval_id and versions[n_fragments]. A change of state, round, eval_id or versions is
 * sent immediately. */
void heartbeat_set_state(struct heartbeat *p, enum worker_state state, uint64_t round, uint32_t steps, uint64_t eval_id,
                         uint32_t n_fragments, const uint64_t *versions);
/* Replaces the progress and the rate of downloads, which the next heartbeat reports. */
void heartbeat_set_received(struct heartbeat *p, uint64_t received, uint64_t expected, uint64_t rate);
/* `step` inner steps of this round are done; the last one took step_us. */
void heartbeat_set_step(struct heartbeat *p, uint32_t step, uint64_t step_us);

/* A region: the next assignment is for so many workers. */
void heartbeat_set_workers(struct heartbeat *p, uint32_t workers);

/* Hashes of all training and validation tokens; any thread may call it. */
void heartbeat_set_data(struct heartbeat *p, uint64_t train_hash, uint64_t val_hash);

/* --- link thread -------------------------------------------------------------------------------------------------- */
/* Returns whether a heartbeat is due at now_us; if so, fills *m and schedules the next one. */
bool heartbeat_take(struct heartbeat *p, uint64_t now_us, struct msg *m);
/* When heartbeat_take is due next; UINT64_MAX: there is no session. */
uint64_t heartbeat_deadline_us(struct heartbeat *p);
/* A message arrived; m NULL: not decoded by this thread. HEARTBEAT_ACK updates round trip and waiting_for. */
void heartbeat_on_message(struct heartbeat *p, const struct msg *m, uint64_t now_us);

/* A connection opened, with this round trip (0: unknown): the coordinator gets its time to answer. */
void heartbeat_connected(struct heartbeat *p, uint64_t rtt_us, uint64_t now_us);
/* Returns 0, or how long the coordinator has not answered if that is too long: the caller then closes the connection.
 * With a session only HEARTBEAT_ACK is an answer, otherwise any message. */
uint64_t heartbeat_lost_us(struct heartbeat *p, uint64_t now_us);

/* --- any thread --------------------------------------------------------------------------------------------------- */
/* Members of the same name. */
uint64_t heartbeat_rtt_us(struct heartbeat *p);
uint64_t heartbeat_heard_us(struct heartbeat *p);
bool heartbeat_joined(struct heartbeat *p);
/* Send time of the newest heartbeat that this session acknowledged; 0: none. */
uint64_t heartbeat_acked_us(struct heartbeat *p);
/* What the run waits for, by the last HEARTBEAT_ACK; "" if no message arrived for HEARTBEAT_SILENT_US. */
void heartbeat_waiting_for(struct heartbeat *p, uint64_t now_us, char out[WIRE_TEXT_MAX]);

#endif
