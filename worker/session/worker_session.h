/* A worker's membership in a run: the outer loop (worker/outer/outer_loop.h) with its connection, its saved state and
 * its METRICS. It knows no model and no data: the host trains, and is the trainer of atoll-worker (worker/train.c) or
 * the library (worker/api/).
 *
 *     worker_session_find until it is not NOTFOUND or AGAIN; worker_session_open; worker_session_dial;
 *     loop:  switch (outer_loop_want(worker_session_loop(s))):
 *              OUTER_WAIT    worker_session_wait
 *              OUTER_TRAIN   the steps, each between worker_session_compute and worker_session_computed, with
 *                            worker_session_add_step, worker_session_send_metrics and worker_session_receive(s, 0)
 *                            after each; then worker_session_worked
 *              OUTER_EVAL    the evaluation; then worker_session_worked
 *              OUTER_FAILED  worker_session_failure
 *     worker_session_leave unless the run is done; worker_session_close
 *
 * One thread at a time calls these functions. The link's thread (worker/link/link.h) sends heartbeats meanwhile. */
#ifndef WORKER_SESSION_WORKER_SESSION_H
#define WORKER_SESSION_WORKER_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "wire/join_target.h"
#include "wire/msg.h"
#include "wire/transport.h"
#include "worker/outer/outer_loop.h"
#include "worker/session/worker_dir.h"

struct worker_session; /* opaque */

/* A machine that nobody looks after costs money. The coordinator's operator has a night to notice. */
#define WORKER_LOST_US (UINT64_C(12) * 3600 * 1000000)

struct worker_session_options {
    struct transport_worker self; /* its key and name */
    char dir[CONFIG_PATH_MAX];    /* the worker's folder, with its saved state */
    /* The open folder, if the host or the folder named the worker. The session then renames a worker whose name another
     * one has: worker_dir_rename, and self changes. NULL: the name is the user's. */
    struct worker_dir *unnamed;
    char join[JOIN_LINE_MAX]; /* join line */
    /* If joined by a run folder on this machine: */
    char run_dir[CONFIG_PATH_MAX];           /* "": joined by a join line */
    char address_file[CONFIG_PATH_MAX + 16]; /* file with the join line, which may change */
    uint8_t run_id[WIRE_UUID];               /* of the run in the folder; zeros: unknown */
    /* Stop if the coordinator does not answer for this long. UINT64_MAX: not given: WORKER_LOST_US once it was
     * connected, before that as worker_session_wait says. */
    uint64_t max_wait_us;
    const char *max_wait_by; /* name of this limit in messages: "--max-wait" */
    bool supervised;         /* by atoll launch or a service: wait for a coordinator that cannot be reached */

    void *host_ctx;
    /* INTERRUPTED: a signal asks the program to end. NULL: never. */
    enum status (*check_stop)(struct err *err);
    /* As in struct outer_setup. On failure worker_session_failure returns the same error. */
    enum status (*on_config)(void *ctx, const struct msg_config *config, struct outer_model *model, struct err *err);
    enum status (*on_settings)(void *ctx, const struct msg_config *config, struct err *err);
    /* As in struct outer_setup; NULL: none. */
    bool (*on_update)(void *ctx, const uint8_t *object, size_t size, bool taken, bool named);
};

/* max_wait_us of so many seconds; UINT64_MAX stays, and any larger number is no limit. */
static inline uint64_t worker_session_max_wait_us(uint64_t seconds)
{
    if (seconds == UINT64_MAX) return UINT64_MAX;
    return seconds < UINT64_MAX / 1000000 ? seconds * 1000000 : UINT64_MAX - 1;
}

/* The limit of a wait without an answer; connected: the worker was at some time. UINT64_MAX: none. */
static inline uint64_t worker_session_limit_us(const struct worker_session_options *o, bool connected)
{
    return o->max_wait_us == UINT64_MAX && connected ? WORKER_LOST_US : o->max_wait_us;
}

/* --- the coordinator's address ------------------------------------------------------------------------------------ */

/* Sets join, run_dir and address_file. */
void worker_session_set_target(struct worker_session_options *options, const struct join_target *target);
/* Reads address and run id from the run folder, if there is one. NOTFOUND: not yet written; END: the run is complete;
 * CORRUPT, IO. */
enum status worker_session_read_address(struct worker_session_options *options, struct err *err) MUST_CHECK;
/* Resolves the coordinator's host, because a look-up by ZeroMQ cannot be interrupted. INVALID: malformed or no such
 * host; AGAIN: the name service does not answer now. */
enum status worker_session_resolve(const struct worker_session_options *options, struct err *err) MUST_CHECK;
/* The address in a run folder may be stale, and another run may use it now. MISMATCH: `run_id` is another run, called
 * `name`. */
enum status worker_session_check_run(const struct worker_session_options *options, const uint8_t run_id[WIRE_UUID],
                                     const char *name, struct err *err) MUST_CHECK;

/* --- the session -------------------------------------------------------------------------------------------------- */

/* Creates the outer loop and reads the saved state's run id. `options` outlives the session. NOMEM. */
enum status worker_session_open(struct worker_session **s_p, struct worker_session_options *options,
                                struct err *err) MUST_CHECK;
/* Starts to connect. INVALID, NOTFOUND, NOMEM. */
enum status worker_session_dial(struct worker_session *s, struct err *err) MUST_CHECK;
struct outer_loop *worker_session_loop(struct worker_session *s);
/* Waits up to timeout_us for a message, handles all that arrived, sends messages that are due. */
void worker_session_receive(struct worker_session *s, uint64_t timeout_us);
/* The host computes until worker_session_computed, and calls no other function of the session or of its loop. If
 * outer_loop_exchanges, a thread of the session sends and receives deltas, applies updates and watches the save
 * meanwhile, so that transfers do not depend on the length of a step. Other messages wait for the host. */
void worker_session_compute(struct worker_session *s);
/* The session belongs to the caller again. Waits while an update is being applied. Without worker_session_compute it
 * does nothing. */
void worker_session_computed(struct worker_session *s);
/* OUTER_WAIT: worker_session_receive for up to timeout_us, at most 0.1 s. Logs long waits, follows a changed address.
 * Before the first connection it looks for the reason why a join fails, which takes up to 1.5 s.
 *   - INVALID: the join cannot succeed. CLOSED: it did not for long enough.
 *   - INTERRUPTED: check_stop, or max_wait_us has passed. END: the run is complete, the coordinator has exited. */
enum status worker_session_wait(struct worker_session *s, uint64_t timeout_us, struct err *err) MUST_CHECK;
/* The wait is over: the next one is logged anew. */
void worker_session_worked(struct worker_session *s);
/* OUTER_FAILED: the error of on_config; INVALID: a refused key; SPENT: the run's budget; REFUSED: another refusal;
 * otherwise outer_loop_fault. */
enum status worker_session_failure(struct worker_session *s, struct err *err) MUST_CHECK;

/* Queues the record of a finished step for METRICS. step->age_us is ignored. */
void worker_session_add_step(struct worker_session *s, const struct metrics_step *step);
/* Sends METRICS once a second, when a message is full, or at once with `force`. */
void worker_session_send_metrics(struct worker_session *s, bool force);
/* Bytes sent and received on the sockets of this process. */
void worker_session_bytes(struct worker_session *s, uint64_t *sent_p, uint64_t *received_p);
bool worker_session_connected(struct worker_session *s);

/* The coordinator may exit from now on: lost connections are not logged. A signal handler may call it. */
void worker_session_expect_end(struct worker_session *s);
/* Sends the last METRICS and LEAVE, unless the worker was refused. Waits for a running save. */
void worker_session_leave(struct worker_session *s, const char *text);
/* Sends queued messages for up to 2 s, then closes the connection. */
void worker_session_disconnect(struct worker_session *s);
/* Disconnects and frees everything. NULL is allowed. The host's model outlives this call. */
void worker_session_close(struct worker_session *s);

#endif
