#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/minmax.h"
#include "common/base/units.h"
#include "coordinator/engine/engine_impl.h"

/* The longest time between two looks at all sessions, below ENGINE_PROBE_US: a message only moves the time limits of
 * its session later, so no limit passes unnoticed. */
enum { WATCH_US = 1000000 };

/* --- while joined ------------------------------------------------------------------------------------------------- */

/* Repeats DONE, EVAL or ASSIGN to an idle worker that should be busy: it has lost the message, or its state. */
static enum status remind(struct engine *e, struct session *s, struct err *err)
{
    struct member *m = engine_member(e, s);
    if (e->ledger.done) {
        if (!engine_awaits_last(e, s)) engine_send_done(e, s);
        return STATUS_OK;
    }
    engine_eval_remind(e, s);
    if (!m || !member_waits(m) || s->last.state != WORKER_READY) return STATUS_OK;
    bool past = false, barrier = e->config.train.method != METHOD_ASYNC;
    for (uint32_t f = 0; f < m->n_fragments; f++)
        past = past || (f < s->last.n_fragments && s->last.versions[f] > m->work.versions[f]);
    /* The worker lost its delta and has moved past its base version, so it cannot recompute the delta. */
    if (barrier && past) return engine_drop(e, m, UINT32_MAX, REJECT_BASE, err);
    engine_send_assign(e, s, m);
    return STATUS_OK;
}

static void note_download(struct engine *e, struct session *s)
{
    struct round *r = &e->ledger.round;
    for (uint32_t f = 0; engine_member(e, s) && f < s->last.n_fragments && f < r->p.n_fragments; f++)
        round_note_have(r, s->member, f, s->last.versions[f]);
    uint64_t total = s->last.expected;
    transfer_note(&s->down, s->last.received < total ? s->last.received : total, total, e->now_us);
    if (!s->down_from_us || admission_lacks_update(e, s)) return;
    s->down_us = e->now_us - s->down_from_us;
    s->down_from_us = 0;
}

/* Bytes of the delta are missing, and no save of the worker holds them back: then the last byte is missing, too. */
static bool awaits_bytes(const struct engine *e, const struct session *s)
{
    uint64_t left = 0;
    for (uint32_t f = 0; f < e->ledger.layout.n_fragments; f++) {
        const struct upload *u = &s->uploads[f];
        if (u->active && u->have + 1 == u->offer.bytes) return false;
        if (u->active) left += u->offer.bytes - u->have;
    }
    return s->last.state == WORKER_SENDING && left > PATH_SMALL;
}

/* A heartbeat arrived: the bytes of deltas and updates must pass, too. */
static void watch_path(struct engine *e, struct session *s)
{
    struct transport_path path = {0};
    bool known = e->io.path && s->bulk != SESSION_NO_PEER && e->io.path(e->io.ctx, s->bulk, &path);
    bool up_stuck = known ? path_watch(&s->path_up, awaits_bytes(e, s), path.received, e->now_us)
                          : path_watch_unknown(&s->path_up, e->now_us);
    bool stuck = known ? path_watch(&s->path_down, path.unacked, path.acked, e->now_us)
                       : path_watch_unknown(&s->path_down, e->now_us);
    stuck = stuck || up_stuck;
    if (stuck && !s->path_stuck)
        log_warn("the path %s %s " PATH_WATCH_TEXT ": no byte of a transfer has passed for %d s, but heartbeats "
                 "do; " PATH_WATCH_ADVICE,
                 up_stuck ? "from" : "to", s->name, PATH_STUCK_US / 1000000);
    s->path_stuck = stuck;
}

enum status engine_on_heartbeat(struct engine *e, struct session *s, const struct msg_heartbeat *m, struct err *err)
{
    if (m->state != s->last.state || m->round != s->last.round || m->step != s->last.step ||
        m->received != s->last.received)
        s->moved_us = e->now_us;
    bool refused;
    TRY(engine_check_data(e, s, m, &refused, err));
    if (refused) return STATUS_OK;
    e->eval.changed = e->eval.changed || !s->beating || s->last.state != m->state ||
                      memcmp(s->last.versions, m->versions, m->n_fragments * sizeof *m->versions) != 0;
    s->last = *m;
    s->beating = true;
    note_download(e, s);
    watch_path(e, s);
    struct msg reply = {.type = MSG_HEARTBEAT_ACK, .heartbeat_ack.sent_us = m->sent_us};
    char *waiting_for = reply.heartbeat_ack.waiting_for, late[160];
    if (admission_is_late(e, s))
        snprintf(waiting_for, WIRE_TEXT_MAX, "nobody: this worker is %s", admission_late_text(e, s, late, sizeof late));
    else
        snprintf(waiting_for, WIRE_TEXT_MAX, "%s", engine_waiting_kept(e));
    engine_send_control(e, s, &reply);
    TRY(remind(e, s, err));
    admission_refresh_ready(e, s);
    return STATUS_OK;
}

void engine_reassure(struct engine *e)
{
    struct msg m = {.type = MSG_HEARTBEAT_ACK};
    snprintf(m.heartbeat_ack.waiting_for, sizeof m.heartbeat_ack.waiting_for, "%s", e->waiting);
    for_each_session(e, s) {
        if (!s->closed) engine_send_control(e, s, &m);
    }
    engine_initial_reassure(e);
}

/* --- leaving ------------------------------------------------------------------------------------------------------ */

enum status engine_on_leave(struct engine *e, struct session *s, const struct msg_leave *m, struct err *err)
{
    struct member *member = engine_member(e, s);
    char name[WIRE_NAME_MAX];
    memcpy(name, s->name, sizeof name);
    if (m->finished) e->n_finished++;
    if (m->finished && member) member->left = true;
    if (member) member->expected = false;
    if (!m->finished) TRY(admission_lose_place(e, RECORD_MEMBER_LEAVE, member, err));
    engine_emit_skips(e, s);
    session_remove(&e->sessions, s);
    engine_progress(e);
    engine_emit_text(e, ENGINE_EVENT_LEAVE, name, m->text);
    return STATUS_OK;
}

/* m has lost its place already. */
static void emit_eviction(struct engine *e, const struct member *m, const char *reason)
{
    char text[280];
    snprintf(text, sizeof text, "%s; %s", reason,
             member_count_active(&e->ledger.round.members) ? "other workers get its samples"
                                                           : "its samples wait for the next worker");
    engine_emit_text(e, ENGINE_EVENT_EVICT, m->name, text);
}

enum status engine_revoke(struct engine *e, const uint8_t uuid[WIRE_UUID], struct err *err)
{
    struct session *s = session_by_uuid(&e->sessions, uuid);
    if (e->initial.id && !memcmp(e->initial.join->uuid, uuid, WIRE_UUID)) engine_initial_drop(e);
    struct member *m = member_by_uuid(&e->ledger.round.members, uuid);
    if (m) m->expected = false;
    if (s) {
        engine_refuse(e, s->control, s->name, REFUSE_KEY, ADMISSION_REVOKED_TEXT);
        if (e->io.drop) e->io.drop(e->io.ctx, s->control);
        if (e->io.drop && s->bulk != SESSION_NO_PEER) e->io.drop(e->io.ctx, s->bulk);
        session_remove(&e->sessions, s);
    }
    if (!m || !m->active || e->ledger.done) return STATUS_OK;
    TRY(admission_lose_place(e, RECORD_MEMBER_EVICT, m, err));
    engine_progress(e);
    emit_eviction(e, m, "its key was revoked");
    return STATUS_OK;
}

/* Evicts one member; its session ends. A later message makes the worker join again and get its place back. */
static enum status evict_member(struct engine *e, const struct member *m, struct session *s, uint64_t limit,
                                struct err *err)
{
    char text[200];
    if (s && s->flooded)
        snprintf(text, sizeof text, "its connection was closed for too many messages");
    else
        snprintf(text, sizeof text, "no message for %s%s (limit %s: %s)", units_us(e->now_us - m->heard_us).text,
                 s && s->closed ? ", connection closed" : "", units_us(limit).text, admission_evict_rule(e, s));
    TRY(admission_lose_place(e, RECORD_MEMBER_EVICT, m, err));
    assert(!m->active);
    engine_progress(e);
    emit_eviction(e, m, text);
    if (s) session_remove(&e->sessions, s);
    return STATUS_OK;
}

enum status engine_evict(struct engine *e, struct err *err)
{
    uint64_t gap = admission_anyone_here(e) ? 0 : e->now_us - e->evict_us;
    e->evict_us = e->now_us;
    for_each_member(&e->ledger.round.members, m) m->heard_us += gap;
    for_each_member(&e->ledger.round.members, m) {
        struct session *s = session_by_member(&e->sessions, m->id);
        uint64_t limit = admission_evict_after_us(e, s);
        assert(limit > 0);
        if (m->active && !e->ledger.done && (e->now_us - m->heard_us >= limit || (s && s->flooded)))
            TRY(evict_member(e, m, s, limit, err));
    }
    for_each_session(e, s) {
        if (!admission_may(e, s, ADMISSION_STAY)) session_remove(&e->sessions, s);
    }
    return STATUS_OK;
}

/* --- silence ------------------------------------------------------------------------------------------------------ */

/* The barrier waits for a part of this member, or the evaluation for its share. */
static bool waits_for(const struct engine *e, const struct session *s)
{
    const struct member *m = engine_member(e, s);
    if (engine_eval_holds(e, s) && engine_eval_blocks(e)) return true;
    return m && e->config.train.method != METHOD_ASYNC && member_waits(m);
}

/* A silent partition is only seen as silence. The end of a worker's process closes its connection, and a send to it
 * fails. The text is that of an answered heartbeat. */
static void probe(struct engine *e, struct session *s)
{
    struct msg m = {.type = MSG_HEARTBEAT_ACK};
    if (s->closed || e->now_us - s->heard_us < ENGINE_PROBE_US || e->now_us < s->probe_us) return;
    s->probe_us = e->now_us + ENGINE_PROBE_EVERY_US;
    snprintf(m.heartbeat_ack.waiting_for, sizeof m.heartbeat_ack.waiting_for, "%s", engine_waiting_kept(e));
    if (engine_send(e, s->control, WIRE_CONTROL, &m) != STATUS_CLOSED) return;
    s->closed = true;
    log_info("the connection of %s closed: no message for %s", s->name, units_us(e->now_us - s->heard_us).text);
    if (waits_for(e, s)) e->notice_us = e->now_us;
}

void engine_watch_sessions(struct engine *e)
{
    for_each_session(e, s) {
        probe(e, s);
        if (s->silent || s->closed || !admission_is_silent(e, s)) continue;
        s->silent = true;
        log_info("%s is silent: no message for %s (%d heartbeats)", s->name, units_us(e->now_us - s->heard_us).text,
                 ENGINE_SILENT_BEATS);
        if (waits_for(e, s)) e->notice_us = e->now_us;
    }
}

void engine_watch_plan(struct engine *e)
{
    uint64_t at = e->now_us + WATCH_US;
    e->watch_limit_us = admission_evict_after_us(e, NULL);
    for_each_session(e, s) {
        at = min_u64(at, s->heard_us + admission_evict_after_us(e, s));
        if (s->closed) continue;
        at = min_u64(at, max_u64(s->probe_us, s->heard_us + ENGINE_PROBE_US));
        if (!s->silent) at = min_u64(at, s->heard_us + ENGINE_SILENT_US);
    }
    for_each_member(&e->ledger.round.members, m) {
        if (!m->active) continue;
        at = min_u64(at, m->heard_us + admission_evict_after_us(e, session_by_member(&e->sessions, m->id)));
    }
    e->watch_us = at;
}

uint64_t engine_watch_deadline_us(const struct engine *e)
{
    return admission_evict_after_us(e, NULL) < e->watch_limit_us ? 0 : e->watch_us;
}
