#include "cli/plan/virtual_coordinator.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/config/codec_choice.h"
#include "compress/relay.h"
#include "wire/object.h"
#include "worker/sync/sync.h"

static void coordinator_look(void *ctx, uint64_t at_us);

static void look_at(struct virtual_coordinator *c, uint64_t at_us)
{
    uint64_t now = c->clock->now_us;
    if (at_us == UINT64_MAX) return;
    if (at_us <= now) at_us = now + 1;
    if (c->wake_us > now && c->wake_us <= at_us) return;
    c->wake_us = at_us;
    event_queue_at(c->clock, at_us, coordinator_look, c, at_us);
}

/* Fsyncs the journal, if this run does so at updates. Returns the seconds. */
static double sync_journal(struct virtual_coordinator *c)
{
    const struct plan_costs *costs = c->setup->costs;
    double bytes = (double)c->unsynced;
    c->unsynced = 0;
    return config_syncs_updates(c->setup->config) ? costs->sync_s + bytes * costs->sync_byte_s : 0;
}

/* --- deltas ------------------------------------------------------------------------------------------------------- */

static void send_credit(struct virtual_peer *p, uint64_t round, uint32_t fragment, uint64_t have, uint64_t upto,
                        uint64_t t)
{
    static struct msg m;
    m.type = MSG_CREDIT;
    m.credit = (struct msg_credit){.round = round, .fragment = fragment, .have = have, .upto = upto};
    virtual_line_send(p->down, &m, t);
}

static void reject(struct virtual_peer *p, const struct msg_offer *o, uint16_t code, uint64_t t)
{
    static struct msg m;
    m.type = MSG_REJECT;
    m.reject = (struct msg_reject){.round = o->round, .fragment = o->fragment, .code = code};
    virtual_line_send(p->down, &m, t);
}

/* Judges an offer; true: its payload is wanted. */
static bool judge(struct virtual_peer *p, const struct msg_offer *o, uint64_t t)
{
    struct virtual_coordinator *c = p->coordinator;
    const struct member *m = member_by_id(&c->round.members, p->id);
    struct round_offer offer = {.round = o->round,
                                .base_version = o->base_version,
                                .bytes = o->bytes,
                                .tokens = o->tokens,
                                .fragment = o->fragment,
                                .steps = o->steps,
                                .form = o->form};
    uint16_t code = 0;
    const char *reason;
    switch (round_judge(&c->round, m, &offer, &code, &reason)) {
    case ROUND_ACCEPT: return true;
    case ROUND_HAVE: send_credit(p, o->round, o->fragment, o->bytes, o->bytes, t); return false;
    case ROUND_DROP:
        if (round_fold_drop(&c->round, p->id, o->round, o->fragment, code) != STATUS_OK) *c->failed = true;
        break;
    case ROUND_REJECT: break;
    }
    reject(p, o, code, t);
    return false;
}

static void on_offer(struct virtual_peer *p, const struct msg_offer *o, uint64_t t)
{
    struct round *r = &p->coordinator->round;
    if (!judge(p, o, t)) return;
    round_note_offer(r, member_by_id(&r->members, p->id), t);
    struct upload *u = &p->uploads[o->fragment];
    upload_start(u, o, 0);
    send_credit(p, o->round, o->fragment, u->have, u->upto, t);
}

static void deliver(struct virtual_peer *p, struct upload *u, uint64_t *t)
{
    struct virtual_coordinator *c = p->coordinator;
    const struct msg_offer o = u->offer;
    upload_drop(u);
    /* The payload was written to the spool; it is read, and written to the journal. */
    *t += virtual_us(c->setup->costs->fragments[o.fragment].deliver_s + 3 * (double)o.bytes * c->setup->costs->byte_s);
    c->unsynced += o.bytes;
    if (!judge(p, &o, *t)) return;
    struct part part = {.base_version = o.base_version,
                        .tokens = o.tokens,
                        .bytes = o.bytes,
                        .steps = o.steps,
                        .compute_us = o.compute_us,
                        .norm = o.norm};
    if (round_fold_delta(&c->round, p->id, o.round, o.fragment, &part) != STATUS_OK) *c->failed = true;
    round_note_delivery(&c->round, member_by_id(&c->round.members, p->id), o.fragment, *t);
    send_credit(p, o.round, o.fragment, o.bytes, o.bytes, *t);
}

static void on_chunk(struct virtual_peer *p, const struct msg_chunk *m, uint64_t *t)
{
    struct upload *u = &p->uploads[m->fragment];
    if (!u->active || m->key != u->offer.round || m->offset != u->have) return;
    u->have += m->size;
    if (upload_complete(u))
        deliver(p, u, t);
    else if (upload_extend(u))
        send_credit(p, u->offer.round, m->fragment, u->have, u->upto, *t);
}

/* --- updates ------------------------------------------------------------------------------------------------------ */

static struct virtual_object *object_of(const struct virtual_coordinator *c, uint32_t fragment, uint64_t version)
{
    const struct virtual_log *log = &c->logs[fragment];
    return version && version <= log->n ? &log->objects[version - 1] : NULL;
}

static void leave_out_own(struct virtual_peer *p, uint32_t fragment, uint64_t version)
{
    const struct virtual_object *object = object_of(p->coordinator, fragment, version);
    const struct virtual_named *own = object ? &object->named[p->id] : NULL;
    if (own && own->to) download_leave_out(&p->download, fragment, version, own->from, own->to);
}

static void on_get(struct virtual_peer *p, const struct msg_get *m)
{
    const struct virtual_object *object = object_of(p->coordinator, m->fragment, m->version);
    download_add(&p->download, m, object ? object->bytes : 0);
    leave_out_own(p, m->fragment, m->version);
}

/* Adds the object of a closed fragment to its log. */
static void append_object(struct virtual_coordinator *c, const struct round_close *close)
{
    const struct plan_fragment *cost = &c->setup->costs->fragments[close->fragment];
    struct virtual_log *log = &c->logs[close->fragment];
    const struct member *first = member_by_id(&c->round.members, close->ids[0]);
    if (log->n == log->cap) {
        size_t cap = log->cap ? 2 * log->cap : 16;
        struct virtual_object *grown =
            mem_resize(log->objects, log->cap * sizeof *log->objects, cap * sizeof *log->objects);
        if (!grown) {
            *c->failed = true;
            return;
        }
        log->objects = grown;
        log->cap = cap;
    }
    struct virtual_object *o = &log->objects[log->n];
    *o = (struct virtual_object){.round = first->work.round};
    o->named = mem_alloc(c->setup->workers, sizeof *o->named);
    if (!o->named) {
        *c->failed = true;
        return;
    }
    log->n++;
    struct update u = {.n_named = close->n, .codec = "relay"};
    if (!cost->relayed) config_down_spec(c->setup->config, false, u.codec);
    uint64_t at = update_encoded_size(&u) - sizeof(uint32_t) + relay_head_size(close->n);
    for (uint32_t i = 0; i < c->setup->workers; i++) o->named[i].round = SYNC_NO_ROUND;
    for (uint32_t i = 0; i < close->n; i++) {
        struct virtual_named *named = &o->named[close->ids[i]];
        named->round = member_by_id(&c->round.members, close->ids[i])->work.round;
        if (!cost->relayed) continue;
        named->from = at;
        named->to = at += round_close_part(&c->round, close, i)->bytes;
    }
    o->bytes = cost->relayed ? at + sizeof(uint32_t) : update_encoded_size(&u) + cost->down_bytes;
}

static void note_end(struct virtual_coordinator *c, uint64_t t)
{
    if (c->n_ends == c->cap_ends) {
        size_t cap = c->cap_ends ? 2 * c->cap_ends : 64;
        uint64_t *grown = mem_resize(c->ends_us, c->cap_ends * sizeof *grown, cap * sizeof *grown);
        if (!grown) {
            *c->failed = true;
            return;
        }
        c->ends_us = grown;
        c->cap_ends = cap;
    }
    c->ends_us[c->n_ends++] = t;
}

static void close_one(struct virtual_coordinator *c, const struct round_close *close, uint64_t *t)
{
    struct round *r = &c->round;
    const struct plan_fragment *cost = &c->setup->costs->fragments[close->fragment];
    struct round_named named[VIRTUAL_WORKERS_MAX];
    uint64_t done = round_done(r), version = r->versions[close->fragment] + 1;
    append_object(c, close);
    if (*c->failed) return;
    uint64_t bytes = object_of(c, close->fragment, version)->bytes;
    for (uint32_t i = 0; i < close->n; i++)
        *t += virtual_us(cost->merge_s + (double)round_close_part(r, close, i)->bytes * c->setup->costs->byte_s);
    c->unsynced += bytes;
    *t += virtual_us(cost->outer_s + (double)bytes * c->setup->costs->byte_s + sync_journal(c));
    for (uint32_t i = 0; i < close->n; i++)
        named[i] = (struct round_named){close->ids[i], member_by_id(&r->members, close->ids[i])->work.round};
    if (round_fold_update(r, close->fragment, version, named, close->n) != STATUS_OK) *c->failed = true;
    for (uint32_t i = 0; i < c->setup->workers; i++) {
        download_wake(&c->peers[i].download, close->fragment, version, object_of(c, close->fragment, version)->bytes);
        leave_out_own(&c->peers[i], close->fragment, version);
    }
    for (; done < round_done(r); done++) {
        round_note_close(r, *t);
        note_end(c, *t);
    }
}

/* --- work --------------------------------------------------------------------------------------------------------- */

static void refresh_ready(struct virtual_coordinator *c)
{
    for (uint32_t i = 0; i < c->setup->workers; i++)
        member_by_id(&c->round.members, i)->ready = c->peers[i].state == WORKER_READY;
}

static void send_assign(struct virtual_peer *p, uint64_t t)
{
    static struct msg m;
    const struct round *r = &p->coordinator->round;
    const struct assignment *work = &member_by_id(&r->members, p->id)->work;
    m.type = MSG_ASSIGN;
    m.assign = (struct msg_assign){.round = work->round,
                                   .worker_id = p->id,
                                   .steps = work->steps,
                                   .step0 = work->step0,
                                   .step_rate = work->step_rate,
                                   .lr = NAN,
                                   .n_ranges = work->n_ranges,
                                   .n_fragments = r->p.n_fragments};
    memcpy(m.assign.ranges, work->ranges, sizeof m.assign.ranges);
    memcpy(m.assign.versions, work->versions, r->p.n_fragments * sizeof *work->versions);
    virtual_line_send(p->down, &m, t);
}

static bool open_work(struct virtual_coordinator *c, uint64_t *t)
{
    struct round *r = &c->round;
    struct round_open open = {.grants = c->grants};
    if (round_over(r) || round_plan(r, *t, &open) != STATUS_OK || !open.n) return false;
    *t += virtual_us(sync_journal(c));
    if (round_fold_open(r, &open) != STATUS_OK) *c->failed = true;
    round_note_open(r, *t);
    for (uint32_t i = 0; i < open.n; i++) {
        struct virtual_peer *p = &c->peers[open.grants[i].id];
        if (p->state == WORKER_READY) p->state = WORKER_TRAINING; /* until its next heartbeat */
        send_assign(p, *t);
    }
    return true;
}

static void serve(struct virtual_peer *p, uint64_t t)
{
    static struct msg m;
    struct download_item item;
    uint64_t size;
    while (download_next(&p->download, &item, &size)) {
        const struct virtual_object *object = object_of(p->coordinator, item.fragment, item.version);
        m.type = MSG_CHUNK;
        m.chunk = (struct msg_chunk){.kind = item.kind,
                                     .fragment = item.fragment,
                                     .key = item.version,
                                     .offset = item.at,
                                     .total = item.total,
                                     .size = size};
        struct virtual_message *v = virtual_line_send(p->down, &m, t);
        if (!v) return;
        v->round = object->round;
        v->named_round = object->named[p->id].round;
        v->own_from = object->named[p->id].from;
        v->own_to = object->named[p->id].to;
        download_sent(&p->download, &item, size);
    }
}

/* Closes what can close, opens what can open, and sends what was requested. */
static void go_on(struct virtual_coordinator *c, uint64_t t)
{
    struct round_close close;
    bool any = true;
    while (any && !*c->failed) {
        any = false;
        while (!*c->failed && round_next_close(&c->round, t, &close)) {
            close_one(c, &close, &t);
            any = true;
        }
        refresh_ready(c);
        round_note_idle(&c->round, t);
        any = (!*c->failed && open_work(c, &t)) || any;
        refresh_ready(c);
        for (uint32_t i = 0; i < c->setup->workers && !*c->failed; i++) serve(&c->peers[i], t);
    }
    c->busy_us = t;
    look_at(c, round_deadline_us(&c->round));
}

static void handle(struct virtual_peer *p, const struct virtual_message *v, uint64_t *t)
{
    switch (v->type) {
    case MSG_OFFER: on_offer(p, &v->offer, *t); break;
    case MSG_CHUNK: on_chunk(p, &v->chunk, t); break;
    case MSG_GET: on_get(p, &v->get); break;
    case MSG_HEARTBEAT: p->state = v->heartbeat.state; break;
    default: break;
    }
}

static void coordinator_look(void *ctx, uint64_t at_us)
{
    struct virtual_coordinator *c = ctx;
    uint64_t t = c->clock->now_us;
    if (at_us != c->wake_us) return;
    c->wake_us = 0;
    if (t < c->busy_us) {
        look_at(c, c->busy_us);
        return;
    }
    for (uint32_t i = 0; i < c->setup->workers; i++)
        for (struct virtual_message *v; (v = virtual_queue_take(&c->peers[i].inbox));) {
            handle(&c->peers[i], v, &t);
            mem_free(v);
        }
    go_on(c, t);
}

void virtual_coordinator_receive(void *ctx, struct virtual_message *m)
{
    struct virtual_peer *p = ctx;
    virtual_queue_put(&p->inbox, m);
    look_at(p->coordinator, p->coordinator->clock->now_us + 1);
}

bool virtual_coordinator_done(const struct virtual_coordinator *c)
{
    return round_over(&c->round) && !round_busy(&c->round);
}

enum status virtual_coordinator_start(struct virtual_coordinator *c)
{
    uint32_t n = c->setup->costs->n_fragments;
    round_init(&c->round, c->setup->config, n);
    c->grants = mem_alloc(c->setup->workers, sizeof *c->grants);
    c->logs = mem_alloc(n, sizeof *c->logs);
    if (!c->grants || !c->logs) return STATUS_NOMEM;
    for (uint32_t i = 0; i < c->setup->workers; i++) {
        struct virtual_peer *p = &c->peers[i];
        uint8_t uuid[WIRE_UUID] = {(uint8_t)i, (uint8_t)(i >> 8), 1};
        char name[WIRE_NAME_MAX];
        p->coordinator = c;
        p->id = i;
        p->state = WORKER_READY;
        p->uploads = mem_alloc(n, sizeof *p->uploads);
        if (!p->uploads) return STATUS_NOMEM;
        snprintf(name, sizeof name, "worker-%u", i);
        TRY(round_fold_join(&c->round, i, uuid, name));
    }
    look_at(c, 1);
    return STATUS_OK;
}

void virtual_coordinator_finish(struct virtual_coordinator *c)
{
    for (uint32_t i = 0; i < c->setup->workers; i++) {
        mem_free(c->peers[i].uploads);
        virtual_queue_clear(&c->peers[i].inbox);
    }
    for (uint32_t f = 0; c->logs && f < c->setup->costs->n_fragments; f++) {
        for (size_t v = 0; v < c->logs[f].n; v++) mem_free(c->logs[f].objects[v].named);
        mem_free(c->logs[f].objects);
    }
    mem_free(c->logs);
    mem_free(c->grants);
    mem_free(c->ends_us);
    round_finish(&c->round);
}
