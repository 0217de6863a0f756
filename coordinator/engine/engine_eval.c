/* Evaluations: the coordinator splits the validation windows into shares, workers sum their losses, and the coordinator
 * sums the shares.
 *
 * - One worker at a time holds a share, under a fresh id. A worker returns its share when it falls silent, leaves, has
 *   moved past the version, or takes longer than share_limit_us.
 * - A second worker evaluates a sample of the parts of each share, drawn after the first answer (engine_eval_judge.c).
 *   The value of a share is always the first worker's, so the sum keeps its bits.
 * - Barrier: all workers share one evaluation between two rounds.
 * - Async: the worker whose delta was merged last takes the whole evaluation while the others continue. No other worker
 *   has the same version, so the value is its word, and lines say so.
 * - At the end of the run all workers share the whole validation set.
 * - Workers without validation data get no share. If all workers are such, there is no evaluation.
 * - An evaluation ends without a value if no worker gives one: the run must not wait without end.
 * - A region evaluates when upstream asks it: a share of upstream's evaluation is the whole of its own. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/units.h"
#include "coordinator/engine/engine_impl.h"

/* A share goes to another worker after twice median + 4 MAD of the measured time, at least 15 s. If there is no other
 * worker, the evaluation ends after ten minutes or twice that limit. */
static const double limit_k = 4;
static const uint64_t limit_floor_us = 15000000, limit_unknown_us = 600000000, alone_floor_us = 600000000;

enum { LOOK_US = 500000 }; /* between two looks at the time limits of all shares */

static bool barrier(const struct engine *e)
{
    return e->config.train.method != METHOD_ASYNC;
}

static bool has_data(const struct engine *e)
{
    return e->ledger.model.val_samples > 0 && !e->ledger.region; /* upstream evaluates */
}

/* All workers of the run are here, at least one, and none of them has validation data. */
static bool none_evaluates(const struct engine *e)
{
    for_each_session(e, s) {
        if (s->evaluates) return false;
    }
    for_each_member(&e->ledger.round.members, m) {
        if (m->active && !session_by_member(&e->sessions, m->id)) return false;
    }
    return session_next(&e->sessions, NULL) != NULL;
}

bool engine_eval_complete(const struct engine *e)
{
    return !has_data(e) || (e->ledger.evaluated && e->ledger.eval_final);
}

static bool due(const struct engine *e, bool *final_p)
{
    const struct ledger *l = &e->ledger;
    uint64_t done = round_done(&l->round), last = l->evaluated ? l->eval_round : 0;
    *final_p = round_over(&l->round);
    if (!has_data(e) || l->done || engine_eval_complete(e)) return false;
    if (*final_p) return !round_busy(&l->round);
    if (!done || none_evaluates(e) || (barrier(e) && round_busy(&l->round))) return false;
    uint64_t before = !barrier(e) ? last : last == done ? done : done - 1;
    return engine_eval_points(e, done) > engine_eval_points(e, before);
}

/* Sets the versions to evaluate, and the round and tokens of their loss. */
static void take_newest(struct engine *e)
{
    const struct round *r = &e->ledger.round;
    e->eval.round = round_done(r);
    e->eval.tokens = r->tokens;
    memcpy(e->eval.versions, r->versions, sizeof e->eval.versions);
}

/* Windows of one part. A part consists of whole batches: a worker sums WIRE_EVAL_WINDOWS windows at a time, in batches.
 */
static uint64_t part_windows(const struct engine *e, uint64_t count)
{
    uint64_t batch = e->config.train.batch_size;
    uint64_t unit = WIRE_EVAL_WINDOWS % batch ? WIRE_EVAL_WINDOWS : batch;
    return unit * msg_eval_parts(count, unit * WIRE_PARTS_MAX);
}

/* The number of shares: one for each worker that can take one. A worker that did not answer its last one counts only
 * if no other worker can. */
static uint32_t share_count(const struct engine *e, uint64_t windows, bool final)
{
    uint32_t n = 0, late = 0;
    for_each_session(e, s) {
        if (!admission_may(e, s, ADMISSION_EVALUATE)) continue;
        n += !s->eval_late;
        late += s->eval_late > 0;
    }
    if (!n) n = late;
    if (!barrier(e) && !final) n = 1;
    if (n > windows) n = (uint32_t)windows;
    if (n > e->eval.cap) n = e->eval.cap;
    return n ? n : 1; /* the next worker takes the whole evaluation */
}

static void start(struct engine *e, bool final)
{
    const struct ledger *l = &e->ledger;
    struct eval_run *run = &e->eval;
    uint64_t windows = l->model.val_samples, part = e->config.train.eval_tokens / l->model.sample_tokens;
    if (!final && part < windows) windows = part ? part : 1;
    uint32_t n = share_count(e, windows, final);
    assert(!run->open && n <= run->cap && n <= windows);
    run->open = true;
    run->begun_us = e->now_us;
    run->final = final;
    run->disputed = false;
    run->changed = true;
    run->serial++;
    take_newest(e);
    run->n = n;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t from = windows / n * i + (i < windows % n ? i : windows % n);
        uint64_t count = windows / n + (i < windows % n);
        struct eval_share share = {.start = from, .count = count, .part = part_windows(e, count), .n = count};
        share.wanted = msg_eval_all(msg_eval_parts(count, share.part));
        run->shares[i] = share;
    }
}

void engine_eval_upstream(struct engine *e, const struct msg_eval *m)
{
    struct eval_run *run = &e->eval;
    bool here = m->n_fragments == e->ledger.layout.n_fragments;
    for (uint32_t f = 0; f < m->n_fragments && here; f++) here = m->versions[f] == e->ledger.round.versions[f];
    e->region.evaluated = !here; /* with no tokens: not evaluated */
    e->region.result = (struct msg_eval_result){.start = m->start, .count = m->count};
    run->open = here;
    run->final = run->disputed = false;
    if (!here) return;
    run->begun_us = e->now_us;
    run->serial++;
    take_newest(e);
    run->n = 1;
    run->shares[0] =
        (struct eval_share){.start = m->start, .count = m->count, .part = m->part, .n = m->count, .wanted = m->wanted};
}

/* The evaluation that upstream asked for is over. over: why there is no value; NULL: there is one. */
static void answer_upstream(struct engine *e, const char *over)
{
    const struct eval_share *share = &e->eval.shares[0];
    struct msg_eval_result *result = &e->region.result;
    e->region.evaluated = true;
    if (over) {
        engine_emit_text(e, ENGINE_EVENT_FAULT, NULL, over);
        return;
    }
    result->loss_sum = share->loss_sum;
    result->tokens = share->tokens;
    result->n_parts = (uint32_t)msg_eval_parts(share->count, share->part);
    memcpy(result->parts, share->parts, result->n_parts * sizeof *result->parts);
}

static void send_eval(struct engine *e, const struct session *s, const struct eval_share *share)
{
    struct msg m = {.type = MSG_EVAL,
                    .eval = {.eval_id = share->id,
                             .start = share->start,
                             .count = share->count,
                             .part = share->part,
                             .wanted = share->wanted,
                             .n_fragments = e->ledger.layout.n_fragments}};
    memcpy(m.eval.versions, e->eval.versions, e->ledger.layout.n_fragments * sizeof *m.eval.versions);
    engine_send_control(e, s, &m);
}

static void give(struct engine *e, struct eval_share *share, struct session *s)
{
    /* async: the share has not started, so it moves to the newest version */
    if (!barrier(e) && !e->eval.final) take_newest(e);
    assert(e->eval.open && !share->done && !share->holder);
    share->id = ++e->eval_ids;
    share->holder = s->id;
    s->share = (uint32_t)(share - e->eval.shares);
    share->given_us = e->now_us;
    if (!share->asked_us) share->asked_us = e->now_us;
    send_eval(e, s, share);
    admission_refresh_ready(e, s);
}

void engine_eval_prefer(struct engine *e, uint64_t session)
{
    bool final;
    struct session *s = session_by_id(&e->sessions, session);
    if (e->eval.open || !due(e, &final) || final || !s || !admission_may(e, s, ADMISSION_EVALUATE)) return;
    start(e, false);
    give(e, &e->eval.shares[0], s);
}

/* --- holders and their time --------------------------------------------------------------------------------------- */

/* The limit from EVAL to the result. Nothing measured: training on a sample takes at least as long as evaluating it. */
static uint64_t share_limit_us(const struct engine *e, uint64_t windows)
{
    const struct round *r = &e->ledger.round;
    struct deadline_limit arrival = deadline_of(&r->arrivals, limit_k, 0, UINT64_MAX / 8, 0);
    double unknown_ns = (double)limit_unknown_us * 1e3 / (2 * (double)windows);
    double samples = (double)round_span(r, r->round).usual * (double)r->p.step_samples;
    if (arrival.n) unknown_ns = (double)arrival.limit_us * 1e3 / samples;
    struct deadline_limit limit =
        deadline_of(&e->eval.window_ns, limit_k, 0, UINT64_MAX / 8, (uint64_t)fmin(unknown_ns, 1e18));
    double us = 2e-3 * (double)limit.limit_us * (double)windows;
    if (us < (double)limit_floor_us) return limit_floor_us;
    return us < 1e18 ? (uint64_t)us : (uint64_t)1e18;
}

/* The session may take the share soon: it still has another one, or it saves its state. */
static bool will_be_free(const struct engine *e, const struct eval_share *share, const struct session *s)
{
    const struct member *m = engine_member(e, s);
    if (!s->evaluates || !m || m->false_evals || admission_is_aside(e, m) || admission_is_silent(e, s)) return false;
    if (engine_eval_holds(e, s)) return share->holder != s->id;
    bool busy = s->last.state == WORKER_CATCHING_UP && m->in_step && s->eval_passed != e->eval.serial;
    return busy && share->stage != EVAL_FIRST && e->now_us - share->asked_us < share_limit_us(e, share->n);
}

/* Chooses the worker for a share. A worker that returned a share of this evaluation, or did not answer its last EVAL,
 * is the last choice: only for a first answer, and only if no other worker can take it now or soon (*soon_p). Async:
 * the share moves to a newer version, so any worker is good. */
static struct session *choose_holder(struct engine *e, const struct eval_share *share, bool *soon_p)
{
    struct session *again = NULL;
    *soon_p = false;
    for_each_session(e, s) {
        if (!s->evaluates || engine_eval_answered(share, s->member)) continue;
        bool returned = s->eval_passed == e->eval.serial && (barrier(e) || e->eval.final);
        bool last = returned || s->eval_late;
        if (admission_may(e, s, ADMISSION_EVALUATE) && !last) return s;
        if (admission_may(e, s, ADMISSION_EVALUATE) && share->stage == EVAL_FIRST) again = s;
        *soon_p = *soon_p || will_be_free(e, share, s);
    }
    return *soon_p ? NULL : again;
}

/* Workers that evaluate are connected, and the evaluations of all of them were proven wrong. */
static bool all_refused(const struct engine *e)
{
    bool any = false;
    for_each_session(e, s) {
        const struct member *m = engine_member(e, s);
        if (!s->evaluates || admission_is_silent(e, s)) continue;
        if (!m || !m->false_evals) return false;
        any = true;
    }
    return any;
}

/* The holder has not answered in time. True: the share is free again. */
static bool take_late(struct engine *e, struct eval_share *share, struct session *holder, const char **over_p)
{
    char text[WIRE_TEXT_MAX];
    uint64_t limit = share_limit_us(e, share->n), alone = 2 * limit > alone_floor_us ? 2 * limit : alone_floor_us;
    bool soon;
    holder->eval_late = share->id;
    holder->eval_passed = e->eval.serial;
    if (share->stage == EVAL_FIRST && !choose_holder(e, share, &soon)) {
        if (!soon && e->now_us - share->asked_us >= alone) *over_p = "no worker has answered in time";
        return false;
    }
    snprintf(text, sizeof text, "its evaluation after round %llu is late: no result within %s; another worker %s",
             (unsigned long long)e->eval.round, units_us(limit).text,
             share->stage == EVAL_FIRST ? "gets its share" : "checks instead");
    engine_emit_text(e, ENGINE_EVENT_FAULT, holder->name, text);
    share->holder = 0;
    admission_refresh_ready(e, holder);
    return true;
}

static void assign_share(struct engine *e, struct eval_share *share, const char **over_p)
{
    bool soon;
    struct session *s = choose_holder(e, share, &soon);
    if (s)
        give(e, share, s);
    else if (!soon && share->stage != EVAL_FIRST)
        engine_eval_settle(e, share);
    else if (!soon && all_refused(e))
        *over_p = "the results of all workers were refused";
    else if (!soon && none_evaluates(e))
        *over_p = "no worker with validation data is here";
}

/* Takes shares from workers that left, are silent or late, and assigns free shares. *over_p: why there is no value. */
static void distribute(struct engine *e, const char **over_p)
{
    for (uint32_t i = 0; i < e->eval.n && !*over_p; i++) {
        struct eval_share *share = &e->eval.shares[i];
        struct session *holder = session_by_id(&e->sessions, share->holder);
        if (share->done) continue;
        if (share->holder && (!holder || admission_is_silent(e, holder))) {
            log_info("evaluation: giving the share of %s to another worker",
                     holder ? holder->name : "a worker that left");
            share->holder = share->asked_us = 0;
        } else if (holder && e->now_us - share->given_us >= share_limit_us(e, share->n)) {
            if (!take_late(e, share, holder, over_p)) continue;
        }
        if (!share->holder) assign_share(e, share, over_p);
    }
}

/* --- the end of an evaluation ------------------------------------------------------------------------------------- */

static void sum_shares(struct engine *e, struct record_eval *record)
{
    char text[WIRE_TEXT_MAX];
    for (uint32_t i = 0; i < e->eval.n; i++) { /* in order of windows, so that the sum has the same bits every time */
        const struct eval_share *share = &e->eval.shares[i];
        assert(share->done && share->count > 0);
        record->loss_sum += share->loss_sum;
        record->tokens += share->tokens;
        record->by_one |= !share->checked;
    }
    if (isfinite(record->loss_sum)) return;
    record->loss_sum = INFINITY; /* the journal gets one value for all kinds of NaN */
    snprintf(text, sizeof text, "training diverged: the validation loss after round %llu is not finite; %s",
             (unsigned long long)e->eval.round, config_divergence_advice(&e->config));
    engine_emit_text(e, ENGINE_EVENT_FAULT, NULL, text);
}

/* over: why there is no value; NULL: there is one. */
static enum status finish(struct engine *e, const char *over, struct err *err)
{
    struct eval_run *run = &e->eval;
    struct record_eval record = {.clock = engine_clock(e), .round = run->round, .final = run->final};
    char text[WIRE_TEXT_MAX];
    assert(run->open && e->now_us >= run->begun_us);
    run->open = false;
    if (e->ledger.region) {
        answer_upstream(e, over);
        for_each_session(e, s) admission_refresh_ready(e, s);
        return STATUS_OK;
    }
    if (!over) sum_shares(e, &record);
    double eval_s = (double)(e->now_us - run->begun_us) * 1e-6;
    if (!run->final) pace_eval(&e->pace, eval_s);
    TRY(ledger_write(&e->ledger, RECORD_EVAL, &record, NULL, err));
    if (over) {
        snprintf(text, sizeof text, "no validation loss after round %llu: %s", (unsigned long long)run->round, over);
        engine_emit_text(e, ENGINE_EVENT_FAULT, NULL, text);
    } else {
        struct engine_event event = {.kind = ENGINE_EVENT_EVAL,
                                     .eval = {.round = run->round,
                                              .version = run->versions[0],
                                              .tokens = run->tokens,
                                              .val_loss = record.loss_sum / (double)record.tokens,
                                              .eval_s = eval_s,
                                              .disputed = run->disputed,
                                              .by_one = record.by_one}};
        engine_emit(e, &event);
        engine_watch_loss(e, run->round, event.eval.val_loss);
    }
    engine_round_follow(e, RECORD_EVAL, 0); /* after the EVAL event: the round event repeats the loss */
    for_each_session(e, s) admission_refresh_ready(e, s);
    return STATUS_OK;
}

enum status engine_eval_step(struct engine *e, bool *any_p, struct err *err)
{
    bool final = false;
    const char *over = NULL;
    if (!e->eval.open && due(e, &final) && (barrier(e) || final)) start(e, final);
    if (!e->eval.open) {
        if (e->info.pending && !due(e, &final) && !round_over(&e->ledger.round)) engine_flush_round(e, NAN, NAN);
        return STATUS_OK;
    }
    if (!e->eval.changed && e->eval.sessions == e->sessions.changes && e->now_us < e->eval.look_us) return STATUS_OK;
    e->eval.changed = false;
    e->eval.sessions = e->sessions.changes;
    e->eval.look_us = e->now_us + LOOK_US;
    distribute(e, &over);
    for (uint32_t i = 0; i < e->eval.n && !over; i++)
        if (!e->eval.shares[i].done) return STATUS_OK;
    *any_p = true;
    return finish(e, over, err);
}

void engine_on_eval_result(struct engine *e, struct session *s, const struct msg_eval_result *m)
{
    struct eval_share *share = engine_eval_share(e, s);
    if (m->eval_id == s->eval_late && m->tokens) {
        s->eval_late = 0;
        e->eval.changed = true;
    }
    if (!share || share->id != m->eval_id || share->start != m->start || share->count != m->count) return;
    share->holder = 0;
    if (m->tokens)
        engine_eval_answer(e, share, s, m);
    else /* the worker has moved past the version */
        s->eval_passed = e->eval.serial;
    e->eval.changed = true;
    admission_refresh_ready(e, s);
}

bool engine_eval_blocks(const struct engine *e)
{
    bool final;
    if (barrier(e) || e->eval.final) return e->eval.open || (barrier(e) && due(e, &final));
    return false;
}

void engine_eval_remind(struct engine *e, const struct session *s)
{
    const struct eval_share *share = engine_eval_share(e, s);
    if (share && s->last.state != WORKER_EVALUATING) send_eval(e, s, share);
}
