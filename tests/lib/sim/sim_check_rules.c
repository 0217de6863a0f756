/* Rules of transfers, retries, presence and budgets. */
#include <string.h>

#include "common/base/minmax.h"
#include "coordinator/round/download.h"
#include "coordinator/round/upload.h"
#include "tests/lib/sim/sim_check_impl.h"
#include "worker/sync/sync.h"

/* ---- bytes in flight --------------------------------------------------------------------------------------------- */

/* The worker requested these bytes, and they have not arrived. First requests ask for up to a window of objects whose
 * size is unknown. When more of an object is requested, all known ones share the window. */
static void sent_get(struct sim_check *c, int client, const struct msg_get *m)
{
    struct check_flow *flow = &c->workers[client].flow;
    struct check_get *g = &flow->get[m->fragment];
    uint64_t end = m->offset + m->length, flying = 0, known = 0;
    bool same = g->used && g->kind == m->kind && g->version == m->version;
    bool more = same && g->known && m->offset > g->have;
    if (!same) *g = (struct check_get){.used = true, .kind = m->kind, .version = m->version, .have = m->offset};
    g->end = same && m->offset > g->have ? max_u64(g->end, end) : end;
    for (uint32_t f = 0; f < c->layout.n_fragments; f++) {
        uint64_t bytes = flow->get[f].end > flow->get[f].have ? flow->get[f].end - flow->get[f].have : 0;
        flying += bytes;
        known += flow->get[f].known ? bytes : 0;
    }
    c->counts.most_flying = max_u64(c->counts.most_flying, flying);
    if (flying > 2 * flow->down + DOWNLOAD_CHUNK * c->layout.n_fragments || (more && known > flow->down_now))
        sim_check_fail(c, "worker-%d requests %llu bytes at once, but its window is %llu", client,
                       (unsigned long long)(more ? known : flying), (unsigned long long)flow->down_now);
}

/* Only what the worker has read moves its window. */
static void came_object_chunk(struct sim_check *c, int client, const struct msg_chunk *k)
{
    struct check_get *g = &c->workers[client].flow.get[k->fragment];
    bool same = g->used && g->kind == k->kind && g->version == k->key;
    g->known = g->known || same;
    if (same && k->offset <= g->have) g->have = max_u64(g->have, k->offset + k->size);
    if (same && g->have == k->total) g->end = g->have;
}

static struct check_get *asked_of(struct check_flow *flow, uint32_t fragment, uint8_t kind, uint64_t version)
{
    for (int i = 0; i < CHECK_ASKED; i++) {
        struct check_get *g = &flow->asked[fragment][i];
        if (g->used && g->kind == kind && g->version == version) return g;
    }
    return NULL;
}

/* The request is on its way to the coordinator, or in its queue. */
static void came_get(struct check_flow *flow, const struct msg_get *m)
{
    struct check_get *g = asked_of(flow, m->fragment, m->kind, m->version);
    uint64_t end = m->offset + m->length;
    if (g) {
        g->have = min_u64(g->have, m->offset);
        g->end = max_u64(g->end, end);
        return;
    }
    struct check_get *all = flow->asked[m->fragment];
    memmove(all + 1, all, (CHECK_ASKED - 1) * sizeof *all);
    all[0] = (struct check_get){true, true, m->kind, m->version, m->offset, end};
}

static void sent_object_chunk(struct sim_check *c, int client, const struct msg_chunk *k)
{
    const struct check_get *g = asked_of(&c->workers[client].flow, k->fragment, k->kind, k->key);
    if (!g || k->offset < g->have || k->offset + k->size > g->end)
        sim_check_fail(c,
                       "worker-%d is sent bytes %llu to %llu of version %llu of fragment %u, which it did not request",
                       client, (unsigned long long)k->offset, (unsigned long long)(k->offset + k->size),
                       (unsigned long long)k->key, k->fragment);
}

static void came_credit(struct check_worker *w, const struct msg_credit *m)
{
    struct check_credit *credit = &w->flow.credit[m->fragment];
    if (!credit->used || credit->round != m->round) *credit = (struct check_credit){.used = true, .round = m->round};
    credit->have = m->have; /* it falls if the coordinator lost bytes */
    credit->upto = max_u64(credit->upto, m->upto);
}

static void sent_delta_chunk(struct sim_check *c, int client, const struct msg_chunk *k)
{
    const struct check_flow *flow = &c->workers[client].flow;
    const struct check_credit *credit = &flow->credit[k->fragment];
    uint64_t end = k->offset + k->size;
    if (!credit->used || credit->round != k->key || end > credit->upto)
        sim_check_fail(c, "worker-%d sends bytes up to %llu of round %llu fragment %u, with credit up to %llu", client,
                       (unsigned long long)end, (unsigned long long)k->key, k->fragment,
                       (unsigned long long)(credit->round == k->key ? credit->upto : 0));
    if (end > credit->have + flow->up)
        sim_check_fail(c, "worker-%d has %llu bytes of round %llu fragment %u in flight, but its window is %llu",
                       client, (unsigned long long)(end - credit->have), (unsigned long long)k->key, k->fragment,
                       (unsigned long long)flow->up);
}

/* ---- retries ----------------------------------------------------------------------------------------------------- */

/* Without an answer, the n-th repetition comes after at least first_us * 2^(n - 1), or most_us. */
static void check_again(struct sim_check *c, int client, enum msg_type type, struct check_again *again, uint64_t what)
{
    bool joins = type == MSG_HELLO || type == MSG_JOIN;
    uint64_t first = joins ? SYNC_CONNECT_US : SYNC_RETRY_MIN_US, most = joins ? 10000000 : SYNC_RETRY_MAX_US;
    if (!again->used || again->what != what) {
        *again = (struct check_again){.used = true, .what = what, .at_us = c->now_us};
        return;
    }
    uint64_t least = again->n > 10 ? most : min_u64(first << again->n, most), us = c->now_us - again->at_us;
    if (joins) least -= least / 8; /* backoff_spread_us */
    if (us < least)
        sim_check_fail(c, "worker-%d repeats %s after %.6f s, at least %.6f s without an answer (repetition %u)",
                       client, msg_name(type), (double)us / 1e6, (double)least / 1e6, again->n + 1);
    again->at_us = c->now_us;
    again->n++;
    c->counts.repeats++;
}

static void forget_again(struct check_worker *w)
{
    memset(&w->again, 0, sizeof w->again);
    memset(w->again_offer, 0, sizeof w->again_offer);
    memset(w->again_get, 0, sizeof w->again_get);
}

void check_flow_reset(struct check_worker *w)
{
    memset(&w->flow, 0, sizeof w->flow);
    forget_again(w);
}

void sim_check_windows(struct sim_check *c, int client, uint64_t down, uint64_t up, bool unsaved)
{
    struct check_worker *w = &c->workers[client];
    struct check_flow *flow = &w->flow;
    if (down > SYNC_WINDOW_MOST || up > SYNC_WINDOW_MOST || down < SYNC_WINDOW_LEAST || up < SYNC_WINDOW_LEAST)
        sim_check_fail(c, "worker-%d has a window of %llu bytes down, %llu up", client, (unsigned long long)down,
                       (unsigned long long)up);
    flow->down_now = down;
    flow->down = max_u64(flow->down, down);
    flow->up = max_u64(flow->up, up);
    if (w->unsaved != unsaved) forget_again(w); /* the end of a save starts the timeouts of uploads again */
    w->unsaved = unsaved;
}

static void sent_by_worker(struct sim_check *c, int client, const struct msg *m)
{
    struct check_worker *w = &c->workers[client];
    switch (m->type) {
    case MSG_HELLO:
    case MSG_JOIN: check_again(c, client, m->type, &w->again, m->type); break;
    case MSG_OFFER:
        if (m->offer.fragment < CHECK_FRAGMENTS)
            check_again(c, client, m->type, &w->again_offer[m->offer.fragment], m->offer.round << 32 ^ m->offer.crc);
        break;
    case MSG_GET:
        if (m->get.fragment >= CHECK_FRAGMENTS) break;
        sent_get(c, client, &m->get);
        check_again(c, client, m->type, &w->again_get[m->get.fragment],
                    m->get.version << 32 ^ m->get.offset ^ (uint64_t)m->get.kind << 62);
        break;
    case MSG_CHUNK:
        if (m->chunk.kind == OBJECT_DELTA && m->chunk.fragment < CHECK_FRAGMENTS)
            sent_delta_chunk(c, client, &m->chunk);
        break;
    default: break;
    }
}

/* ---- presence ---------------------------------------------------------------------------------------------------- */

static void came_from_worker(struct sim_check *c, int client, const struct msg *m)
{
    struct check_worker *w = &c->workers[client];
    if (m->type == MSG_HEARTBEAT && w->in_session && m->heartbeat.session == w->given) {
        w->heard_us = c->now_us;
        for (uint32_t f = 0; f < m->heartbeat.n_fragments && f < CHECK_FRAGMENTS; f++)
            w->holds[f] = max_u64(w->holds[f], m->heartbeat.versions[f] + 1);
    }
    if (m->type != MSG_GET || m->get.fragment >= CHECK_FRAGMENTS) return;
    came_get(&w->flow, &m->get);
    if (m->get.kind == OBJECT_UPDATE && w->in_session && m->get.session == w->given)
        w->holds[m->get.fragment] = max_u64(w->holds[m->get.fragment], m->get.version);
}

void check_evicted(struct sim_check *c, int client)
{
    const struct check_worker *w = &c->workers[client];
    uint64_t limit = (uint64_t)(c->config.coordinator.evict_after_s * 1e6);
    if (limit && w->in_session && w->heard_us && c->now_us - w->heard_us < limit)
        sim_check_fail(c, "worker-%d is evicted, but its last heartbeat came %.3f s ago", client,
                       (double)(c->now_us - w->heard_us) / 1e6);
}

void check_member_changed(struct check_worker *w, bool joined)
{
    memset(w->holds, 0, sizeof w->holds);
    w->in_session = w->in_session && joined;
}

void check_engine_forgot(struct sim_check *c)
{
    for (int i = 0; i < c->n_clients; i++) {
        check_member_changed(&c->workers[i], false);
        memset(c->workers[i].flow.asked, 0, sizeof c->workers[i].flow.asked);
    }
}

/* ---- all messages ------------------------------------------------------------------------------------------------ */

void check_flow_message(struct sim_check *c, enum sim_net_moment moment, int client, bool to_client,
                        const struct msg *m)
{
    struct check_worker *w = &c->workers[client];
    bool object = m->type == MSG_CHUNK && m->chunk.fragment < CHECK_FRAGMENTS && m->chunk.kind != OBJECT_DELTA;
    if (!to_client && moment == SIM_NET_SENT) sent_by_worker(c, client, m);
    if (!to_client && moment == SIM_NET_ARRIVED) came_from_worker(c, client, m);
    if (to_client && moment == SIM_NET_SENT && m->type == MSG_WELCOME) w->in_session = true;
    bool unknown = m->type == MSG_REFUSE && m->refuse.code == REFUSE_UNKNOWN_SESSION;
    if (to_client && moment == SIM_NET_SENT && unknown) w->in_session = false;
    if (to_client && moment == SIM_NET_SENT && object) sent_object_chunk(c, client, &m->chunk);
    if (!to_client || moment != SIM_NET_ARRIVED) return;
    if (m->type != MSG_HEARTBEAT_ACK) forget_again(w);
    if (object) came_object_chunk(c, client, &m->chunk);
    if (m->type == MSG_CREDIT && m->credit.fragment < CHECK_FRAGMENTS) came_credit(w, &m->credit);
}

/* ---- outer steps ------------------------------------------------------------------------------------------------- */

/* outer.grace auto: no work for a worker that lacks two updates. */
void check_opened(struct sim_check *c, const struct record_open *record)
{
    if (c->barrier || strcmp(c->config.outer.grace, "auto") != 0) return;
    for (uint32_t i = 0; i < record->open.n; i++) {
        uint32_t id = record->open.grants[i].id;
        int client = id < CHECK_IDS ? c->client_of_id[id] : -1;
        bool known = client >= 0 && c->workers[client].in_session;
        for (uint32_t f = 0; known && f < c->layout.n_fragments; f++) {
            uint64_t holds = c->workers[client].holds[f], version = c->logs[f].n - 1;
            if (holds && holds < version)
                sim_check_fail(c, "worker-%d gets work at version %llu of fragment %u, but holds version %llu", client,
                               (unsigned long long)version, f, (unsigned long long)holds - 1);
        }
    }
}

/* Each delivered delta of a fragment is part of its next update, unless each delta is an update. The round of a region
 * may end without its deltas. */
void check_left_behind(struct sim_check *c, uint32_t f)
{
    for (struct check_delta *d = c->deltas; d && !c->singles && !c->cut; d = d->next) {
        bool left = d->held && d->fragment == f;
        if (left && c->upstream) d->held = false;
        if (left && !c->upstream)
            sim_check_fail(c, "version %zu of fragment %u leaves out the delta of worker-%d round %llu",
                           c->logs[f].n - 1, f, d->client, (unsigned long long)d->round);
    }
}

void check_dropped(struct sim_check *c, int client, uint64_t round, uint32_t fragment)
{
    for (struct check_delta *d = c->deltas; d; d = d->next)
        if (d->client == client && (round == UINT64_MAX || d->round == round) &&
            (fragment == UINT32_MAX || d->fragment == fragment))
            d->held = false;
}

/* The run ends: nothing is left, and async did all inner steps once. */
void check_budget(struct sim_check *c, uint64_t merged)
{
    const struct config *config = &c->config;
    for (const struct check_delta *d = c->deltas; d && !c->ddp && !c->cut; d = d->next)
        if (d->held)
            sim_check_fail(c, "the delta of worker-%d round %llu fragment %u is not merged", d->client,
                           (unsigned long long)d->round, d->fragment);
    uint64_t step = (uint64_t)config->train.batch_size * config->train.grad_accum;
    uint64_t budget = (uint64_t)config->train.max_steps * c->budget_workers;
    if (!c->barrier && !c->behind && !c->budget_fell && merged != budget * step)
        sim_check_fail(c, "%llu inner steps are merged; the budget is %llu: train.max_steps x %u workers",
                       (unsigned long long)(merged / step), (unsigned long long)budget, c->budget_workers);
}

void sim_check_workers_of_budget(struct sim_check *c, uint32_t workers)
{
    if (c->rounds_reported) return;
    c->budget_fell = c->budget_fell || workers < c->budget_workers;
    c->budget_workers = workers;
}
