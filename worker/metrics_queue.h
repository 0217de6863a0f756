/* The step records of METRICS, from the step to the moment when the coordinator surely has them in its file. What went
 * into a connection that was dead already, or to a coordinator that was killed or stopped, is sent again to the session
 * that follows; a coordinator knows a record that it has (coordinator/report/steps_there.h).
 *
 * Sure is what was sent METRICS_QUEUE_SAFE_US before a heartbeat that was answered: messages of a connection stay in
 * order, and a coordinator keeps records back for less time than that. One thread. */
#ifndef WORKER_METRICS_QUEUE_H
#define WORKER_METRICS_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/msg.h"

/* Records held at most, the newest: more than most rounds have steps, which is what a worker trains alone. */
enum { METRICS_QUEUE_MAX = 4096, METRICS_QUEUE_SAFE_US = 5000000 };

/* Seconds of a round (worker/outer/outer_loop.h), told with the step that was the newest then. round UINT64_MAX: none.
 */
struct step_times {
    uint64_t round;
    float compute_s, compress_s, send_s, wait_s, apply_s;
};

struct step_record {
    struct metrics_step step;
    struct step_times times;
    uint64_t sent_us;
};

/* Zeros: empty. Places count on for ever; place p is records[p % METRICS_QUEUE_MAX]. first <= next <= end. */
struct metrics_queue {
    uint64_t first, next, end; /* kept from, to be sent from, to */
    uint64_t fresh;            /* from here on no record was ever sent */
    uint64_t lost;             /* there was no room to keep them, and they may be missing */
    /* Sent, the last of them then, and there was no room to keep them until it is sure that they arrived. */
    uint64_t dropped, dropped_us;
    struct step_record records[METRICS_QUEUE_MAX];
};

/* When it is full the oldest record goes. */
void metrics_queue_add(struct metrics_queue *log, const struct metrics_step *step);
/* Tell these with the newest record; false: there is none that was not sent before. */
bool metrics_queue_times(struct metrics_queue *log, const struct step_times *times);
/* Records that are to be sent. */
uint64_t metrics_queue_waiting(const struct metrics_queue *log);
/* Put the next of them, as many as one message takes, into m->steps, and the times told with the last of these. */
void metrics_queue_batch(const struct metrics_queue *log, struct msg_metrics *m);
/* The first n of them were sent. */
void metrics_queue_sent(struct metrics_queue *log, uint32_t n, uint64_t now_us);
/* A heartbeat sent at acked_us was answered. */
void metrics_queue_acked(struct metrics_queue *log, uint64_t acked_us);
/* Another session or another connection, and messages may be lost: all that is kept is to be sent. */
void metrics_queue_again(struct metrics_queue *log);

#endif
