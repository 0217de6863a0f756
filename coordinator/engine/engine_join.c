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

/* An active member owns its name, silent or not. So does a session that waits for the first round. */
static bool name_is_taken(const struct engine *e, const uint8_t uuid[WIRE_UUID], const char *name)
{
    const struct member_table *members = &e->ledger.round.members;
    const struct session *s = session_by_name(&e->sessions, name);
    if (s && memcmp(s->uuid, uuid, WIRE_UUID) != 0) return true;
    for (uint32_t i = 0; i < members->n; i++) {
        const struct member *m = members->members[i];
        if (m->active && !strcmp(m->name, name) && memcmp(m->uuid, uuid, WIRE_UUID) != 0) return true;
    }
    return false;
}

bool engine_refuse_name(struct engine *e, uint64_t peer, const uint8_t uuid[WIRE_UUID], const char *name)
{
    const struct session *s = session_by_name(&e->sessions, name);
    bool connected = s && !engine_is_silent(e, s);
    if (!name_is_taken(e, uuid, name)) return false;
    engine_refuse(e, peer, name, REFUSE_NAME,
                  connected
                      ? "another worker with the name '%s' is connected: choose another name (--name, or "
                        "name= in a script)"
                      : "the name '%s' belongs to a worker that is silent: choose another name (--name, or name= in "
                        "a script), or wait until "
                        "the run goes on without it",
                  name);
    return true;
}

/* The connected worker with the same uuid and another name: both use copies of one folder. NULL: none. */
static const struct session *original_of(const struct engine *e, const uint8_t uuid[WIRE_UUID], const char *name)
{
    const struct session *s = session_by_uuid(&e->sessions, uuid);
    return s && strcmp(s->name, name) != 0 && !engine_is_silent(e, s) ? s : NULL;
}

static bool refuse_early(struct engine *e, uint64_t peer, const uint8_t uuid[WIRE_UUID], const char *name)
{
    struct engine_peer p;
    if (engine_refuse_name(e, peer, uuid, name)) return true;
    const struct session *original = original_of(e, uuid, name);
    if (original) {
        engine_refuse(e, peer, name, REFUSE_NAME,
                      "the folder of '%s' is a copy of the folder of '%s', which is connected: use another --dir", name,
                      original->name);
        return true;
    }
    if (e->io.peer && e->io.peer(e->io.ctx, peer, &p) && strcmp(p.name, name) != 0) {
        engine_refuse(e, peer, name, REFUSE_KEY,
                      "the key of '%s' is enrolled under the name '%s': use that --name, or another --dir", name,
                      p.name);
        return true;
    }
    return false;
}

void engine_on_hello(struct engine *e, uint64_t peer, const struct msg_hello *m)
{
    static const uint8_t none[WIRE_UUID];
    e->knocked_us = e->now_us;
    if (refuse_early(e, peer, m->uuid, m->name)) return;
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
}

/* --- JOIN --------------------------------------------------------------------------------------------------------- */

static void refuse_layout(struct engine *e, uint64_t peer, const struct msg_join *m)
{
    struct layout other;
    struct reader r = reader_of(m->layout, m->layout_size);
    char what[LAYOUT_DIFFERENCE_MAX] = "cannot read its layout";
    layout_init(&other);
    if (layout_decode(&other, &r) == STATUS_OK) layout_difference(&other, &e->ledger.layout, what);
    layout_finish(&other);
    engine_refuse(e, peer, m->name, REFUSE_LAYOUT, "the model of '%s' differs from the run's: %s", m->name, what);
}

/* Compares the tensors that are not exchanged. Refuses the worker and returns false if they differ. */
static bool frozen_matches(struct engine *e, uint64_t peer, const struct msg_join *m)
{
    const struct record_model *run = &e->ledger.model;
    struct frozen other = {0};
    char text[FROZEN_DIFFERENCE_MAX];
    if (!run->frozen || m->frozen_any) return true;
    if (m->frozen_size == run->frozen_size && (!m->frozen_size || !memcmp(m->frozen, run->frozen, m->frozen_size)))
        return true;
    const char *what = "its list of frozen tensors is malformed";
    if (frozen_decode(&other, m->frozen, m->frozen_size) == STATUS_OK)
        what = frozen_difference(&other, &e->ledger.frozen, text);
    frozen_finish(&other);
    assert(what); /* equal lists have equal bytes */
    engine_refuse(e, peer, m->name, REFUSE_LAYOUT,
                  "the base model of '%s' differs from the run's: %s: use the same base model as the other workers; "
                  "frozen=\"any\" allows another quantization of it",
                  m->name, what);
    return false;
}

/* A worker without validation data does not evaluate. */
static void refuse_data(struct engine *e, uint64_t peer, const struct msg_join *m, bool train)
{
    const struct record_model *model = &e->ledger.model;
    uint64_t given = train ? m->train_samples : m->val_samples, run = train ? model->train_samples : model->val_samples;
    char what[64] = "in its content";
    if (given != run)
        snprintf(what, sizeof what, "%llu samples instead of %llu", (unsigned long long)given, (unsigned long long)run);
    else if (m->sample_tokens != model->sample_tokens)
        snprintf(what, sizeof what, "samples of %u tokens instead of %u", m->sample_tokens, model->sample_tokens);
    engine_refuse(e, peer, m->name, REFUSE_DATASET,
                  "the %s data of '%s' differs from the run's (%s): use the same data as the other workers",
                  train ? "training" : "validation", m->name, what);
}

static bool join_matches(struct engine *e, uint64_t peer, const struct msg_join *m)
{
    const struct record_model *model = &e->ledger.model;
    bool train = m->train_hash == model->train_hash && m->train_samples == model->train_samples;
    bool val = !m->val_samples || !model->val_samples ||
               (m->val_hash == model->val_hash && m->val_samples == model->val_samples);
    if (m->layout_hash != layout_hash(&e->ledger.layout))
        refuse_layout(e, peer, m);
    else if (!train || !val || m->sample_tokens != model->sample_tokens)
        refuse_data(e, peer, m, !train || val);
    else
        return frozen_matches(e, peer, m);
    return false;
}

/* The first worker with validation data defines that of the run. */
static enum status define_val(struct engine *e, const struct msg_join *m, struct err *err)
{
    struct record_val val = {.hash = m->val_hash, .samples = m->val_samples};
    if (!m->val_samples || e->ledger.model.val_samples || e->ledger.done) return STATUS_OK;
    log_info("validation data: %llu samples, those of %s", (unsigned long long)m->val_samples, m->name);
    return ledger_write(&e->ledger, RECORD_VAL, &val, NULL, err);
}

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
    if (!resume && m->n_held && m->held[0].version > version) {
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
        TRY(engine_write_member(e, RECORD_MEMBER_JOIN, id, s->uuid, s->name, err));
    }
    m = member_by_uuid(&round->members, s->uuid);
    assert(m && m->active);
    m->heard_us = e->now_us;
    m->ready = false;
    m->left = false;
    s->member = m->id;
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
    for (uint32_t i = 0; i < e->sessions.cap; i++)
        if (e->sessions.sessions[i].id && e->sessions.sessions[i].member == SESSION_NO_MEMBER)
            list[n++] = &e->sessions.sessions[i];
    assert(n <= e->sessions.cap);
    qsort(list, n, sizeof(struct session *), by_name);
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < n && status == STATUS_OK; i++) {
        status =
            engine_write_member(e, RECORD_MEMBER_JOIN, e->ledger.round.members.n, list[i]->uuid, list[i]->name, err);
        if (status == STATUS_OK) status = seat(e, list[i], err);
        if (status != STATUS_OK) break;
        engine_refresh_ready(e, list[i]);
    }
    mem_free(list);
    return status;
}

/* The round, + 1, whose ASSIGN the worker will get again: one of its deltas is missing. 0: none. */
static uint64_t assigned_round(const struct engine *e, const struct session *s)
{
    const struct round *r = &e->ledger.round;
    const struct member *m = member_by_id(&r->members, s->member);
    bool waited = false;
    if (!m || !m->work.open || e->config.train.method == METHOD_ASYNC) return 0;
    for (uint32_t f = 0; f < r->p.n_fragments; f++) waited = waited || m->work.parts[f].state == PART_WAITED;
    return waited ? m->work.round + 1 : 0;
}

static void send_welcome(struct engine *e, const struct session *s, const struct msg_join *join, bool resume,
                         bool shorter)
{
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
                                .assigned = assigned_round(e, s)}};
    for (uint32_t f = 0; f < l->layout.n_fragments; f++) {
        m.welcome.current[f] = (struct wire_version){l->round.versions[f], l->outer.fragments[f].hash};
        m.welcome.snapshot[f] = (struct wire_version){newest->versions[f], newest->hashes[f]};
    }
    engine_limits_grant(e, &m.welcome, join);
    engine_send_control(e, s, &m);
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
        for (uint32_t f = 0; uploads && f < e->sessions.n_fragments; f++) upload_drop(&uploads[f]);
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

enum status engine_on_join(struct engine *e, uint64_t peer, const struct msg_join *m, struct err *err)
{
    if (refuse_early(e, peer, m->uuid, m->name)) return STATUS_OK;
    if (m->config_hash != e->config_hash) {
        engine_refuse(e, peer, m->name, REFUSE_CONFIG,
                      "the settings of '%s' differ from the run's: repeat HELLO to get them", m->name);
        return STATUS_OK;
    }
    if (engine_wants_initial(e)) return engine_initial_join(e, peer, m, err);
    if (!e->ledger.modelled) {
        TRY(engine_define_model(e, peer, m, err));
        if (!e->ledger.modelled) return STATUS_OK;
    }
    if (!join_matches(e, peer, m)) return STATUS_OK;
    bool room;
    TRY(engine_make_room(e, peer, m, &room, err));
    if (!room) return STATUS_OK;
    struct session *s = open_session(e, peer, m);
    if (!s) {
        engine_refuse(e, peer, m->name, REFUSE_FULL, "the coordinator has no memory for worker '%s'", m->name);
        return STATUS_OK;
    }
    TRY(define_val(e, m, err));
    TRY(seat(e, s, err));
    bool known = can_resume(e, m), resume = known && !is_far_behind(e, s, m);
    if (!resume) engine_snapshot_refresh(e, s);
    send_welcome(e, s, m, resume, known && !resume);
    engine_progress(e);
    emit_joined(e, s->name, m, resume);
    return STATUS_OK;
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
    s->bulk = peer;
    engine_hear(e, s);
}
