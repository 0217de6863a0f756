/* Evaluations: the coordinator splits the validation windows into shares, workers sum their losses, and the coordinator
 * sums the shares.
 *
 * - One worker at a time holds a share, under a fresh id. A worker returns its share when it falls silent, leaves, or
 *   has moved past the version.
 * - Barrier: all workers share one evaluation between two rounds.
 * - Async: the worker whose delta was merged last takes the whole evaluation while the others continue.
 * - At the end of the run all workers share the whole validation set. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "coordinator/engine/engine_impl.h"

static bool barrier(const struct engine *e)
{
    return e->config.train.method != METHOD_ASYNC;
}

static bool has_data(const struct engine *e)
{
    return e->ledger.model.val_samples > 0;
}

bool engine_eval_complete(const struct engine *e)
{
    return !has_data(e) || (e->ledger.evaluated && e->ledger.eval_final);
}

static bool due(const struct engine *e, bool *final_p)
{
    const struct ledger *l = &e->ledger;
    uint64_t every = e->config.train.eval_every, done = round_done(&l->round), last = l->evaluated ? l->eval_round : 0;
    *final_p = round_over(&l->round);
    if (!has_data(e) || l->done || engine_eval_complete(e)) return false;
    if (*final_p) return !round_busy(&l->round);
    if (!every || !done || (barrier(e) && round_busy(&l->round))) return false;
    return barrier(e) ? done % every == 0 && last != done : done / every > last / every;
}

/* The worker can take a share: it is connected, has the parameters and is idle. */
static bool can_evaluate(const struct engine *e, const struct session *s)
{
    if (!s->id || !s->beating || engine_is_silent(e, s) || engine_eval_holds(e, s)) return false;
    const struct member *m = member_by_id(&e->ledger.round.members, s->member);
    if (!m || m->work.open || engine_is_aside(e, m)) return false;
    if (s->last.state == WORKER_CATCHING_UP || s->last.state == WORKER_FINISHED) return false;
    /* A member in step delivered all its work, so an older heartbeat may still say "training". A member whose work was
     * dropped may really be training. */
    return m->in_step || s->last.state != WORKER_TRAINING;
}

/* Sets the versions to evaluate, and the round and tokens of their loss. */
static void take_newest(struct engine *e)
{
    const struct round *r = &e->ledger.round;
    e->eval.round = round_done(r);
    e->eval.tokens = r->tokens;
    memcpy(e->eval.versions, r->versions, sizeof e->eval.versions);
}

static void start(struct engine *e, bool final)
{
    const struct ledger *l = &e->ledger;
    struct eval_run *run = &e->eval;
    uint64_t windows = l->model.val_samples, part = e->config.train.eval_tokens / l->model.sample_tokens;
    uint32_t n = 0;
    if (!final && part < windows) windows = part ? part : 1;
    for (uint32_t i = 0; i < e->sessions.cap; i++) n += can_evaluate(e, &e->sessions.sessions[i]);
    if (!barrier(e) && !final) n = 1;
    if (n > windows) n = (uint32_t)windows;
    if (n > run->cap) n = run->cap;
    if (!n) n = 1; /* the next worker takes the whole evaluation */
    assert(!run->open && n <= run->cap && n <= windows);
    run->open = true;
    run->begun_us = e->now_us;
    run->final = final;
    take_newest(e);
    run->n = n;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t from = windows / n * i + (i < windows % n ? i : windows % n);
        run->shares[i] = (struct eval_share){.start = from, .count = windows / n + (i < windows % n)};
    }
}

static void send_eval(struct engine *e, const struct session *s, const struct eval_share *share)
{
    struct msg m = {.type = MSG_EVAL,
                    .eval = {.eval_id = share->id,
                             .start = share->start,
                             .count = share->count,
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
    send_eval(e, s, share);
    engine_refresh_ready(e, s);
}

void engine_eval_prefer(struct engine *e, uint64_t session)
{
    bool final;
    struct session *s = session_by_id(&e->sessions, session);
    if (e->eval.open || !due(e, &final) || final || !s || !can_evaluate(e, s)) return;
    start(e, false);
    give(e, &e->eval.shares[0], s);
}

/* Chooses the worker for a share. The worker that returned it would return it again, so it is the last choice: only if
 * no other worker can take it now or soon. Async: the share moves to a newer version, so any worker is good. */
static struct session *choose_holder(struct engine *e, const struct eval_share *share)
{
    struct session *again = NULL;
    bool others = false;
    for (uint32_t i = 0; i < e->sessions.cap; i++) {
        struct session *s = &e->sessions.sessions[i];
        bool returned = s->id == share->returned && (barrier(e) || e->eval.final);
        if (can_evaluate(e, s) && !returned) return s;
        if (can_evaluate(e, s)) again = s;
        others = others || (s->id && engine_eval_holds(e, s) && !engine_is_silent(e, s));
    }
    return others ? NULL : again;
}

/* Takes shares from workers that left or are silent, and assigns free shares. */
static void distribute(struct engine *e)
{
    for (uint32_t i = 0; i < e->eval.n; i++) {
        struct eval_share *share = &e->eval.shares[i];
        const struct session *holder = session_by_id(&e->sessions, share->holder);
        if (share->done) continue;
        if (share->holder && (!holder || engine_is_silent(e, holder))) {
            log_info("evaluation: giving the share of %s to another worker",
                     holder ? holder->name : "a worker that left");
            share->holder = 0;
        }
        struct session *s = share->holder ? NULL : choose_holder(e, share);
        if (s) give(e, share, s);
    }
}

static enum status finish(struct engine *e, struct err *err)
{
    struct eval_run *run = &e->eval;
    struct record_eval record = {.clock = engine_clock(e), .round = run->round, .final = run->final};
    uint8_t body[RECORD_SMALL_MAX];
    struct writer w = writer_of(body, sizeof body);
    char text[WIRE_TEXT_MAX];
    for (uint32_t i = 0; i < run->n; i++) { /* in order of windows, so that the sum has the same bits every time */
        assert(run->shares[i].done && run->shares[i].tokens > 0);
        record.loss_sum += run->shares[i].loss_sum;
        record.tokens += run->shares[i].tokens;
    }
    if (!isfinite(record.loss_sum)) {
        record.loss_sum = INFINITY; /* the journal gets one value for all kinds of NaN */
        snprintf(text, sizeof text, "training diverged: the validation loss after round %llu is not finite; %s",
                 (unsigned long long)run->round, config_divergence_advice(&e->config));
        engine_emit_text(e, ENGINE_EVENT_FAULT, NULL, text);
    }
    assert(run->open && e->now_us >= run->begun_us);
    run->open = false;
    double eval_s = (double)(e->now_us - run->begun_us) * 1e-6;
    if (!run->final) pace_eval(&e->pace, eval_s);
    record_eval_encode(&record, &w);
    TRY(ledger_write(&e->ledger, RECORD_EVAL, body, w.pos, NULL, err));
    struct engine_event event = {.kind = ENGINE_EVENT_EVAL,
                                 .eval = {.round = run->round,
                                          .version = run->versions[0],
                                          .tokens = run->tokens,
                                          .val_loss = record.loss_sum / (double)record.tokens,
                                          .eval_s = eval_s}};
    engine_emit(e, &event);
    engine_watch_loss(e, run->round, event.eval.val_loss);
    engine_round_follow(e, RECORD_EVAL, NULL, 0); /* after the EVAL event: the round event repeats the loss */
    for (uint32_t i = 0; i < e->sessions.cap; i++)
        if (e->sessions.sessions[i].id) engine_refresh_ready(e, &e->sessions.sessions[i]);
    return STATUS_OK;
}

enum status engine_eval_step(struct engine *e, bool *any_p, struct err *err)
{
    bool final = false;
    if (!e->eval.open && due(e, &final) && (barrier(e) || final)) start(e, final);
    if (!e->eval.open) {
        if (e->info.pending && !due(e, &final) && !round_over(&e->ledger.round)) engine_flush_round(e, NAN, NAN);
        return STATUS_OK;
    }
    distribute(e);
    for (uint32_t i = 0; i < e->eval.n; i++)
        if (!e->eval.shares[i].done) return STATUS_OK;
    *any_p = true;
    return finish(e, err);
}

void engine_on_eval_result(struct engine *e, struct session *s, const struct msg_eval_result *m)
{
    for (uint32_t i = 0; e->eval.open && i < e->eval.n; i++) {
        struct eval_share *share = &e->eval.shares[i];
        if (share->done || share->holder != s->id || share->id != m->eval_id || share->start != m->start ||
            share->count != m->count)
            continue;
        share->holder = 0;
        share->returned = s->id;
        if (m->tokens) { /* 0: the worker has moved past the version */
            share->done = true;
            share->loss_sum = m->loss_sum;
            share->tokens = m->tokens;
        }
        engine_refresh_ready(e, s);
    }
}

bool engine_eval_blocks(const struct engine *e)
{
    bool final;
    if (barrier(e) || e->eval.final) return e->eval.open || (barrier(e) && due(e, &final));
    return false;
}

void engine_eval_remind(struct engine *e, const struct session *s)
{
    for (uint32_t i = 0; e->eval.open && i < e->eval.n; i++) {
        const struct eval_share *share = &e->eval.shares[i];
        if (!share->done && share->holder == s->id && s->last.state != WORKER_EVALUATING) send_eval(e, s, share);
    }
}
