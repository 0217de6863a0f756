#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "common/base/units.h"
#include "worker/api/api_impl.h"
#include "worker/model/model.h"
#include "worker/outer/delta_host.h"

/* --- the session -------------------------------------------------------------------------------------------------- */

const struct atoll *api_session_take(const struct atoll *a)
{
    if (!api_is_here(a) || !a->session) return NULL;
    worker_session_computed(a->session);
    return a;
}

void api_session_give(const struct atoll **a)
{
    if (*a && (*a)->round.open) worker_session_compute((*a)->session);
}

/* --- a round ------------------------------------------------------------------------------------------------------ */

/* A round that a restarted worker continues has no message: its own samples tell about where the run stands. */
static double epoch_of(const struct atoll *a, const struct msg_assign *task)
{
    if (!isnan(task->epoch)) return task->epoch;
    return a->train.samples ? (double)task->ranges[0].start / (double)a->train.samples : 0;
}

enum atoll_status atoll_begin(struct atoll *a, struct atoll_round *round, struct atoll_error *error)
{
    API_CALL;
    enum atoll_status bad = api_check(a, round, "atoll_begin", error);
    if (bad != ATOLL_OK) return bad;
    API_SESSION(a);
    struct api_round *r = &a->round;
    bool ready = a->phase == API_JOINED && !r->open && !a->evaluating && outer_loop_want(a->loop) == OUTER_TRAIN;
    if (!ready) return api_refuse(error, ATOLL_ORDER, "atoll_begin: there is no round: call it after ATOLL_TRAIN");
    uint64_t started = clock_monotonic_us();
    outer_loop_train_begin(a->loop, started);
    const struct msg_assign *task = outer_loop_assignment(a->loop);
    assert(task); /* outer_loop_want returned OUTER_TRAIN */
    api_start_params(a);
    uint64_t now = clock_monotonic_us();
    *r = (struct api_round){.open = true,
                            .number = task->round,
                            .task = task,
                            .steps = task->steps,
                            .position = task->step0,
                            .rate = task->step_rate,
                            .place_us = now - started,
                            .last_us = now};
    *round = (struct atoll_round){.round = task->round,
                                  .steps = task->steps,
                                  .step_samples = a->config.train.batch_size * a->config.train.grad_accum,
                                  .position = task->step0,
                                  .position_rate = task->step_rate,
                                  .worker = task->worker_id,
                                  .lr = task->lr,
                                  .epoch = epoch_of(a, task)};
    return ATOLL_OK;
}

enum atoll_status atoll_samples(struct atoll *a, uint64_t *indices, uint32_t n, struct atoll_error *error)
{
    API_CALL;
    enum atoll_status bad = api_check(a, indices || !n, "atoll_samples", error);
    if (bad != ATOLL_OK) return bad;
    struct api_round *r = &a->round;
    uint64_t left = 0, at = 0, total = a->train.samples;
    if (!r->open) return api_refuse(error, ATOLL_ORDER, "atoll_samples: no round has begun: call atoll_begin first");
    const struct msg_assign *task = r->task; /* also if the run went on without this round */
    for (uint32_t i = 0; i < task->n_ranges; i++) left += task->ranges[i].count;
    assert(r->samples <= left);
    left -= r->samples;
    if (left < n)
        return api_refuse(error, ATOLL_EXHAUSTED,
                          "round %" PRIu64 " has %" PRIu64 " samples left, fewer than %" PRIu32
                          ": a step has train.batch_size x train.grad_accum = %" PRIu32 " samples",
                          r->number + 1, left, n, a->config.train.batch_size * a->config.train.grad_accum);
    for (uint32_t i = 0, filled = 0; filled < n; at += task->ranges[i++].count) {
        const struct wire_range *range = &task->ranges[i];
        for (; filled < n && r->samples < at + range->count; filled++) {
            uint64_t k = range->start + (r->samples++ - at);
            indices[filled] = total ? rng_permute(a->config.run.seed, k / total, k % total, total) : k;
        }
    }
    return ATOLL_OK;
}

static void log_step(const struct atoll *a, const struct atoll_step *step, uint64_t step_us)
{
    const struct api_round *r = &a->round;
    double rate = step_us ? (double)step->tokens * 1e6 / (double)step_us : 0;
    log_info("step %6.0f  round %4" PRIu64 "  loss %7.4f  lr %.3e  norm %7.3f  %6s tokens/s",
             r->position + r->rate * r->done + 1, r->number + 1, step->loss, step->lr, step->grad_norm,
             units_count(rate).text);
}

static float known(double value)
{
    return isfinite(value) && value >= 0 ? (float)value : METRICS_UNKNOWN;
}

static void note_step(struct atoll *a, const struct atoll_step *step, uint64_t step_us)
{
    struct api_round *r = &a->round;
    worker_session_add_step(a->session, &(struct metrics_step){
                                            .round = r->number,
                                            .step = outer_loop_first_step(a->loop) + r->done,
                                            .position = r->position + r->rate * r->done,
                                            .loss = (float)step->loss,
                                            .lr = known(step->lr),
                                            .grad_norm = isinf(step->grad_norm) ? INFINITY : known(step->grad_norm),
                                            .tokens = step->tokens,
                                            .step_us = step_us <= UINT32_MAX ? (uint32_t)step_us : 0,
                                        });
    if (++a->steps_done % LOG_EVERY_STEPS == 0) log_step(a, step, step_us);
    r->tokens += step->tokens;
    r->compute_us += step_us;
    if (isnan(step->loss)) return;
    r->known += step->tokens;
    r->loss_sum += step->loss * (double)step->tokens;
}

enum atoll_status atoll_step(struct atoll *a, const struct atoll_step *step, enum atoll_action *action,
                             struct atoll_error *error)
{
    API_CALL;
    enum atoll_status bad = api_check(a, step && action, "atoll_step", error);
    if (bad != ATOLL_OK) return bad;
    struct api_round *r = &a->round;
    if (!r->open) return api_refuse(error, ATOLL_ORDER, "atoll_step: no round has begun: call atoll_begin first");
    if (r->done == r->steps)
        return api_refuse(error, ATOLL_ORDER, "atoll_step: the round's %" PRIu32 " steps are done: call atoll_push",
                          r->steps);
    API_SESSION(a);
    uint64_t now = clock_monotonic_us(), step_us = step->step_us ? step->step_us : now - r->last_us;
    note_step(a, step, step_us);
    r->done++;
    outer_loop_train_step(a->loop, r->done, step_us);
    worker_session_send_metrics(a->session, false);
    worker_session_receive(a->session, 0);
    r->last_us = clock_monotonic_us();
    *action = r->done == r->steps ? ATOLL_SYNC : ATOLL_CONTINUE;
    if (outer_loop_computing(a->loop)) return ATOLL_OK;
    log_info("left round %" PRIu64 " after %u of %u steps: the run continued without this worker", r->number + 1,
             r->done, r->steps);
    r->open = false;
    *action = ATOLL_DROPPED;
    return ATOLL_OK;
}

/* The coordinator of a built-in model refuses a delta with fewer or more tokens than its samples have. */
static enum atoll_status check_tokens(const struct atoll *a, struct atoll_error *error)
{
    const struct api_round *r = &a->round;
    const struct config *c = &a->config;
    uint64_t samples = (uint64_t)r->steps * c->train.batch_size * c->train.grad_accum;
    if (!r->tokens)
        return api_refuse(error, ATOLL_INVALID, "round %" PRIu64 ": trained on 0 tokens: tell the tokens of each step",
                          r->number + 1);
    if (!a->built_in || r->tokens == samples * c->model.block_size) return ATOLL_OK;
    return api_refuse(error, ATOLL_INVALID,
                      "round %" PRIu64 " trained on %" PRIu64 " tokens, but it has %" PRIu64 " samples of %u tokens: "
                      "take train.batch_size x train.grad_accum samples a step, and the loss of all targets",
                      r->number + 1, r->tokens, samples, c->model.block_size);
}

enum atoll_status atoll_push(struct atoll *a, struct atoll_error *error)
{
    API_CALL;
    enum atoll_status bad = api_check(a, true, "atoll_push", error);
    if (bad != ATOLL_OK) return bad;
    struct api_round *r = &a->round;
    struct err err = {0};
    char text[DELTA_HOST_TEXT];
    if (!r->open || r->done < r->steps)
        return api_refuse(error, ATOLL_ORDER, "atoll_push: call it after the round's last step (ATOLL_SYNC)");
    bad = check_tokens(a, error);
    if (bad != ATOLL_OK) return bad;
    API_SESSION(a);
    uint64_t started = clock_monotonic_us();
    const float *values = api_run_params(a);
    uint64_t now = clock_monotonic_us();
    struct outer_result result = {
        .values = values,
        .tokens = r->tokens,
        .steps = r->steps,
        .loss_sum = r->known ? r->loss_sum * ((double)r->tokens / (double)r->known) : 0,
        .loss_unknown = !r->known,
        .compute_us = r->compute_us,
        .place_us = r->place_us,
        .fetch_us = now - started,
    };
    r->open = false;
    enum status status = outer_loop_train_done(a->loop, &result, now);
    worker_session_send_metrics(a->session, true);
    if (outer_loop_want(a->loop) == OUTER_FAILED) {
        status = worker_session_failure(a->session, &err);
        return api_fail(a, status, &err, error);
    }
    if (status == STATUS_OK) return ATOLL_OK;
    bool named = false;
    if (a->adds)
        named = snprintf(text, sizeof text, "%s", outer_loop_nonfinite(a->loop)) > 0;
    else
        named = delta_host_nonfinite_text(a->theta ? &a->layout : &a->own, a->theta ? a->change : a->params, text);
    if (!named)
        snprintf(text, sizeof text,
                 isfinite(r->loss_sum) ? "the change of the parameters is too large for fp32"
                                       : "the loss is NaN or infinite");
    err_set(&err, status, "round %" PRIu64 ": %s: the round is dropped", r->number + 1, text);
    return api_error(error, status, &err);
}

/* --- an evaluation ------------------------------------------------------------------------------------------------ */

enum atoll_status atoll_evaluation(struct atoll *a, struct atoll_evaluation *evaluation, struct atoll_error *error)
{
    API_CALL;
    enum atoll_status bad = api_check(a, evaluation, "atoll_evaluation", error);
    if (bad != ATOLL_OK) return bad;
    const struct msg_eval *task = a->evaluating ? outer_loop_evaluation(a->loop) : NULL;
    if (!task) return api_refuse(error, ATOLL_ORDER, "atoll_evaluation: there is none: call it after ATOLL_EVALUATE");
    *evaluation = (struct atoll_evaluation){.start = task->start,
                                            .count = task->count,
                                            .part = task->part,
                                            .n_parts = (uint32_t)msg_eval_parts(task->count, task->part)};
    return ATOLL_OK;
}

enum atoll_status atoll_evaluated(struct atoll *a, const double *loss_sums, const uint64_t *tokens,
                                  struct atoll_error *error)
{
    API_CALL;
    enum atoll_status bad = api_check(a, true, "atoll_evaluated", error);
    if (bad != ATOLL_OK) return bad;
    const struct msg_eval *task = a->evaluating ? outer_loop_evaluation(a->loop) : NULL;
    struct wire_part parts[WIRE_PARTS_MAX];
    double sum = 0;
    if (!task) return api_refuse(error, ATOLL_ORDER, "atoll_evaluated: there is none: call it after ATOLL_EVALUATE");
    if (tokens && !loss_sums) return api_refuse(error, ATOLL_INVALID, "atoll_evaluated: loss_sums is NULL");
    uint64_t id = task->eval_id, n = msg_eval_parts(task->count, task->part);
    assert(n <= WIRE_PARTS_MAX);
    for (uint64_t i = 0; tokens && i < n; i++) {
        parts[i] = (struct wire_part){loss_sums[i], tokens[i]};
        sum += loss_sums[i];
    }
    a->evaluating = false;
    worker_session_receive(a->session, 0);
    task = outer_loop_evaluation(a->loop);
    if (outer_loop_want(a->loop) == OUTER_EVAL && task && task->eval_id == id)
        outer_loop_eval_done(a->loop, sum, tokens ? parts : NULL, clock_monotonic_us());
    return ATOLL_OK;
}
