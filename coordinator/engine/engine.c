#include "coordinator/engine/engine_impl.h"

#include <assert.h>
#include <math.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/minmax.h"
#include "common/base/units.h"

enum { STATUS_KEPT_US = 100000 };

/* --- time --------------------------------------------------------------------------------------------------------- */

static void shift_time(uint64_t *at_us, uint64_t gap_us)
{
    if (*at_us) *at_us += gap_us;
}

/* Ticks arrive every second. A longer gap means that this process was stopped, its machine slept, or one call took
 * long. Messages then wait unread, so the gap must not count as silence of the workers, nor their burst as a flood. */
static void advance(struct engine *e, uint64_t now_us)
{
    assert(now_us >= e->now_us); /* the caller's clock is monotonic */
    uint64_t gap = now_us - e->now_us;
    e->now_us = now_us;
    if (gap < ENGINE_PAUSE_US) return;
    if (gap >= ENGINE_NOTICE_US)
        log_info("the coordinator paused for %s: extending all time limits by the pause", units_us(gap).text);
    for_each_session(e, s) {
        shift_time(&s->heard_us, gap);
        shift_time(&s->moved_us, gap);
        shift_time(&s->idle_us, gap);
    }
    for (uint32_t i = 0; e->eval.open && i < e->eval.n; i++) {
        shift_time(&e->eval.shares[i].given_us, gap);
        shift_time(&e->eval.shares[i].asked_us, gap);
    }
    round_note_pause(&e->ledger.round, gap);
    rate_note_pause(&e->rate, gap);
    shift_time(&e->initial.heard_us, gap);
    e->evict_us += gap; /* engine_evict would count it again */
    shift_time(&e->done_us, gap);
}

/* --- events ------------------------------------------------------------------------------------------------------- */

/* Takes all steps that the current state allows: close, evaluate, checkpoint, open, end, send. */
static enum status pump(struct engine *e, struct err *err)
{
    bool any = engine_serves(e);
    if (!any) return STATUS_OK;
    while (any) {
        bool closed = false, evaluated = false, opened = false, ended = false;
        TRY(engine_close_fragments(e, &closed, err));
        if (closed) TRY(engine_serve(e, err)); /* before events and checkpoints: workers wait for these bytes */
        TRY(engine_eval_step(e, &evaluated, err));
        TRY(engine_checkpoint_due(e, err));
        TRY(engine_open_work(e, &opened, err));
        TRY(engine_finish_run(e, &ended, err));
        round_note_idle(&e->ledger.round, e->now_us);
        any = closed || evaluated || opened || ended;
        if (any) engine_progress(e);
    }
    if (e->collect_due && e->now_us >= e->collect_us) TRY(engine_collect(e, err));
    return engine_serve(e, err);
}

/* The session that a message names. Unknown: refuses the message and returns NULL. */
static struct session *claimed_session(struct engine *e, uint64_t peer, uint64_t id)
{
    struct session *s = session_by_id(&e->sessions, id);
    if (!s) {
        engine_refuse_session(e, peer, id);
        return NULL;
    }
    assert(s->id == id);
    s->control = peer;
    admission_hear(e, s);
    return s;
}

/* Many programs may ask at once: they get the same answer for a tenth of a second. */
static void on_status(struct engine *e, uint64_t peer)
{
    if (!e->status_json) e->status_json = mem_alloc(1, WIRE_STATUS_MAX);
    if (!e->status_json) return;
    if (!e->status_us || e->now_us - e->status_us >= STATUS_KEPT_US) {
        if (!engine_status_json(e, e->status_json, WIRE_STATUS_MAX)) return;
        e->status_us = e->now_us;
    }
    struct msg m = {.type = MSG_STATUS_REPLY, .status_reply.json = e->status_json};
    if (engine_send(e, peer, WIRE_CONTROL, &m) != STATUS_OK) log_debug("cannot send a status reply");
}

static enum status dispatch(struct engine *e, uint64_t peer, const struct msg *m, struct err *err)
{
    struct session *s;
    if (!admission_may_send(e, peer, m)) return STATUS_OK;
    switch (m->type) {
    case MSG_ENROL: admission_enrol(e, peer, &m->enrol); return STATUS_OK;
    case MSG_HELLO: engine_on_hello(e, peer, &m->hello); return STATUS_OK;
    case MSG_JOIN: return engine_on_join(e, peer, &m->join, err);
    case MSG_BIND: engine_on_bind(e, peer, &m->bind); return STATUS_OK;
    case MSG_STATUS: on_status(e, peer); return STATUS_OK;
    case MSG_PROBE: admission_probe(e, peer, &m->probe); return STATUS_OK;
    case MSG_MODEL: engine_on_model(e, peer); return STATUS_OK;
    case MSG_FETCH: engine_on_fetch(e, peer, &m->fetch); return STATUS_OK;
    case MSG_CHUNK:
        return m->chunk.kind == OBJECT_INITIAL ? engine_on_initial(e, peer, &m->chunk, err)
                                               : engine_on_chunk(e, peer, &m->chunk, err);
    case MSG_HEARTBEAT:
        s = claimed_session(e, peer, m->heartbeat.session);
        return s ? engine_on_heartbeat(e, s, &m->heartbeat, err) : STATUS_OK;
    case MSG_OFFER:
        s = claimed_session(e, peer, m->offer.session);
        return s ? engine_on_offer(e, s, &m->offer, err) : STATUS_OK;
    case MSG_GET:
        s = claimed_session(e, peer, m->get.session);
        if (s) engine_on_get(e, s, &m->get);
        return STATUS_OK;
    case MSG_EVAL_RESULT:
        s = claimed_session(e, peer, m->eval_result.session);
        if (s) engine_on_eval_result(e, s, &m->eval_result);
        return STATUS_OK;
    case MSG_METRICS:
        s = claimed_session(e, peer, m->metrics.session);
        if (s) engine_on_metrics(e, s, &m->metrics);
        return STATUS_OK;
    case MSG_SAVES:
        s = claimed_session(e, peer, m->saves.session);
        if (s) s->saves = m->saves;
        return STATUS_OK;
    case MSG_LEAVE:
        s = claimed_session(e, peer, m->leave.session);
        return s ? engine_on_leave(e, s, &m->leave, err) : STATUS_OK;
    default: return STATUS_OK; /* messages that only coordinators send */
    }
}

enum status engine_on_message(struct engine *e, uint64_t peer, enum wire_lane lane, const struct msg *m,
                              uint64_t now_us, struct err *err)
{
    advance(e, now_us);
    if (msg_lane(m->type) != lane) return STATUS_OK;
    TRY(dispatch(e, peer, m, err));
    return pump(e, err);
}

enum status engine_on_worker_listed(struct engine *e, const struct engine_worker *w, uint64_t now_us, struct err *err)
{
    advance(e, now_us);
    struct member *m = member_by_uuid(&e->ledger.round.members, w->key); /* a uuid is the start of the key */
    bool readmitted = !w->revoked && m && admission_is_aside(e, m) &&
                      w->readmitted_us < engine_clock(e).elapsed_us - m->struck_us; /* after its last refusal */
    if (!w->revoked && !readmitted) return STATUS_OK;
    TRY(w->revoked ? engine_revoke(e, w->key, err) : admission_readmit(e, m, err));
    return pump(e, err);
}

enum status engine_on_upstream(struct engine *e, const struct engine_upstream *event, uint64_t now_us, struct err *err)
{
    advance(e, now_us);
    TRY(engine_region_take(e, event, err));
    return pump(e, err);
}

bool engine_has_place(const struct engine *e, const uint8_t key[WIRE_KEY])
{
    const struct member *m = member_by_uuid(&e->ledger.round.members, key); /* a uuid is the start of the key */
    return (m && m->active) || session_by_uuid(&e->sessions, key);
}

static void emit_waiting(struct engine *e)
{
    char text[WIRE_TEXT_MAX];
    if (e->ledger.done || e->now_us < e->notice_us) return;
    assert(e->progress_us <= e->now_us);
    uint64_t waited = e->now_us - e->progress_us;
    e->notice_us = e->now_us + waited; /* the next line comes after twice the time */
    if (*engine_waiting(e, text, sizeof text)) engine_emit_text(e, ENGINE_EVENT_WAITING, NULL, text);
}

/* All workers that may still ask know that the run is over. A member that left shortly before the end may join again
 * (after a NaN, for example). Workers that start after the end, up to min_workers, must hear of it, too. */
static bool all_left(const struct engine *e)
{
    if (e->found_done && e->n_finished < e->config.coordinator.min_workers) return false;
    for_each_member(&e->ledger.round.members, m) {
        bool expected = m->active || m->heard_us + ENGINE_EVICT_UNMEASURED_US / 2 > e->done_us;
        if (expected && !m->left) return false;
    }
    return true;
}

static bool any_awaits_last(const struct engine *e)
{
    for_each_session(e, s) {
        if (engine_awaits_last(e, s)) return true;
    }
    return false;
}

/* The process may end. */
static bool is_over(const struct engine *e)
{
    if (!e->ledger.done || engine_follow_waits(e)) return false;
    return all_left(e) || (e->now_us - e->done_us >= ENGINE_LINGER_US && !any_awaits_last(e));
}

enum status engine_tick(struct engine *e, uint64_t now_us, struct err *err)
{
    advance(e, now_us);
    if (engine_serves(e)) {
        engine_watch_sessions(e);
        TRY(engine_evict(e, err));
        engine_watch_plan(e);
    }
    TRY(pump(e, err));
    admission_limits_report(e);
    engine_watch(e);
    TRY(engine_budget_watch(e, err));
    emit_waiting(e);
    if (is_over(e)) e->finished = true;
    return STATUS_OK;
}

static uint64_t next_deadline_us(const struct engine *e)
{
    uint64_t at = min_u64(e->retry_us, admission_limits_deadline_us(e));
    if (is_over(e)) return 0;
    if (e->ledger.done)
        return any_awaits_last(e) || engine_follow_waits(e) ? at : min_u64(at, e->done_us + ENGINE_LINGER_US);
    at = min_u64(at, e->notice_us);
    if (!engine_serves(e)) return at;
    uint64_t round = round_deadline_us(&e->ledger.round);
    if (round > e->now_us) at = min_u64(at, round); /* pump has handled earlier deadlines */
    return min_u64(at, engine_watch_deadline_us(e));
}

uint64_t engine_next_deadline_us(const struct engine *e)
{
    return min_u64(next_deadline_us(e), e->now_us + ENGINE_PAUSE_US / 2);
}

bool engine_modelled(const struct engine *e)
{
    return e->ledger.modelled;
}

bool engine_done(const struct engine *e)
{
    return e->ledger.done;
}

bool engine_finished(const struct engine *e)
{
    return e->finished;
}

enum status engine_stop(struct engine *e, struct err *err)
{
    bool newer = engine_serves(e) && engine_newest(e)->round < round_done(&e->ledger.round);
    if (newer) {
        engine_flush_round(e, NAN, NAN); /* its evaluation follows after the next start */
        TRY(engine_checkpoint(e, err));
    }
    TRY(engine_budget_keep(e, err));
    return journal_sync(&e->ledger.journal, err);
}
