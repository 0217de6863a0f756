#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "coordinator/engine/engine_impl.h"

enum {
    SHORT_LIFE_US = 3000000, /* a session that is replaced sooner is short-lived */
    COPY_TIMES = 2           /* short-lived sessions in a row that prove two processes with one identity */
};

/* --- HELLO -------------------------------------------------------------------------------------------------------- */

void engine_on_hello(struct engine *e, uint64_t peer, const struct msg_hello *m)
{
    static const uint8_t none[WIRE_UUID];
    e->knocked_us = e->now_us;
    if (admission_refuses(e, peer, m->uuid, m->name)) return;
    if (memcmp(m->run_id, none, WIRE_UUID) != 0 && memcmp(m->run_id, e->ledger.run_id, WIRE_UUID) != 0) {
        engine_refuse(e, peer, m->name, REFUSE_RUN,
                      "the saved state of worker '%s' belongs to another run: use another --dir, or remove that folder",
                      m->name);
        return;
    }
    struct msg reply = {.type = MSG_CONFIG, .config = {.config_hash = e->config_hash, .text = e->config_text}};
    memcpy(reply.config.run_id, e->ledger.run_id, WIRE_UUID);
    if (engine_send(e, peer, WIRE_CONTROL, &reply) != STATUS_OK)
        log_debug("cannot send CONFIG: the worker will repeat HELLO");
    struct session *s = session_by_uuid(&e->sessions, m->uuid);
    if (s && s->control == peer) s->greeted = true;
}

/* --- JOIN --------------------------------------------------------------------------------------------------------- */

/* The worker's versions are in the update log, so it can continue from its saved state. */
static bool can_resume(const struct engine *e, const struct msg_join *m)
{
    if (m->n_held != e->ledger.layout.n_fragments) return false;
    for (uint32_t f = 0; f < m->n_held; f++) {
        const struct update_entry *entry = update_log_find(&e->ledger.log, f, m->held[f].version);
        if (!entry || entry->hash != m->held[f].hash) return false;
    }
    return true;
}

/* An operator took rounds back, and the worker's versions belong to them. One that is only far behind is before the
 * log.
 */
static bool was_taken_back(const struct engine *e, const struct msg_join *m)
{
    if (m->n_held != e->ledger.layout.n_fragments || can_resume(e, m)) return false;
    for (uint32_t f = 0; e->ledger.n_taken && f < m->n_held; f++)
        if (m->held[f].version > e->ledger.log.f[f].base) return true;
    return false;
}

/* The log has the updates after the worker's versions, but a snapshot has fewer bytes. */
static bool is_far_behind(const struct engine *e, const struct session *s, const struct msg_join *m)
{
    uint64_t versions[LAYOUT_FRAGMENTS_MAX];
    for (uint32_t f = 0; f < m->n_held; f++) versions[f] = m->held[f].version;
    return engine_snapshot_is_shorter(e, s, versions);
}

static void emit_joined(struct engine *e, const char *name, const struct msg_join *m, bool resume)
{
    char text[240];
    const char *what = resume ? "continues from its saved state" : "starts from a snapshot";
    uint64_t version = e->ledger.round.versions[0];
    if (!resume && was_taken_back(e, m)) {
        snprintf(text, sizeof text,
                 "starts from a snapshot, with fresh moments: the run was taken back since its version %llu",
                 (unsigned long long)m->held[0].version);
        what = text;
    } else if (!resume && m->n_held && m->held[0].version > version) {
        snprintf(text, sizeof text,
                 "starts from a snapshot: its version %llu is newer than the run's version %llu (after a power cut, or "
                 "in an older copy of the run folder)",
                 (unsigned long long)m->held[0].version, (unsigned long long)version);
        what = text;
    } else if (!resume && !version) {
        what = "";
    }
    engine_emit_text(e, ENGINE_EVENT_JOIN, name, what);
}

/* Gives the session a place: the previous one of its uuid, a vacant one, or a new one. Before the first round it gets
 * none. */
static enum status seat(struct engine *e, struct session *s, struct err *err)
{
    struct round *round = &e->ledger.round;
    struct member *m = member_by_uuid(&round->members, s->uuid);
    if (!m && !round->members.n) return STATUS_OK;
    if (!m || !m->active || strcmp(m->name, s->name) != 0) {
        uint32_t id = m ? m->id : member_free_place(&round->members);
        assert(id != UINT32_MAX && (m || !session_by_member(&e->sessions, id)));
        TRY(admission_write_member(e, RECORD_MEMBER_JOIN, id, s->uuid, s->name, err));
    }
    m = member_by_uuid(&round->members, s->uuid);
    assert(m && m->active);
    m->heard_us = e->now_us;
    m->ready = false;
    m->left = false;
    session_seat(&e->sessions, s, m->id);
    return STATUS_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct session *const *)a)->name, (*(struct session *const *)b)->name);
}

enum status engine_seat_all(struct engine *e, struct err *err)
{
    struct session **list = mem_alloc(e->sessions.cap, sizeof *list);
    uint32_t n = 0;
    if (!list) return err_set(err, STATUS_NOMEM, "no memory to seat workers");
    for_each_session(e, s) {
        if (s->member == SESSION_NO_MEMBER) list[n++] = s;
    }
    assert(n <= e->sessions.cap);
    qsort(list, n, sizeof(struct session *), by_name);
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < n && status == STATUS_OK; i++) {
        status =
            admission_write_member(e, RECORD_MEMBER_JOIN, e->ledger.round.members.n, list[i]->uuid, list[i]->name, err);
        if (status == STATUS_OK) status = seat(e, list[i], err);
        if (status != STATUS_OK) break;
        admission_refresh_ready(e, list[i]);
    }
    mem_free(list);
    return status;
}

/* The round, + 1, whose ASSIGN the worker will get again: one of its deltas is missing. 0: none. */
static uint64_t assigned_round(const struct engine *e, const struct session *s)
{
    const struct member *m = engine_member(e, s);
    return m && member_waits(m) && e->config.train.method != METHOD_ASYNC ? m->work.round + 1 : 0;
}

static void send_welcome(struct engine *e, const struct session *s, const struct msg_join *join, bool resume,
                         bool shorter)
{
    bool taken_back = !resume && was_taken_back(e, join);
    const struct ledger *l = &e->ledger;
    const struct checkpoint_info *newest = engine_snapshot_newest(e, s);
    assert(newest && newest->n_fragments == l->layout.n_fragments);
    struct msg m = {.type = MSG_WELCOME,
                    .welcome = {.session = s->id,
                                .worker_id = s->member,
                                .heartbeat_ms = ENGINE_HEARTBEAT_MS,
                                .n_fragments = l->layout.n_fragments,
                                .resume = resume,
                                .shorter = shorter,
                                .taken_back = taken_back,
                                .assigned = assigned_round(e, s)}};
    for (uint32_t f = 0; f < l->layout.n_fragments; f++) {
        m.welcome.current[f] = (struct wire_version){l->round.versions[f], l->outer.fragments[f].hash};
        m.welcome.snapshot[f] = (struct wire_version){newest->versions[f], newest->hashes[f]};
    }
    admission_limits_grant(e, &m.welcome, join);
    engine_send_control(e, s, &m);
}

/* Returns whether the worker continues from its saved state. */
static bool welcome(struct engine *e, struct session *s, const struct msg_join *m)
{
    bool known = can_resume(e, m), resume = known && !is_far_behind(e, s, m);
    if (!resume) engine_snapshot_refresh(e, s);
    send_welcome(e, s, m, resume, known && !resume);
    return resume;
}

/* Opens a session for this worker; uploads of its previous session continue. NULL: no free slot, or no memory. */
static struct session *open_session(struct engine *e, uint64_t peer, const struct msg_join *m)
{
    struct session *old = session_by_uuid(&e->sessions, m->uuid), *s;
    struct upload *uploads = NULL;
    uint64_t before = 0, idle_us = e->now_us;
    uint32_t times = 0, aged = 0;
    if (old) {
        aged = old->aged;
        before = old->id;
        idle_us = old->idle_us; /* joining again delivers nothing */
        times = e->now_us - old->joined_us < SHORT_LIFE_US ? old->times + 1 : 0;
        uploads = old->uploads;
        old->uploads = NULL;
        session_remove(&e->sessions, old);
    }
    s = session_add(&e->sessions, engine_draw(e));
    if (!s) {
        for (uint32_t f = 0; uploads && f < e->sessions.n_fragments; f++)
            session_upload_drop(&e->sessions, f, &uploads[f]);
        mem_free(uploads);
        return NULL;
    }
    if (uploads) {
        mem_free(s->uploads);
        s->uploads = uploads;
    }
    memcpy(s->uuid, m->uuid, WIRE_UUID);
    memcpy(s->name, m->name, sizeof s->name);
    memcpy(s->devices, m->devices, sizeof s->devices);
    s->evaluates = m->val_samples > 0;
    s->control = peer;
    s->before = before;
    s->times = times;
    s->aged = aged;
    s->idle_us = idle_us;
    s->joined_us = s->heard_us = s->moved_us = e->now_us;
    return s;
}

/* The session of an earlier copy of this JOIN. A worker repeats JOIN while a large model is defined or read; one that
 * joins anew says HELLO first. */
static struct session *repeated_join(const struct engine *e, uint64_t peer, const struct msg_join *m)
{
    struct session *s = session_by_uuid(&e->sessions, m->uuid);
    return s && s->control == peer && !s->greeted && !strcmp(s->name, m->name) ? s : NULL;
}

/* The MODEL record exists. */
static enum status begin_serving(struct engine *e, const struct msg_join *m, struct err *err)
{
    const struct layout *layout = &e->ledger.layout;
    uint32_t n = layout->n_fragments;
    if (session_table_init(&e->sessions, e->config.coordinator.max_workers, n) != STATUS_OK)
        return err_set(err, STATUS_NOMEM, "no memory for %u workers", e->config.coordinator.max_workers);
    e->sessions.held = &e->ledger.held;
    admission_limits_size(e);
    if (!e->ledger.absent) TRY(engine_checkpoint(e, err));
    char data[64] = "workers draw their own samples", frozen[48] = "";
    if (m->train_samples) snprintf(data, sizeof data, "%llu training samples", (unsigned long long)m->train_samples);
    uint32_t kept = e->ledger.frozen.n;
    if (kept) snprintf(frozen, sizeof frozen, ", and %u frozen tensor%s", kept, kept > 1 ? "s" : "");
    log_info("model: %llu parameters in %u tensors, %u fragment%s%s; %s", (unsigned long long)layout->n_params,
             layout->n_tensors, n, n > 1 ? "s" : "", frozen, data);
    return STATUS_OK;
}

/* A region has no parameters yet: the worker says JOIN again. */
static void tell_to_wait(struct engine *e, uint64_t peer)
{
    struct msg m = {.type = MSG_UPLOAD};
    snprintf(m.upload.text, sizeof m.upload.text, "the model of the run upstream, which this region loads first");
    if (engine_send(e, peer, WIRE_CONTROL, &m) != STATUS_OK) log_debug("cannot send UPLOAD: it will join again");
}

enum status engine_on_join(struct engine *e, uint64_t peer, const struct msg_join *m, struct err *err)
{
    if (admission_refuses(e, peer, m->uuid, m->name)) return STATUS_OK;
    if (m->config_hash != e->config_hash) {
        engine_refuse(e, peer, m->name, REFUSE_CONFIG,
                      "the settings of '%s' differ from the run's: repeat HELLO to get them", m->name);
        return STATUS_OK;
    }
    if (engine_wants_initial(e)) return engine_initial_join(e, peer, m, err);
    if (!e->ledger.modelled) {
        if (!e->initial.id) engine_initial_wait(e, peer);
        TRY(engine_define_model(e, peer, m, err));
        if (!e->ledger.modelled) return STATUS_OK;
        TRY(begin_serving(e, m, err));
        if (!e->initial.id) engine_initial_drop(e); /* after an upload the caller needs its JOIN */
    }
    if (!engine_match(e, peer, m) || !engine_has_memory(e, peer, m)) return STATUS_OK;
    if (!engine_serves(e)) {
        tell_to_wait(e, peer);
        return STATUS_OK;
    }
    struct session *s = repeated_join(e, peer, m);
    if (s) {
        welcome(e, s, m);
        return STATUS_OK;
    }
    bool room;
    TRY(admission_make_room(e, peer, m, &room, err));
    if (!room) return STATUS_OK;
    s = open_session(e, peer, m);
    if (!s) {
        engine_refuse(e, peer, m->name, REFUSE_FULL, "the coordinator has no memory for worker '%s'", m->name);
        return STATUS_OK;
    }
    TRY(engine_define_val(e, m, err));
    TRY(seat(e, s, err));
    bool resume = welcome(e, s, m);
    engine_progress(e);
    emit_joined(e, s->name, m, resume);
    return STATUS_OK;
}

/* The last chunk completes the initial model: its worker joins with it. */
enum status engine_on_initial(struct engine *e, uint64_t peer, const struct msg_chunk *m, struct err *err)
{
    bool complete;
    TRY(engine_initial_chunk(e, peer, m, &complete, err));
    if (!complete) return STATUS_OK;
    enum status status = engine_on_join(e, e->initial.control, e->initial.join, err);
    engine_initial_drop(e);
    return status;
}

void engine_refuse_session(struct engine *e, uint64_t peer, uint64_t id)
{
    const struct session *next = session_after(&e->sessions, id);
    if (!next || next->times < COPY_TIMES) {
        engine_refuse(e, peer, NULL, REFUSE_UNKNOWN_SESSION,
                      "the coordinator was restarted, or has evicted this worker");
        return;
    }
    char text[WIRE_TEXT_MAX];
    snprintf(text, sizeof text,
             "two processes join in turn as '%s', with copies of one folder: start one of them with another --dir and "
             "--name",
             next->name);
    if (!engine_logged_recently(e, text)) log_warn("%s", text);
    engine_refuse(e, peer, NULL, REFUSE_UNKNOWN_SESSION, "%s", text);
}

void engine_on_bind(struct engine *e, uint64_t peer, const struct msg_bind *m)
{
    struct session *s = session_by_id(&e->sessions, m->session);
    if (!s) return; /* refusals go to the control lane: the next heartbeat is refused */
    if (s->bulk != peer) download_resume(&s->download);
    session_bind(&e->sessions, s, peer);
    session_serve(&e->sessions, s, true);
    admission_hear(e, s);
}
