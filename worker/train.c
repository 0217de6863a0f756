#include "worker/train.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/units.h"
#include "common/config/options.h"
#include "common/os/interrupt.h"
#include "common/os/std_streams.h"
#include "worker/train_impl.h"

static volatile sig_atomic_t stop_signal;
static struct worker_session *volatile signal_session; /* of the only trainer; NULL: none */

static void on_signal(int number)
{
    struct worker_session *session = signal_session;
    interrupt_on_signal(number);
    stop_signal = number;
    /* The same signal may have stopped the coordinator, which can exit before the current step is done. */
    if (session) worker_session_expect_end(session);
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
    struct step_note note = {.round = task->round,
                             .step = outer_loop_first_step(t->loop) + step,
                             .position = task->step0 + step * task->step_rate};
    struct step_result result = {0};
    uint64_t started = clock_monotonic_us();
    note.lr = lr_schedule_at(&t->schedule, note.position);
    if (!train_fill_counters(task, (uint64_t)step * n, t->counters, n))
        return err_set(err, STATUS_MISMATCH,
                       "the assignment of round %" PRIu64 " has too few samples: both sides must run "
                       "the same version of atoll",
                       task->round + 1);
    worker_session_compute(t->session);
    enum status status = *grad_p ? replica_gradient(t->replica, t->counters, n, grad_p, &result, err)
                                 : replica_train_step(t->replica, t->counters, n, note.lr, &result, err);
    worker_session_computed(t->session);
    if (status == STATUS_NONFINITE) result.loss_sum = NAN;
    if (status != STATUS_OK && status != STATUS_NONFINITE) return status;
    handle_result(t, &note, &result);
    t->in_flight = note;
    uint64_t now = clock_monotonic_us();
    t->compute_us += now - started;
    outer_loop_train_step(t->loop, step + 1, t->step_us ? t->step_us : now - started);
    worker_session_send_metrics(t->session, false);
    return STATUS_OK;
}

static enum status flush_steps(struct trainer *t, struct err *err)
{
    struct step_result result;
    uint64_t started = clock_monotonic_us();
    worker_session_compute(t->session);
    enum status status = replica_flush(t->replica, &result, err);
    worker_session_computed(t->session);
    TRY(status);
    handle_result(t, &t->in_flight, &result);
    t->compute_us += clock_monotonic_us() - started;
    return STATUS_OK;
}

/* Trains the steps of a round. *done: all of them; false after a signal or if the round was revoked. */
static enum status train_steps(struct trainer *t, const float **grad_p, bool *done, struct err *err)
{
    const struct msg_assign *task = outer_loop_assignment(t->loop);
    *done = false;
    for (uint32_t step = 0; step < task->steps; step++) {
        TRY(train_step(t, task, step, grad_p, err));
        worker_session_receive(t->session, 0);
        if (stop_signal) return STATUS_OK;
        if (!outer_loop_computing(t->loop)) {
            log_info("left round %" PRIu64 " after %u of %u steps: the run continued without this worker",
                     task->round + 1, step + 1, task->steps);
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
    worker_session_send_metrics(t->session, true);
    return status == STATUS_NONFINITE ? STATUS_OK : status; /* outer_loop_train_done handled and logged it */
}

/* --- evaluation --------------------------------------------------------------------------------------------------- */

/* Adds the batches of windows [at, at + n) to the parts that the coordinator compares. A part consists of whole batches
 * (coordinator/engine/engine_eval.c: part_windows). */
static void add_to_parts(const struct trainer *t, uint64_t at, uint64_t n, const double *sums, uint64_t part,
                         struct wire_part parts[WIRE_PARTS_MAX])
{
    uint64_t batch = t->config.train.batch_size;
    for (uint64_t i = 0; i < n; i += batch) {
        struct wire_part *p = &parts[(at + i) / part];
        assert((at + i) / part < WIRE_PARTS_MAX);
        p->sum += *sums++;
        p->tokens += (n - i < batch ? n - i : batch) * t->config.model.block_size;
    }
}

static bool evaluates(const struct trainer *t)
{
    return !stop_signal && outer_loop_want(t->loop) == OUTER_EVAL;
}

static enum status evaluate_piece(struct trainer *t, const struct msg_eval *task, struct err *err)
{
    double loss_sum = 0, sums[WIRE_EVAL_WINDOWS];
    struct wire_part parts[WIRE_PARTS_MAX] = {0};
    for (uint64_t at = 0; at < task->count; at += WIRE_EVAL_WINDOWS) {
        double part = 0;
        uint64_t tokens = 0, n = task->count - at < WIRE_EVAL_WINDOWS ? task->count - at : WIRE_EVAL_WINDOWS;
        TRY(replica_eval(t->replica, &t->val, task->start + at, n, &part, &tokens, sums, err));
        add_to_parts(t, at, n, sums, task->part, parts);
        loss_sum += part;
        worker_session_receive(t->session, 0);
        if (!evaluates(t)) return STATUS_OK;
    }
    outer_loop_eval_done(t->loop, loss_sum, parts, clock_monotonic_us());
    return STATUS_OK;
}

static enum status evaluate(struct trainer *t, struct err *err)
{
    uint64_t started = clock_monotonic_us(), windows = 0;
    outer_loop_eval_begin(t->loop, started);
    assert(outer_loop_evaluation(t->loop)); /* outer_loop_want returned OUTER_EVAL */
    const uint64_t id = outer_loop_evaluation(t->loop)->eval_id;
    /* Overwrites the trained parameters: each round starts from outer_loop_params. */
    TRY(replica_set_params_at(t->replica, outer_loop_params(t->loop), outer_loop_device_params(t->loop), err));
    while (evaluates(t) && outer_loop_evaluation(t->loop)->eval_id == id) {
        const struct msg_eval task = *outer_loop_evaluation(t->loop);
        TRY(evaluate_piece(t, &task, err));
        windows += task.count;
    }
    log_debug("evaluated %llu windows in %s", (unsigned long long)windows,
              units_duration((double)(clock_monotonic_us() - started) / 1e6).text);
    return STATUS_OK;
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

static void log_done(struct trainer *t)
{
    log_info("done: %s", outer_loop_text(t->loop, 0));
    if (outer_loop_holds(t->loop))
        log_info("theta_hash %016" PRIx64, layout_theta_hash(&t->layout, outer_loop_params(t->loop)));
}

static enum status loop(struct trainer *t, struct err *err)
{
    TRY(worker_session_dial(t->session, err));
    for (;;) {
        TRY(train_check_stop(err));
        switch (outer_loop_want(t->loop)) {
        case OUTER_WAIT: TRY(worker_session_wait(t->session, UINT64_MAX, err)); continue;
        case OUTER_TRAIN: TRY(train_round(t, err)); break;
        case OUTER_EVAL: TRY(evaluate(t, err)); break;
        case OUTER_DONE: log_done(t); return STATUS_OK;
        case OUTER_FAILED: return worker_session_failure(t->session, err);
        }
        worker_session_worked(t->session);
    }
}

static enum status run(struct trainer *t, struct err *err)
{
    TRY(worker_session_open(&t->session, &t->options->session, err));
    t->loop = worker_session_loop(t->session);
    signal_session = t->session;
    enum status status = loop(t, err);
    if (status == STATUS_END) {
        log_info("done: %s", err->msg);
        status = STATUS_OK;
    }
    if (status != STATUS_OK) worker_session_leave(t->session, status == STATUS_INTERRUPTED ? "stopped" : err->msg);
    train_end_skips(&t->skips);
    data_hash_stop(&t->data_hash); /* uses the heartbeat of the loop */
    worker_session_disconnect(t->session);
    signal_session = NULL;
    worker_session_close(t->session);
    return status;
}

enum exit_code train_run(struct train_options *options, struct err *err)
{
    struct trainer *t = mem_alloc(1, sizeof *t);
    if (!t) {
        err_set(err, STATUS_NOMEM, "out of memory");
        return EXIT_FAILED;
    }
    options->session.host_ctx = t;
    options->session.check_stop = train_check_stop;
    options->session.on_config = train_on_config;
    options->session.on_settings = train_on_settings;
    train_setup_init(t, options);
    enum status status = run(t, err);
    train_setup_finish(t);
    mem_free(t);
    enum exit_code code = exit_code_of(status);
    /* The worker and the run do not fit: the user has to change the command. */
    return status == STATUS_REFUSED && code == EXIT_FAILED ? EXIT_USAGE : code;
}
