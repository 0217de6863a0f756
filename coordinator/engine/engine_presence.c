#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "coordinator/engine/engine_impl.h"

/* --- while joined ------------------------------------------------------------------------------------------------- */

/* Repeats DONE, EVAL or ASSIGN to an idle worker that should be busy: it has lost the message, or its state. */
static enum status remind(struct engine *e, struct session *s, struct err *err)
{
    struct member *m = member_by_id(&e->ledger.round.members, s->member);
    if (e->ledger.done) {
        engine_send_done(e, s);
        return STATUS_OK;
    }
    engine_eval_remind(e, s);
    if (!m || !m->work.open || s->last.state != WORKER_READY) return STATUS_OK;
    bool waited = false, past = false, barrier = e->config.train.method != METHOD_ASYNC;
    for (uint32_t f = 0; f < e->ledger.layout.n_fragments; f++) {
        waited = waited || m->work.parts[f].state == PART_WAITED;
        past = past || (f < s->last.n_fragments && s->last.versions[f] > m->work.versions[f]);
    }
    if (!waited) return STATUS_OK;
    /* The worker lost its delta and has moved past its base version, so it cannot recompute the delta. */
    if (barrier && past) return engine_drop(e, m, UINT32_MAX, REJECT_BASE, err);
    engine_send_assign(e, s, m);
    return STATUS_OK;
}

enum status engine_on_heartbeat(struct engine *e, struct session *s, const struct msg_heartbeat *m, struct err *err)
{
    if (m->state != s->last.state || m->round != s->last.round || m->step != s->last.step) s->moved_us = e->now_us;
    s->last = *m;
    s->beating = true;
    struct msg reply = {.type = MSG_HEARTBEAT_ACK, .heartbeat_ack.sent_us = m->sent_us};
    engine_waiting(e, reply.heartbeat_ack.waiting_for, sizeof reply.heartbeat_ack.waiting_for);
    engine_send_control(e, s, &reply);
    TRY(remind(e, s, err));
    engine_refresh_ready(e, s);
    return STATUS_OK;
}

/* --- leaving ------------------------------------------------------------------------------------------------------ */

enum status engine_on_leave(struct engine *e, struct session *s, const struct msg_leave *m, struct err *err)
{
    struct member *member = member_by_id(&e->ledger.round.members, s->member);
    char name[WIRE_NAME_MAX];
    memcpy(name, s->name, sizeof name);
    if (m->finished) e->n_finished++;
    if (m->finished && member) member->left = true;
    if (!m->finished) TRY(engine_lose_place(e, RECORD_MEMBER_LEAVE, member, err));
    engine_emit_skips(e, s);
    session_remove(&e->sessions, s);
    engine_progress(e);
    engine_emit_text(e, ENGINE_EVENT_LEAVE, name, m->text);
    return STATUS_OK;
}

enum status engine_evict(struct engine *e, struct err *err)
{
    uint64_t limit = engine_evict_after_us(e);
    char text[160];
    assert(limit > 0);
    for (uint32_t i = 0; i < e->sessions.cap; i++) {
        struct session *s = &e->sessions.sessions[i];
        if (s->id && e->now_us - s->heard_us >= limit) session_remove(&e->sessions, s);
    }
    for (uint32_t i = 0; i < e->ledger.round.members.n && !e->ledger.done; i++) {
        const struct member *m = e->ledger.round.members.members[i];
        if (!m->active || e->now_us - m->heard_us < limit) continue;
        snprintf(text, sizeof text, "no message for %.1f s (limit %.1f s, %s); other workers get its samples",
                 (double)(e->now_us - m->heard_us) * 1e-6, (double)limit * 1e-6, engine_evict_rule(e));
        TRY(engine_lose_place(e, RECORD_MEMBER_EVICT, m, err));
        assert(!m->active);
        engine_progress(e);
        engine_emit_text(e, ENGINE_EVENT_EVICT, m->name, text);
        struct session *s = session_by_member(&e->sessions, m->id);
        if (s) session_remove(&e->sessions, s); /* a later message makes the worker join again and get its place back */
    }
    return STATUS_OK;
}
