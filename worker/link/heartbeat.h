/* What a heartbeat says, kept where two threads reach it: the compute thread writes progress, the link thread sends it.
 * That is how heartbeats go on while an inner step takes minutes. Every function locks; none blocks for long. */
#ifndef WORKER_HEARTBEAT_H
#define WORKER_HEARTBEAT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "wire/msg.h"

enum { HEARTBEAT_SILENT_US = 5000000 }; /* heartbeats are answered, one a second: this is no delay any more */

struct heartbeat {
    pthread_mutex_t lock;
    struct msg_heartbeat beat; /* sent_us is filled when it is taken */
    bool joined;               /* beat.session is valid: heartbeats are sent */
    bool changed;              /* state changed: send one at once */
    uint64_t every_us, next_us;
    uint64_t heard_us;               /* last message of the coordinator; 0 = none yet */
    uint64_t rtt_us;                 /* smoothed; 0 = not known */
    uint64_t acked_us;               /* sent_us of the last answer of this session; 0 = none yet */
    char waiting_for[WIRE_TEXT_MAX]; /* last answer: what the run waits for */
};

void heartbeat_init(struct heartbeat *p);
void heartbeat_finish(struct heartbeat *p);

/* Writers: the compute thread. */
void heartbeat_join(struct heartbeat *p, uint64_t session, uint32_t heartbeat_ms);
void heartbeat_leave(struct heartbeat *p); /* no session any more: stop sending */
/* Replace state, round, steps, eval_id and versions; any change of the state or of a version is sent at once. */
void heartbeat_set_state(struct heartbeat *p, enum worker_state state, uint64_t round, uint32_t steps, uint64_t eval_id,
                         uint32_t n_fragments, const uint64_t *versions);
/* `step` inner steps of this round are done, the last one in step_us. */
void heartbeat_set_step(struct heartbeat *p, uint32_t step, uint64_t step_us);

/* The link thread. */
/* True when a heartbeat is due at now_us: m is filled and the next one is scheduled. */
bool heartbeat_take(struct heartbeat *p, uint64_t now_us, struct msg *m);
/* When heartbeat_take will be due; UINT64_MAX: not before somebody changes the state. */
uint64_t heartbeat_deadline_us(struct heartbeat *p);
/* Anything arrived; for a HEARTBEAT_ACK also the round trip and what the run waits for. */
void heartbeat_on_message(struct heartbeat *p, const struct msg *m, uint64_t now_us);

/* Anybody. */
uint64_t heartbeat_rtt_us(struct heartbeat *p);
uint64_t heartbeat_heard_us(struct heartbeat *p);
/* When the newest heartbeat was sent that this session answered; 0: none. */
uint64_t heartbeat_acked_us(struct heartbeat *p);
/* What the run waits for, as the coordinator said last; empty when it has not answered for HEARTBEAT_SILENT_US. */
void heartbeat_waiting_for(struct heartbeat *p, uint64_t now_us, char out[WIRE_TEXT_MAX]);

#endif
