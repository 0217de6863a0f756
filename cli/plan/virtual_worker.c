#include "cli/plan/virtual_worker.h"

#include <assert.h>

#include "common/base/mem.h"
#include "coordinator/round/round_form.h"

static const struct plan_fragment *cost_of(const struct virtual_worker *w, uint32_t fragment)
{
    return &w->setup->costs->fragments[fragment];
}

/* The worker is busy for some time from *t on. */
static void spend(double *part, double seconds, uint64_t *t)
{
    *part += seconds;
    *t += virtual_us(seconds);
}

static void worker_look(void *ctx, uint64_t at_us);

static void look_at(struct virtual_worker *w, uint64_t at_us)
{
    uint64_t now = w->clock->now_us;
    if (at_us == UINT64_MAX) return;
    if (at_us <= now) at_us = now + 1;
    if (w->wake_us > now && w->wake_us <= at_us) return;
    w->wake_us = at_us;
    event_queue_at(w->clock, at_us, worker_look, w, at_us);
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

static void on_chunk(struct virtual_worker *w, const struct virtual_message *v, uint64_t t)
{
    const struct msg_chunk *m = &v->chunk;
    struct sync *s = &w->sync;
    sync_on_chunk(s, m->size, t);
    if (!sync_expects(s, m->kind, m->fragment, m->key)) return;
    const struct sync_fragment *f = &s->f[m->fragment];
    w->updates[m->fragment] = (struct virtual_update){v->round, v->named_round};
    if (m->offset > f->have || m->offset + m->size <= f->have) return;
    sync_on_progress(s, m->fragment, m->offset + m->size, m->total, t);
    if (v->own_to && !f->own_to && !f->complete) sync_on_local_bytes(s, m->fragment, v->own_from, v->own_to);
}

static void handle(struct virtual_worker *w, const struct virtual_message *v, uint64_t t)
{
    struct sync *s = &w->sync;
    switch (v->type) {
    case MSG_ASSIGN: sync_on_assign(s, &v->assign, t); break;
    case MSG_CREDIT: sync_on_credit(s, &v->credit, t); break;
    case MSG_REJECT: sync_on_reject(s, &v->reject, t); break;
    case MSG_CHUNK: on_chunk(w, v, t); break;
    default: break;
    }
}

static void receive_all(struct virtual_worker *w, uint64_t t)
{
    for (struct virtual_message *v; (v = virtual_queue_take(&w->inbox));) {
        handle(w, v, t);
        mem_free(v);
    }
}

static void fill_offer(const struct virtual_worker *w, uint32_t fragment, struct msg_offer *offer)
{
    const struct config *c = w->setup->config;
    const struct msg_assign *task = &w->sync.current;
    uint64_t samples = (uint64_t)task->steps * c->train.batch_size * c->train.grad_accum;
    *offer = (struct msg_offer){.round = w->sync.round,
                                .fragment = fragment,
                                .form = round_delta_form(c, false),
                                .base_version = w->base[fragment],
                                .bytes = w->sync.f[fragment].bytes,
                                .tokens = samples * c->model.block_size,
                                .steps = task->steps,
                                .norm = 1,
                                .compute_us = virtual_us(task->steps * w->setup->costs->step_s)};
}

static void send_due(struct virtual_worker *w, uint64_t t)
{
    static struct msg m; /* large; filled and copied within this call */
    struct sync_action a;
    while (sync_poll(&w->sync, t, &a)) {
        switch (a.type) {
        case SYNC_SEND_BIND: m = (struct msg){.type = MSG_BIND}; break;
        case SYNC_SEND_OFFER:
            m.type = MSG_OFFER;
            fill_offer(w, a.fragment, &m.offer);
            break;
        case SYNC_SEND_CHUNK:
            m.type = MSG_CHUNK;
            m.chunk = (struct msg_chunk){.kind = OBJECT_DELTA,
                                         .fragment = a.fragment,
                                         .key = w->sync.round,
                                         .offset = a.offset,
                                         .total = w->sync.f[a.fragment].bytes,
                                         .size = a.length};
            break;
        case SYNC_SEND_GET:
            m.type = MSG_GET;
            m.get = (struct msg_get){
                .kind = a.kind, .fragment = a.fragment, .version = a.version, .offset = a.offset, .length = a.length};
            break;
        default: assert(!"it never joins again, evaluates or leaves");
        }
        virtual_line_send(w->up, &m, t);
    }
    if (w->told == w->sync.state) return;
    w->told = w->sync.state;
    m.type = MSG_HEARTBEAT;
    m.heartbeat = (struct msg_heartbeat){.state = w->sync.state, .n_fragments = w->sync.n_fragments};
    virtual_line_send(w->up, &m, t);
}

/* --- work --------------------------------------------------------------------------------------------------------- */

/* Makes and offers the deltas of the fragments whose sync point the round has reached. */
static void make_deltas(struct virtual_worker *w, uint64_t *t)
{
    uint64_t bytes[LAYOUT_FRAGMENTS_MAX] = {0}, round = w->sync.round;
    bool any = false;
    for (uint32_t f = 0; f < w->sync.n_fragments; f++) {
        if (!sync_is_sent(&w->sync, f)) continue;
        spend(&w->parts.compress_s, cost_of(w, f)->compress_s, t);
        bytes[f] = cost_of(w, f)->up_bytes;
        any = true;
    }
    uint64_t every = config_save_every(w->setup->config);
    if (any && sync_is_last_sent(&w->sync) && !w->saved_us && every && round % every == 0) {
        sync_unsaved(&w->sync, *t);
        w->saved_us = *t + virtual_us(w->setup->costs->save_s) + 1;
    }
    sync_work_ready(&w->sync, round, bytes, *t);
}

static void worker_stepped(void *ctx, uint64_t arg);

static void begin_segment(struct virtual_worker *w, uint64_t *t)
{
    struct sync *s = &w->sync;
    bool new_round = s->round == SYNC_NO_ROUND;
    sync_train_begin(s, *t);
    for (uint32_t f = 0; f < s->n_fragments; f++)
        if (new_round || sync_is_applied(s, f)) w->base[f] = s->f[f].version;
    if (new_round && sync_is_sent(s, 0)) make_deltas(w, t); /* train.overlap is H: they are those of the last round */
    *t += virtual_us(w->setup->costs->place_s);
    w->step = 0;
    event_queue_at(w->clock, *t + virtual_us(w->setup->costs->step_s), worker_stepped, w, 0);
}

static void send_metrics(struct virtual_worker *w, uint64_t t)
{
    static struct msg m;
    uint32_t n = w->step < WIRE_METRICS_MAX ? w->step : WIRE_METRICS_MAX;
    m.type = MSG_METRICS;
    m.metrics.n_steps = n;
    virtual_line_send(w->up, &m, t);
}

/* Applies what is complete, sends what is due, and begins the next segment. */
static void go_on(struct virtual_worker *w, uint64_t t)
{
    struct sync *s = &w->sync;
    uint32_t f;
    if (w->saved_us && t >= w->saved_us) {
        sync_saved(s, t);
        w->saved_us = 0;
    }
    while (sync_apply(s, &f)) {
        spend(&w->parts.apply_s, cost_of(w, f)->apply_s, &t);
        sync_applied(s, f, w->updates[f].round, w->updates[f].named_round, t);
    }
    while (sync_take_rollback(s, &f)) continue;
    send_due(w, t);
    if (!s->computing && sync_wants_training(s)) {
        begin_segment(w, &t);
        send_due(w, t);
    }
    w->busy_us = t;
    uint64_t at = sync_deadline_us(s);
    if (w->saved_us && w->saved_us < at) at = w->saved_us;
    if (!s->computing) look_at(w, at);
}

static void worker_stepped(void *ctx, uint64_t arg)
{
    struct virtual_worker *w = ctx;
    struct sync *s = &w->sync;
    uint64_t now = w->clock->now_us;
    (void)arg;
    w->parts.compute_s += w->setup->costs->step_s;
    w->busy_us = now;
    w->step++;
    receive_all(w, now);
    if (s->computing && w->step == s->segment) {
        uint64_t t = now;
        sync_segment_done(s);
        make_deltas(w, &t);
        send_metrics(w, t);
        go_on(w, t);
        return;
    }
    go_on(w, now);
    if (s->computing && w->step)
        event_queue_at(w->clock, w->busy_us + virtual_us(w->setup->costs->step_s), worker_stepped, w, 0);
}

/* The worker computes nothing: the time since it was last busy was spent on sending or waiting. */
static void worker_look(void *ctx, uint64_t at_us)
{
    struct virtual_worker *w = ctx;
    uint64_t now = w->clock->now_us;
    if (at_us != w->wake_us) return;
    w->wake_us = 0;
    if (w->sync.computing) return;
    if (now < w->busy_us) {
        look_at(w, w->busy_us);
        return;
    }
    *(w->sync.state == WORKER_SENDING ? &w->parts.send_s : &w->parts.wait_s) += (double)(now - w->busy_us) * 1e-6;
    w->busy_us = now;
    receive_all(w, now);
    go_on(w, now);
}

void virtual_worker_receive(void *ctx, struct virtual_message *m)
{
    struct virtual_worker *w = ctx;
    virtual_queue_put(&w->inbox, m);
    if (!w->sync.computing) look_at(w, w->clock->now_us + 1);
}

void virtual_worker_start(struct virtual_worker *w)
{
    static const uint64_t versions[LAYOUT_FRAGMENTS_MAX];
    struct sync *s = &w->sync;
    uint32_t n = w->setup->costs->n_fragments;
    struct msg_welcome welcome = {.session = 1, .worker_id = w->id, .n_fragments = n, .resume = true};
    sync_init(s, w->id, w->clock->now_us);
    (void)sync_on_config(s, 0); /* new: true */
    sync_configured(s, w->setup->config->train.method == METHOD_ASYNC, n, versions, 0);
    sync_set_schedule(s, w->setup->config);
    (void)sync_on_welcome(s, &welcome, 0);
    s->bind_due = false;
    s->rtt_us = virtual_us((double)2e-3 * w->up->spec->delay_ms);
    w->told = WORKER_READY;
    assert(s->state == WORKER_READY);
    look_at(w, 1);
}

void virtual_worker_finish(struct virtual_worker *w)
{
    virtual_queue_clear(&w->inbox);
}
