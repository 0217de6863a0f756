#include "worker/train.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "common/os/interrupt.h"
#include "common/os/std_streams.h"
#include "worker/link/join_line.h"
#include "worker/outer/state_dir.h"
#include "worker/train_impl.h"

enum {
    POLL_US = 100000,        /* longest delay before a signal is seen */
    WAIT_LINE_US = 10000000, /* log a wait of this length, and again when it has doubled */
    ADDRESS_US = 3000000,    /* without an answer for this long, read the address again */
    FLUSH_US = 2000000,      /* time to send queued messages at the end */
};

static volatile sig_atomic_t stop_signal;
static struct link *volatile signal_link; /* link of the only trainer; NULL while it is opened or closed */

static void on_signal(int number)
{
    struct link *link = signal_link;
    interrupt_on_signal(number);
    stop_signal = number;
    /* The same signal may have stopped the coordinator, which can exit before the current step is done. */
    if (link) link_expect_end(link);
}

void train_catch_signals(void)
{
    const struct sigaction action = interrupt_action(on_signal);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (std_streams_hang_up()) sigaction(SIGHUP, &action, NULL);
}

enum status train_check_stop(struct err *err)
{
    return stop_signal ? err_set(err, STATUS_INTERRUPTED, "stopped by signal %d", (int)stop_signal) : STATUS_OK;
}

static enum status send_message(void *ctx, enum wire_lane lane, const struct msg *m)
{
    struct trainer *t = ctx;
    if (m->type == MSG_LEAVE && m->leave.finished) link_expect_end(t->link); /* the coordinator may exit first */
    return link_send(t->link, lane, m);
}

/* Waits up to timeout_us for a message, handles all that arrived, sends messages that are due. */
static void handle_messages(struct trainer *t, uint64_t timeout_us)
{
    enum wire_lane lane;
    enum status status = link_recv(t->link, timeout_us, &lane, &t->in);
    while (status != STATUS_AGAIN) {
        if (status == STATUS_OK) outer_loop_on_message(t->loop, lane, &t->in, clock_monotonic_us());
        status = link_recv(t->link, 0, &lane, &t->in);
    }
    unsigned both_connected = link_both_connected(t->link);
    if (both_connected != t->both_connected) outer_loop_reconnected(t->loop, clock_monotonic_us());
    t->both_connected = both_connected;
    outer_loop_tick(t->loop, clock_monotonic_us());
}

/* --- training ----------------------------------------------------------------------------------------------------- */

/* Records a result: a late one belongs to the step in flight, otherwise to `note`. */
static void handle_result(struct trainer *t, const struct step_note *note, const struct step_result *result)
{
    if (!result->tokens) return;
    t->loss_sum += result->loss_sum;
    t->tokens += result->tokens;
    t->step_us = (uint64_t)(result->compute_s * 1e6);
    train_note_step(t, result->late ? &t->in_flight : note, result);
}

static enum status train_step(struct trainer *t, const struct msg_assign *task, uint32_t step, const float **grad_p,
                              struct err *err)
{
    uint32_t n = replica_step_samples(t->replica);
    struct step_note note = {.round = task->round, .step = step, .position = task->step0 + step * task->step_rate};
    struct step_result result = {0};
    uint64_t started = clock_monotonic_us();
    note.lr = lr_schedule_at(&t->schedule, note.position);
    if (!train_fill_counters(task, (uint64_t)step * n, t->counters, n))
        return err_set(err, STATUS_MISMATCH,
                       "the assignment of round %" PRIu64 " has too few samples: both sides must run "
                       "the same version of atoll",
                       task->round + 1);
    enum status status = *grad_p ? replica_gradient(t->replica, t->counters, n, grad_p, &result, err)
                                 : replica_train_step(t->replica, t->counters, n, note.lr, &result, err);
    if (status == STATUS_NONFINITE) result.loss_sum = NAN;
    if (status != STATUS_OK && status != STATUS_NONFINITE) return status;
    handle_result(t, &note, &result);
    t->in_flight = note;
    uint64_t now = clock_monotonic_us();
    t->compute_us += now - started;
    outer_loop_train_step(t->loop, step + 1, t->step_us ? t->step_us : now - started);
    train_send_metrics(t, false, now);
    return STATUS_OK;
}

static enum status flush_steps(struct trainer *t, struct err *err)
{
    struct step_result result;
    uint64_t started = clock_monotonic_us();
    TRY(replica_flush(t->replica, &result, err));
    handle_result(t, &t->in_flight, &result);
    t->compute_us += clock_monotonic_us() - started;
    return STATUS_OK;
}

/* Trains the steps of a round. *done: all of them; false after a signal or if the round was revoked. */
static enum status train_steps(struct trainer *t, const float **grad_p, bool *done, struct err *err)
{
    const struct msg_assign *task = outer_loop_assignment(t->loop);
    uint64_t round = task->round;
    *done = false;
    for (uint32_t step = 0; step < task->steps; step++) {
        TRY(train_step(t, task, step, grad_p, err));
        handle_messages(t, 0);
        if (stop_signal) return STATUS_OK;
        if (outer_loop_want(t->loop) != OUTER_TRAIN || outer_loop_assignment(t->loop)->round != round) {
            log_info("left round %" PRIu64 " after %u of %u steps: the run continued without this worker", round + 1,
                     step + 1, task->steps);
            return STATUS_OK;
        }
    }
    *done = true;
    return STATUS_OK;
}

static enum status train_round(struct trainer *t, struct err *err)
{
    bool done;
    uint64_t started = clock_monotonic_us();
    outer_loop_train_begin(t->loop, started);
    assert(outer_loop_assignment(t->loop)); /* outer_loop_want returned OUTER_TRAIN */
    uint32_t steps = outer_loop_assignment(t->loop)->steps;
    const float *params = outer_loop_params(t->loop), *grad = NULL;
    TRY(replica_set_params_at(t->replica, params, outer_loop_device_params(t->loop), err));
    uint64_t placed = clock_monotonic_us();
    if (t->config.train.method == METHOD_DDP) grad = params; /* not NULL: train_step computes the gradient */
    inner_opt_set_worker(replica_optimizer(t->replica), outer_loop_assignment(t->loop)->worker_id);
    t->loss_sum = 0;
    t->tokens = t->compute_us = 0;
    TRY(train_steps(t, &grad, &done, err));
    TRY(flush_steps(t, err));
    if (!done) return STATUS_OK;
    uint64_t trained = clock_monotonic_us();
    if (!grad && !outer_loop_on_device(t->loop)) TRY(replica_get_params(t->replica, &params, err));
    uint64_t now = clock_monotonic_us();
    struct outer_result result = {
        .values = grad ? grad : params,
        .tokens = t->tokens,
        .steps = steps,
        .loss_sum = t->loss_sum,
        .compute_us = t->compute_us,
        .place_us = placed - started,
        .fetch_us = now - trained,
    };
    enum status status = outer_loop_train_done(t->loop, &result, now);
    train_send_metrics(t, true, clock_monotonic_us());
    return status == STATUS_NONFINITE ? STATUS_OK : status; /* outer_loop_train_done handled and logged it */
}

/* --- evaluation --------------------------------------------------------------------------------------------------- */

/* Adds the losses of the batches of windows [at, at + n) to the parts that the coordinator compares. A part consists of
 * whole batches (coordinator/engine/engine_eval.c: part_windows). */
static void add_to_parts(const struct trainer *t, uint64_t at, uint64_t n, const double *sums, uint64_t part,
                         double parts[WIRE_PARTS_MAX])
{
    for (uint64_t i = 0; i < n; i += t->config.train.batch_size) {
        assert((at + i) / part < WIRE_PARTS_MAX);
        parts[(at + i) / part] += *sums++;
    }
}

static enum status evaluate(struct trainer *t, struct err *err)
{
    double loss_sum = 0, parts[WIRE_PARTS_MAX] = {0}, sums[WIRE_EVAL_WINDOWS];
    uint64_t tokens = 0, started = clock_monotonic_us();
    outer_loop_eval_begin(t->loop, started);
    assert(outer_loop_evaluation(t->loop)); /* outer_loop_want returned OUTER_EVAL */
    const struct msg_eval task = *outer_loop_evaluation(t->loop);
    /* Overwrites the trained parameters: each round starts from outer_loop_params. */
    TRY(replica_set_params_at(t->replica, outer_loop_params(t->loop), outer_loop_device_params(t->loop), err));
    for (uint64_t at = 0; at < task.count; at += WIRE_EVAL_WINDOWS) {
        double part = 0;
        uint64_t part_tokens = 0, n = task.count - at < WIRE_EVAL_WINDOWS ? task.count - at : WIRE_EVAL_WINDOWS;
        TRY(replica_eval(t->replica, &t->val, task.start + at, n, &part, &part_tokens, sums, err));
        add_to_parts(t, at, n, sums, task.part, parts);
        loss_sum += part;
        tokens += part_tokens;
        handle_messages(t, 0);
        if (stop_signal || outer_loop_want(t->loop) != OUTER_EVAL) return STATUS_OK;
    }
    outer_loop_eval_done(t->loop, loss_sum, tokens, parts, clock_monotonic_us());
    log_debug("evaluated %" PRIu64 " tokens in %.2f s", tokens, (double)(clock_monotonic_us() - started) / 1e6);
    return STATUS_OK;
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

struct wait_log {
    uint64_t since;        /* start of this wait; 0: not waiting */
    uint64_t logged_after; /* length of the wait at the last line */
};

static void log_wait(struct trainer *t, struct wait_log *wait_log, uint64_t now)
{
    char others[WIRE_TEXT_MAX];
    if (!wait_log->since) wait_log->since = now;
    uint64_t next = wait_log->logged_after ? 2 * wait_log->logged_after : WAIT_LINE_US;
    if (now - wait_log->since < next) return;
    wait_log->logged_after = next;
    heartbeat_waiting_for(outer_loop_heartbeat(t->loop), now, others);
    log_info("waiting for %s, %.0f s so far%s%s", outer_loop_text(t->loop, now), (double)(now - wait_log->since) / 1e6,
             others[0] ? "; the run waits for " : "", others);
}

static enum status open_link(struct trainer *t, const char *join, struct err *err)
{
    struct transport_address address;
    struct transport *transport;
    TRY(transport_address_parse(&address, join, err));
    address.quiet = !t->options->supervised; /* train_check_join says why */
    TRY(transport_zmq_dial(&transport, &address, &t->options->self, err));
    TRY(link_open(&t->link, transport, outer_loop_heartbeat(t->loop), err));
    signal_link = t->link;
    return STATUS_OK;
}

static void close_link(struct trainer *t, uint64_t flush_us)
{
    signal_link = NULL;
    link_close(t->link, flush_us);
    t->link = NULL;
}

/* Time without an answer of the coordinator, within this wait. */
static uint64_t silent_us(const struct trainer *t, const struct wait_log *wait_log, uint64_t now)
{
    uint64_t heard = heartbeat_heard_us(outer_loop_heartbeat(t->loop)),
             last = heard > wait_log->since ? heard : wait_log->since;
    return now > last ? now - last : 0;
}

/* A coordinator on this machine may restart at another port, which its run folder gives. If the worker cannot connect
 * there, it leaves over the old connection, as after any error. END: the run is complete, and the coordinator has
 * exited. */
static enum status follow_address(struct trainer *t, char *join, size_t cap, struct err *err)
{
    char current[sizeof t->options->join];
    struct link *before = t->link;
    if (join_run_is_over(t->options->run_dir))
        return err_set(err, STATUS_END, "the run in %s is complete", t->options->run_dir);
    if (join_line_read(t->options->address_file, current, sizeof current, NULL) != STATUS_OK) return STATUS_OK;
    if (!strcmp(current, join)) return STATUS_OK;
    log_info("reconnecting: the coordinator's address changed");
    snprintf(join, cap, "%s", current);
    TRY(open_link(t, join, err));
    link_close(before, 0);
    return STATUS_OK;
}

static enum status wait_for_work(struct trainer *t, struct wait_log *wait_log, char *join, size_t cap, struct err *err)
{
    uint64_t now = clock_monotonic_us(), due = outer_loop_deadline_us(t->loop), wait = POLL_US;
    train_send_metrics(t, false, now);
    log_wait(t, wait_log, now);
    if (due <= now)
        wait = 0;
    else if (due - now < wait)
        wait = due - now;
    handle_messages(t, wait);
    TRY(train_check_join(t, join, err));
    uint64_t silent = silent_us(t, wait_log, now);
    if (silent >= t->options->max_wait_us)
        return err_set(err, STATUS_INTERRUPTED, "the coordinator has not answered for %.0f s (--max-wait)",
                       (double)silent / 1e6);
    return t->options->address_file[0] && silent >= ADDRESS_US ? follow_address(t, join, cap, err) : STATUS_OK;
}

/* A refused key is a matter of the command line or the operator: exit code 2. */
static enum status failure_of(uint16_t refuse_code)
{
    return refuse_code == REFUSE_KEY ? STATUS_INVALID : refuse_code ? STATUS_REFUSED : STATUS_STATE;
}

static enum status loop(struct trainer *t, struct err *err)
{
    char join[sizeof t->options->join];
    struct wait_log wait_log = {0};
    snprintf(join, sizeof join, "%s", t->options->join);
    TRY(open_link(t, join, err));
    for (;;) {
        TRY(train_check_stop(err));
        switch (outer_loop_want(t->loop)) {
        case OUTER_WAIT: TRY(wait_for_work(t, &wait_log, join, sizeof join, err)); continue;
        case OUTER_TRAIN: TRY(train_round(t, err)); break;
        case OUTER_EVAL: TRY(evaluate(t, err)); break;
        case OUTER_DONE: log_info("done: %s", outer_loop_text(t->loop, 0)); return STATUS_OK;
        case OUTER_FAILED:
            if (t->host_err.msg[0]) {
                *err = t->host_err;
                return t->host_err.code;
            }
            return err_set(err, failure_of(outer_loop_refused(t->loop)), "%s", outer_loop_text(t->loop, 0));
        }
        wait_log = (struct wait_log){0};
    }
}

static uint64_t stopwatch(void)
{
    return clock_monotonic_us();
}

enum exit_code train_run(const struct train_options *options, struct err *err)
{
    struct state_dir dir;
    struct trainer *t = mem_alloc(1, sizeof *t);
    if (!t) {
        err_set(err, STATUS_NOMEM, "out of memory");
        return EXIT_FAILED;
    }
    train_setup_init(t, options);
    struct outer_setup setup = {
        .io_ctx = t, .send = send_message, .host_ctx = t, .on_config = train_on_config, .stopwatch_us = stopwatch};
    memcpy(setup.uuid, options->self.key.public_key, WIRE_UUID);
    memcpy(setup.run_id, options->run_id, WIRE_UUID);
    snprintf(setup.name, sizeof setup.name, "%s", options->self.name);
    state_dir_init(&dir, options->dir);
    state_dir_attach(&dir, &setup);
    enum status status = outer_loop_create(&t->loop, &setup, clock_monotonic_us());
    if (status != STATUS_OK)
        err_set(err, status, "out of memory");
    else
        status = loop(t, err);
    if (status == STATUS_END) {
        log_info("done: %s", err->msg);
        status = STATUS_OK;
    }
    bool refused = outer_loop_want(t->loop) == OUTER_FAILED && outer_loop_refused(t->loop);
    if (t->link && status != STATUS_OK && !refused) {
        train_send_metrics(t, true, clock_monotonic_us());
        outer_loop_leave(t->loop, status == STATUS_INTERRUPTED ? "stopped" : err->msg, clock_monotonic_us());
    }
    train_end_skips(&t->skips);
    data_hash_stop(&t->data_hash);                                    /* uses the heartbeat of the loop */
    close_link(t, t->link && link_connected(t->link) ? FLUSH_US : 0); /* without a connection nothing can be sent */
    outer_loop_destroy(t->loop);
    train_setup_finish(t);
    mem_free(t);
    enum exit_code code = exit_code_of(status);
    /* The worker and the run do not fit: the user has to change the command. */
    return status == STATUS_REFUSED && code == EXIT_FAILED ? EXIT_USAGE : code;
}
