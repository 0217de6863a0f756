/* Internals of the worker's session, shared by its files only:
 *   worker_session.c   the connection and the outer loop
 *   session_reason.c   why a join cannot succeed
 *   session_address.c  the coordinator's address
 *   session_metrics.c  step records and METRICS
 *   session_pump.c     the exchange while the host computes */
#ifndef WORKER_SESSION_SESSION_IMPL_H
#define WORKER_SESSION_SESSION_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "worker/link/link.h"
#include "worker/outer/state_dir.h"
#include "worker/session/worker_session.h"

enum { STEP_QUEUE_MAX = 4096 };

/* Step records for METRICS. Record p is records[p % STEP_QUEUE_MAX]; first <= next <= end <= first + STEP_QUEUE_MAX. */
struct step_queue {
    uint64_t first;   /* oldest record that is not acknowledged */
    uint64_t next;    /* oldest record that is not sent */
    uint64_t end;     /* one past the newest record */
    uint64_t sent_us; /* when the last message was sent */
    uint64_t lost;    /* records dropped unsent, not yet logged */
    struct {
        struct metrics_step step;
        uint64_t done_us;
    } records[STEP_QUEUE_MAX];
};

/* A thread that has the session while the host computes. */
struct session_pump {
    pthread_t thread;
    bool started, failed; /* failed: no thread was available */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    atomic_bool computing; /* from worker_session_compute to worker_session_computed: the pump may take the session */
    bool busy;             /* the pump has it */
    bool stop;
};

struct worker_session {
    struct worker_session_options *options;
    struct state_dir dir;
    struct outer_loop *loop;
    struct link *volatile link; /* NULL: closed, or not yet dialled; a signal handler reads it */
    char join[JOIN_LINE_MAX];   /* where the link was dialled */
    struct err host_err;        /* error of on_config */
    struct msg in;
    bool held; /* the pump left the message in `in`, of lane held_lane, to the host */
    enum wire_lane held_lane;
    struct session_pump pump;
    unsigned both_connected; /* link_both_connected, as the outer loop knows it */

    struct {
        uint64_t since;        /* start of this wait; 0: not waiting */
        uint64_t logged_after; /* length of the wait at the last line */
    } wait;
    struct {
        uint64_t since_us, next_us; /* start of the join; next look for a reason */
        unsigned seen;              /* enum dial_failure at the last look */
        bool done, logged;          /* connected once, or launch decides; a reason to retry was logged */
    } join_check;

    struct step_queue steps;
    struct msg_metrics metrics; /* the message being sent */
    uint64_t steps_session;     /* session of the last message */
    unsigned steps_connected;   /* link_connected of the last message */
    uint64_t reported_round;    /* round whose times were sent last */
};

/* Follows the connection and sends messages that are due. */
void session_tick(struct worker_session *s);
/* Ends the pump's thread, if there is one. The link may be closed then. */
void session_pump_stop(struct worker_session *s);

/* By atoll launch: its coordinator starts beside the worker, so a join never fails. */
bool session_is_launched(const struct worker_session *s);
enum status session_check_stop(const struct worker_session *s, struct err *err) MUST_CHECK;
/* Call it while the worker waits. Before the first connection it returns why the join cannot succeed (INVALID), or did
 * not for long enough (CLOSED). Afterwards the worker waits for its coordinator. */
enum status session_check_join(struct worker_session *s, struct err *err) MUST_CHECK;

/* Copies the first line of `path` (RUN/address), a join line, to out[cap]. NOTFOUND: no such file yet; CORRUPT: the
 * line is not an address. */
enum status session_join_line(const char *path, char *out, size_t cap, struct err *err) MUST_CHECK;
/* The run is complete (RUN/summary.json exists) and its coordinator has exited (RUN/lock is free). */
bool session_run_is_over(const char *run_dir);

/* The step ended at done_us. When the queue is full the oldest record is dropped. */
void step_queue_add(struct step_queue *q, const struct metrics_step *step, uint64_t done_us);
/* Fill m->steps with the next records that are not sent, at most WIRE_METRICS_MAX, and their ages at now_us. */
void step_queue_batch(const struct step_queue *q, struct msg_metrics *m, uint64_t now_us);
/* The next n records were sent. */
void step_queue_sent(struct step_queue *q, uint32_t n, uint64_t now_us);
/* The coordinator answered a heartbeat that was sent at acked_us: it has every message sent before. */
void step_queue_acked(struct step_queue *q, uint64_t acked_us);
/* The session or the connection changed: send every record again that is not acknowledged. */
void step_queue_resend(struct step_queue *q);

#endif
