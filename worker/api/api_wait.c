#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/os/fileio.h"
#include "worker/api/api_impl.h"

enum { FIND_US = 200000, FIND_WAIT_US = 60000000 };

/* --- finding the coordinator -------------------------------------------------------------------------------------- */

/* A run folder without an address: its coordinator may be about to start. */
static enum status await_address(struct atoll *a, enum status status, struct err *err)
{
    uint64_t limit = a->options.max_wait_us != UINT64_MAX ? a->options.max_wait_us : FIND_WAIT_US;
    snprintf(a->text, sizeof a->text, "%.250s: %.300s",
             status == STATUS_NOTFOUND ? "a coordinator" : "the name service", err->msg);
    if (clock_monotonic_us() - a->finding_us < limit) return STATUS_AGAIN;
    return err->code = STATUS_CLOSED;
}

enum status api_find(struct atoll *a, struct err *err)
{
    a->find_us = clock_monotonic_us() + FIND_US;
    enum status status = worker_session_read_address(&a->options, err);
    if (status == STATUS_NOTFOUND) return await_address(a, status, err);
    TRY(status);
    status = worker_session_resolve(&a->options, err);
    if (status == STATUS_AGAIN) return await_address(a, status, err);
    TRY(status);
    TRY(worker_session_open(&a->session, &a->options, err));
    a->loop = worker_session_loop(a->session);
    TRY(worker_session_dial(a->session, err));
    a->phase = API_JOINED;
    return STATUS_OK;
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

enum atoll_status api_fail(struct atoll *a, enum status status, const struct err *err, struct atoll_error *error)
{
    a->phase = API_FAILED;
    a->failure = *err;
    a->failure.code = status;
    a->round.open = a->evaluating = false;
    if (a->session) worker_session_leave(a->session, a->failure.msg);
    return api_error(error, status, &a->failure);
}

static void end_run(struct atoll *a, const char *text)
{
    a->phase = API_DONE;
    snprintf(a->text, sizeof a->text, "%s", text);
    text_make_clean(a->text);
    log_info("done: %s", a->text);
    if (a->session && outer_loop_holds(a->loop)) api_take_params(a);
}

/* The coordinator asks a worker without validation data: another one must evaluate. */
static void decline_evaluation(struct atoll *a)
{
    outer_loop_eval_begin(a->loop, clock_monotonic_us());
    outer_loop_eval_done(a->loop, 0, NULL, clock_monotonic_us());
}

static void begin_evaluation(struct atoll *a)
{
    outer_loop_eval_begin(a->loop, clock_monotonic_us());
    api_take_params(a);
    a->evaluating = true;
}

static uint64_t left_us(uint64_t until_us)
{
    uint64_t now = clock_monotonic_us();
    return now < until_us ? until_us - now : 0;
}

static enum status find_or_sleep(struct atoll *a, uint64_t until_us, struct err *err)
{
    uint64_t pause = left_us(a->find_us), left = left_us(until_us);
    if (pause) usleep((useconds_t)(pause < left ? pause : left));
    if (left_us(a->find_us)) return STATUS_OK;
    enum status status = api_find(a, err);
    return status == STATUS_AGAIN ? STATUS_OK : status;
}

/* One look at what there is to do. AGAIN: the caller waits on. */
static enum status look(struct atoll *a, enum atoll_event *event, struct err *err)
{
    switch (outer_loop_want(a->loop)) {
    case OUTER_WAIT: return STATUS_AGAIN;
    case OUTER_TRAIN: *event = ATOLL_TRAIN; break;
    case OUTER_EVAL:
        if (!a->val.samples) {
            decline_evaluation(a);
            return STATUS_AGAIN;
        }
        begin_evaluation(a);
        *event = ATOLL_EVALUATE;
        break;
    case OUTER_DONE:
        end_run(a, outer_loop_text(a->loop, 0));
        *event = ATOLL_DONE;
        break;
    case OUTER_FAILED: return worker_session_failure(a->session, err);
    }
    worker_session_worked(a->session);
    return STATUS_OK;
}

static enum status wait_until(struct atoll *a, uint64_t until_us, enum atoll_event *event, struct err *err)
{
    for (bool first = true;; first = false) {
        enum status status;
        if (a->phase == API_DONE) {
            *event = ATOLL_DONE;
            return STATUS_OK;
        }
        if (a->phase == API_FINDING) {
            status = find_or_sleep(a, until_us, err);
        } else {
            status = look(a, event, err);
            if (status != STATUS_AGAIN) return status;
            if (!first && !left_us(until_us)) return STATUS_OK;
            status = worker_session_wait(a->session, left_us(until_us), err);
        }
        if (status == STATUS_END) {
            end_run(a, err->msg);
            status = STATUS_OK;
        }
        if (status != STATUS_OK) return status;
        if (a->phase == API_FINDING && !left_us(until_us)) return STATUS_OK;
    }
}

enum atoll_status atoll_wait(struct atoll *a, uint32_t timeout_ms, enum atoll_event *event, struct atoll_error *error)
{
    API_CALL;
    struct err err = {0};
    enum atoll_status bad = api_check(a, event, "atoll_wait", error);
    if (bad != ATOLL_OK) return bad;
    *event = ATOLL_WAITING;
    if (a->phase == API_LEFT) return api_refuse(error, ATOLL_ORDER, "atoll_wait: this worker has left the run");
    if (a->phase == API_FAILED) return api_error(error, a->failure.code, &a->failure);
    if (a->round.open)
        return api_refuse(error, ATOLL_ORDER, "atoll_wait: a round is in training: take its steps, then atoll_push");
    a->waited = true;
    a->evaluating = false;
    enum status status = wait_until(a, clock_monotonic_us() + timeout_ms * UINT64_C(1000), event, &err);
    return status == STATUS_OK ? ATOLL_OK : api_fail(a, status, &err, error);
}
