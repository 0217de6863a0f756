/* The step records of METRICS, from the step to the moment when the coordinator surely has them in its file. What went
 * into a connection that was dead already, or to a coordinator that was killed or stopped, is sent again to the session
 * that follows; a coordinator knows a record that it has (coordinator/report/steps_there.h).
 *
 * Sure is what was sent STEP_LOG_SAFE_US before a heartbeat that was answered: messages of a connection stay in order,
 * and a coordinator keeps records back for less time than that. One thread. */
#ifndef WORKER_STEP_LOG_H
#define WORKER_STEP_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/msg.h"

/* Records held at most, the newest: more than most rounds have steps, which is what a worker trains alone. */
enum { STEP_LOG_MAX = 4096, STEP_LOG_SAFE_US = 5000000 };

/* Seconds of a round (worker/outer/outer_loop.h), told with the step that was the newest then. round UINT64_MAX: none. */
struct step_times {
    uint64_t round;
    float compute_s, compress_s, send_s, wait_s, apply_s;
};

struct step_record {
    struct metrics_step step;
    struct step_times times;
    uint64_t sent_us;
};

/* Zeros: empty. Places count on for ever; place p is records[p % STEP_LOG_MAX]. first <= next <= end. */
struct step_log {
    uint64_t first, next, end; /* kept from, to be sent from, to */
    uint64_t fresh;            /* from here on no record was ever sent */
    uint64_t lost;             /* there was no room to keep them, and they may be missing */
    /* Sent, the last of them then, and there was no room to keep them until it is sure that they arrived. */
    uint64_t dropped, dropped_us;
    struct step_record records[STEP_LOG_MAX];
};

/* When it is full the oldest record goes. */
void step_log_add(struct step_log *log, const struct metrics_step *step);
/* Tell these with the newest record; false: there is none that was not sent before. */
bool step_log_times(struct step_log *log, const struct step_times *times);
/* Records that are to be sent. */
uint64_t step_log_waiting(const struct step_log *log);
/* Put the next of them, as many as one message takes, into m->steps, and the times told with the last of these. */
void step_log_batch(const struct step_log *log, struct msg_metrics *m);
/* The first n of them were sent. */
void step_log_sent(struct step_log *log, uint32_t n, uint64_t now_us);
/* A heartbeat sent at acked_us was answered. */
void step_log_acked(struct step_log *log, uint64_t acked_us);
/* Another session or another connection, and messages may be lost: all that is kept is to be sent. */
void step_log_again(struct step_log *log);

#endif
