/* Evaluations: the coordinator cuts the validation windows into shares, workers add up their losses, it adds the
 * shares.
 *
 * A share is given to one worker at a time under an id of its own; a worker that falls silent, leaves, or has moved
 * past the version gives it back. Barrier: all workers share one evaluation between two rounds. Async: the worker whose
 * delta was merged last takes all of it while the others go on. At the end everybody shares the whole validation
 * set. */
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

/* May take a share: heard of, with the parameters, and nothing else to do than wait. */
static bool able(const struct engine *e, const struct session *s)
{
    if (!s->id || !s->beating || engine_is_silent(e, s) || engine_eval_holds(e, s)) return false;
    const struct member *m = member_by_id(&e->ledger.round.members, s->member);
    if (!m || m->work.open) return false;
    if (s->last.state == WORKER_CATCHING_UP || s->last.state == WORKER_FINISHED) return false;
    /* Who delivered all its work no longer trains, whatever its last heartbeat said; who was dropped still may. */
    return m->in_step || s->last.state != WORKER_TRAINING;
}

/* What is evaluated, and what its loss is plotted against. */
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
    for (uint32_t i = 0; i < e->sessions.cap; i++) n += able(e, &e->sessions.sessions[i]);
    if (!barrier(e) && !final) n = 1;
    if (n > windows) n = (uint32_t)windows;
    if (n > run->cap) n = run->cap;
    if (!n) n = 1; /* whoever comes takes it */
    assert(!run->open && n <= run->cap && n <= windows);
    run->open = true;
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
    /* async: always of the newest version; a share begun by nobody may follow it */
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
    if (e->eval.open || !due(e, &final) || final || !s || !able(e, s)) return;
    start(e, false);
    give(e, &e->eval.shares[0], s);
}

/* Who gets a share: not the worker that gave it back, which would do so again at once, where others are there who can,
 * or soon will. Async: the share it gets is of a newer version. */
static struct session *taker(struct engine *e, const struct eval_share *share)
{
    struct session *again = NULL;
    bool others = false;
    for (uint32_t i = 0; i < e->sessions.cap; i++) {
        struct session *s = &e->sessions.sessions[i];
        bool returned = s->id == share->returned && (barrier(e) || e->eval.final);
        if (able(e, s) && !returned) return s;
        if (able(e, s)) again = s;
        others = others || (s->id && engine_eval_holds(e, s) && !engine_is_silent(e, s));
    }
    return others ? NULL : again;
}

/* Take shares back from workers that cannot finish them, and give out those that nobody holds. */
static void distribute(struct engine *e)
{
    for (uint32_t i = 0; i < e->eval.n; i++) {
        struct eval_share *share = &e->eval.shares[i];
        const struct session *holder = session_by_id(&e->sessions, share->holder);
        if (share->done) continue;
        if (share->holder && (!holder || engine_is_silent(e, holder))) {
            log_info("evaluation: the share of %s is given to another worker",
                     holder ? holder->name : "a worker that left");
            share->holder = 0;
        }
        struct session *s = share->holder ? NULL : taker(e, share);
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
    for (uint32_t i = 0; i < run->n; i++) { /* in order of windows */
        assert(run->shares[i].done && run->shares[i].tokens > 0);
        record.loss_sum += run->shares[i].loss_sum;
        record.tokens += run->shares[i].tokens;
    }
    if (!isfinite(record.loss_sum)) {
        record.loss_sum = INFINITY; /* one value, whatever the workers' kind of NaN */
        snprintf(text, sizeof text, "the validation loss after round %llu is not finite: training diverged; %s",
                 (unsigned long long)run->round, config_divergence_advice(&e->config));
        engine_emit_text(e, ENGINE_EVENT_FAULT, NULL, text);
    }
    assert(run->open);
    run->open = false;
    record_eval_encode(&record, &w);
    TRY(ledger_write(&e->ledger, RECORD_EVAL, body, w.pos, NULL, err));
    struct engine_event event = {.kind = ENGINE_EVENT_EVAL,
                                 .eval = {.round = run->round,
                                          .version = run->versions[0],
                                          .tokens = run->tokens,
                                          .val_loss = record.loss_sum / (double)record.tokens}};
    engine_emit(e, &event);
    engine_round_follow(e, RECORD_EVAL, NULL, 0); /* after the event: the round's line says it again */
    for (uint32_t i = 0; i < e->sessions.cap; i++)
        if (e->sessions.sessions[i].id) engine_refresh_ready(e, &e->sessions.sessions[i]);
    return STATUS_OK;
}

enum status engine_eval_step(struct engine *e, bool *any_p, struct err *err)
{
    bool final = false;
    if (!e->eval.open && due(e, &final) && (barrier(e) || final)) start(e, final);
    if (!e->eval.open) {
        if (e->info.pending && !due(e, &final) && !round_over(&e->ledger.round)) engine_flush_round(e, NAN);
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
        if (m->tokens) { /* 0: it had moved past the version */
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
