#include <math.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "tests/lib/sim/sim_check_impl.h"

/* Adds the messages that explain a run to the last events. */
static void note_message(struct sim_check *c, enum sim_net_moment moment, int client, bool to_client,
                         const struct msg *m)
{
    unsigned long long a = 0, b = 0, d = 0;
    switch (m->type) {
    case MSG_HEARTBEAT:
    case MSG_HEARTBEAT_ACK:
    case MSG_METRICS:
    case MSG_STATUS:
    case MSG_STATUS_REPLY: return;
    case MSG_JOIN: a = m->join.n_held, b = m->join.round, d = m->join.held[0].version; break;
    case MSG_WELCOME: a = m->welcome.resume, b = m->welcome.worker_id, d = m->welcome.current[0].version; break;
    case MSG_REFUSE: a = m->refuse.code; break;
    case MSG_ASSIGN: a = m->assign.round, b = m->assign.versions[0], d = m->assign.ranges[0].start; break;
    case MSG_EVAL: a = m->eval.eval_id, b = m->eval.start, d = m->eval.count; break;
    case MSG_EVAL_RESULT: a = m->eval_result.eval_id, b = m->eval_result.start, d = m->eval_result.tokens; break;
    case MSG_OFFER: a = m->offer.round, b = m->offer.fragment, d = m->offer.base_version; break;
    case MSG_CREDIT: a = m->credit.round, b = m->credit.fragment, d = m->credit.have; break;
    case MSG_REJECT: a = m->reject.round, b = m->reject.fragment, d = m->reject.code; break;
    case MSG_GET: a = m->get.version, b = m->get.fragment, d = m->get.offset; break;
    case MSG_CHUNK: a = m->chunk.key, b = m->chunk.fragment, d = m->chunk.offset; break;
    default: break;
    }
    sim_check_note(c, c->now_us, "%s worker-%d %s %s %llu %llu %llu", to_client ? "to" : "from", client,
                   moment == SIM_NET_SENT ? "sent" : "came", msg_name(m->type), a, b, d);
}

/* ---- from workers ------------------------------------------------------------------------------------------------ */

static void sent_offer(struct sim_check *c, int client, const struct msg_offer *o)
{
    c->moved_us = c->now_us;
    if (o->fragment >= c->layout.n_fragments) {
        sim_check_fail(c, "worker-%d offers fragment %u", client, o->fragment);
        return;
    }
    struct check_delta *d = check_delta_find(c, client, o->round, o->fragment, o->crc);
    if (!d || d->size != o->bytes) {
        sim_check_fail(c,
                       "worker-%d offers bytes for round %llu fragment %u that do not follow from its training (sent + "
                       "residual = delta + old residual)",
                       client, (unsigned long long)o->round, o->fragment);
        return;
    }
    /* Versions with an update of zeros have the same values. */
    const struct check_version *mine = check_version_at(c, o->fragment, d->base_version);
    const struct check_version *told = check_version_at(c, o->fragment, o->base_version);
    bool same_base = d->base_version == o->base_version || (mine && told && mine->hash == told->hash);
    if (d->form != o->form || !same_base || d->tokens != o->tokens)
        sim_check_fail(c, "worker-%d offers round %llu fragment %u as form %d from version %llu with %llu tokens",
                       client, (unsigned long long)o->round, o->fragment, o->form, (unsigned long long)o->base_version,
                       (unsigned long long)o->tokens);
    d->offered = true;
}

static void sent_heartbeat(struct sim_check *c, int client, const struct msg_heartbeat *h)
{
    struct check_worker *w = &c->workers[client];
    bool same = w->beat_session == h->session;
    for (uint32_t f = 0; f < h->n_fragments && f < CHECK_FRAGMENTS; f++) {
        if (same && h->versions[f] < w->beat_versions[f])
            sim_check_fail(c, "worker-%d went back from version %llu to %llu of fragment %u", client,
                           (unsigned long long)w->beat_versions[f], (unsigned long long)h->versions[f], f);
        w->beat_versions[f] = h->versions[f];
    }
    w->beat_session = h->state == WORKER_CATCHING_UP ? 0 : h->session;
}

static void sent_delta_chunk(struct sim_check *c, int client, const struct msg_chunk *k)
{
    c->moved_us = c->now_us;
    for (const struct check_delta *d = c->deltas; d; d = d->next)
        if (d->client == client && d->round == k->key && d->fragment == k->fragment && d->offered &&
            k->offset + k->size <= d->size && k->total == d->size &&
            memcmp(d->payload + k->offset, k->data, k->size) == 0)
            return;
    sim_check_fail(c, "worker-%d sends bytes of round %llu fragment %u that differ from its delta", client,
                   (unsigned long long)k->key, k->fragment);
}

/* ---- from the coordinator ---------------------------------------------------------------------------------------- */

/* The deltas lie end to end before the checksum. */
static void sent_own(struct sim_check *c, int client, const struct check_version *v, const struct msg_chunk *k)
{
    const struct check_own *own = &c->workers[client].own[k->fragment];
    size_t at = v->size - sizeof(uint32_t);
    for (uint32_t i = v->n_named; i-- > 0;) {
        size_t from = k->offset, to = k->offset + k->size, end = at;
        at -= v->named[i].delta->size;
        if (v->named[i].delta->client != client) continue;
        bool had = own->session == c->workers[client].given && own->round == v->named[i].round;
        bool before = own->get_version == k->key && own->get_offset < at;
        if (from == end && before && !had)
            sim_check_fail(c, "worker-%d does not receive its delta of round %llu, fragment %u, which it may have lost",
                           client, (unsigned long long)v->named[i].round, k->fragment);
        if (from >= end || to <= at) continue;
        c->counts.own_bytes += (to < end ? to : end) - (from > at ? from : at);
        if (before && had)
            sim_check_fail(c, "worker-%d receives its own delta of round %llu, fragment %u", client,
                           (unsigned long long)own->round, k->fragment);
    }
}

static void sent_object_chunk(struct sim_check *c, int client, const struct msg_chunk *k)
{
    const struct check_version *v = check_version_at(c, k->fragment, k->key);
    c->moved_us = c->now_us;
    if (!v) {
        sim_check_fail(c, "worker-%d receives version %llu of fragment %u, which does not exist", client,
                       (unsigned long long)k->key, k->fragment);
        return;
    }
    check_log_show(c, k->fragment, k->key, "a chunk");
    size_t bytes = check_count(c, k->fragment) * sizeof(float), size = v->size;
    uint8_t *whole = v->object;
    if (k->kind == OBJECT_SNAPSHOT) {
        size = SNAPSHOT_HEAD_BYTES + bytes;
        whole = mem_alloc(size, 1);
        if (!whole) return;
        struct snapshot_head head = {k->fragment, k->key, v->hash, check_count(c, k->fragment)};
        snapshot_head_encode(&head, whole);
        struct writer writer = writer_of(whole + SNAPSHOT_HEAD_BYTES, bytes);
        for (size_t i = 0; i < check_count(c, k->fragment); i++) put_f32(&writer, v->theta[i]);
    }
    if (!whole || k->total != size || k->offset + k->size > size || memcmp(whole + k->offset, k->data, k->size) != 0)
        sim_check_fail(c, "worker-%d receives bytes for version %llu of fragment %u that differ from the log", client,
                       (unsigned long long)k->key, k->fragment);
    else if (k->kind == OBJECT_UPDATE && v->relayed)
        sent_own(c, client, v, k);
    if (whole != v->object) mem_free(whole);
}

/* With a barrier, a round begins where the round before it ended, and has train.sync_every steps, or one before
 * train.start_step. */
static void check_span(struct sim_check *c, int client, const struct msg_assign *a)
{
    uint64_t every = c->ddp ? 1 : c->config.train.sync_every, start = c->config.train.start_step;
    uint64_t begin = a->round, length = 1;
    if (a->round >= start) begin = start + every * (a->round - start), length = every;
    if (length > c->config.train.max_steps - begin) length = c->config.train.max_steps - begin;
    bool even = c->config.train.dynamic_steps != CHOICE_ON || a->round < start; /* auto: off with a barrier */
    double span = a->step_rate * a->steps;
    if (a->step0 != (double)begin || fabs(span - (double)length) > 1e-6 || (even && a->steps != length))
        sim_check_fail(c, "worker-%d is assigned %u steps from %g of round %llu, which has %llu from %llu", client,
                       a->steps, a->step0, (unsigned long long)a->round, (unsigned long long)length,
                       (unsigned long long)begin);
}

static void sent_assign(struct sim_check *c, int client, const struct msg_assign *a)
{
    struct check_worker *w = &c->workers[client];
    uint64_t count = 0, want = (uint64_t)a->steps * c->config.train.batch_size * c->config.train.grad_accum;
    c->moved_us = c->now_us;
    if (a->worker_id >= CHECK_IDS || (c->client_of_id[a->worker_id] >= 0 && c->client_of_id[a->worker_id] != client)) {
        sim_check_fail(c, "worker-%d receives id %u, which another worker has", client, (unsigned)a->worker_id);
        return;
    }
    c->client_of_id[a->worker_id] = client;
    w->id = a->worker_id;
    w->given_last = *a;
    if (c->synced && c->open_unsynced)
        sim_check_fail(c, "worker-%d receives its assignment of round %llu before it is durable", client,
                       (unsigned long long)a->round);
    for (uint32_t f = 0; f < a->n_fragments; f++) check_log_show(c, f, a->versions[f], "an assignment");
    for (uint32_t r = 0; r < a->n_ranges; r++) {
        count += a->ranges[r].count;
        bool merged = c->upstream; /* upstream gives positions back whose delta it refused: the residual has it */
        for (uint32_t f = 0; f < c->layout.n_fragments; f++)
            merged = merged || check_merged_in(c, f, a->worker_id, a->round);
        for (uint64_t p = a->ranges[r].start; !merged && !c->behind && p < a->ranges[r].start + a->ranges[r].count; p++)
            if (p < c->n_trained && c->trained[p])
                sim_check_fail(c, "worker-%d is assigned sample position %llu, which is already merged", client,
                               (unsigned long long)p);
    }
    bool whole = w->region ? count >= want && count % want == 0 : count == want;
    if (!whole || a->steps == 0)
        sim_check_fail(c, "worker-%d is assigned %llu samples for %u steps", client, (unsigned long long)count,
                       a->steps);
    if (c->barrier) check_span(c, client, a);
}

/* The worker drops its delta. After a power cut the coordinator must still know why it does not wait for that delta. */
static void sent_reject(struct sim_check *c, int client, const struct msg_reject *r)
{
    c->counts.rejected++;
    if (c->unsynced)
        sim_check_fail(c, "worker-%d receives the refusal of its delta of round %llu before the reason is durable",
                       client, (unsigned long long)r->round);
}

static void sent(struct sim_check *c, int client, bool to_client, const struct msg *m)
{
    switch (m->type) {
    case MSG_OFFER: sent_offer(c, client, &m->offer); break;
    case MSG_HEARTBEAT: sent_heartbeat(c, client, &m->heartbeat); break;
    case MSG_ASSIGN: sent_assign(c, client, &m->assign); break;
    case MSG_REJECT: sent_reject(c, client, &m->reject); break;
    case MSG_EVAL:
        for (uint32_t f = 0; f < m->eval.n_fragments; f++) check_log_show(c, f, m->eval.versions[f], "an evaluation");
        break;
    case MSG_DONE:
        for (uint32_t f = 0; f < m->done.n_fragments; f++) {
            const struct check_version *v = check_version_at(c, f, m->done.final[f].version);
            check_log_show(c, f, m->done.final[f].version, "the end");
            if (v && v->hash != m->done.final[f].hash) sim_check_fail(c, "the theta of DONE differs from the log");
        }
        break;
    case MSG_CHUNK:
        if (to_client)
            sent_object_chunk(c, client, &m->chunk);
        else
            sent_delta_chunk(c, client, &m->chunk);
        break;
    default: break;
    }
}

/* The worker acts on the first refusal of a delta; a repeated OFFER may bring another one. */
static void came_reject(struct check_worker *w, const struct msg_reject *r)
{
    if (w->refused[r->fragment] == (int64_t)r->round) return;
    w->refused[r->fragment] = (int64_t)r->round;
}

int sim_check_message(struct sim_check *c, uint64_t now_us, enum sim_net_moment moment, int client, bool to_client,
                      const struct msg *m)
{
    c->now_us = now_us;
    note_message(c, moment, client, to_client, m);
    if (moment == SIM_NET_SENT) sent(c, client, to_client, m);
    check_flow_message(c, moment, client, to_client, m);
    if (moment == SIM_NET_SENT && m->type == MSG_WELCOME) c->workers[client].given = m->welcome.session;
    if (moment == SIM_NET_ARRIVED && m->type == MSG_GET && m->get.kind == OBJECT_UPDATE &&
        m->get.fragment < CHECK_FRAGMENTS) {
        c->workers[client].own[m->get.fragment].get_version = m->get.version;
        c->workers[client].own[m->get.fragment].get_offset = m->get.offset;
    }
    if (moment == SIM_NET_ARRIVED && m->type == MSG_WELCOME && c->workers[client].welcomed != m->welcome.session) {
        c->workers[client].welcomed = m->welcome.session;
        if (m->welcome.shorter) check_worker_returns(c, client);
        if (!m->welcome.resume && !m->welcome.shorter) check_worker_reset(c, client);
        if (!m->welcome.resume) c->counts.reloaded++;
    }
    if (moment == SIM_NET_ARRIVED && m->type == MSG_REJECT && m->reject.fragment < CHECK_FRAGMENTS)
        came_reject(&c->workers[client], &m->reject);
    return c->script ? c->script(c->script_ctx, moment, client, to_client, m) : 1;
}
