#include "tests/lib/net/stub_worker.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "compress/relay.h"

enum { WAIT_US = 100000, FLUSH_US = 2000000 };

static const double LOSS = 3;

/* --- heartbeats, in the link's thread ----------------------------------------------------------------------------- */

static struct stub_worker *stub_of(struct transport *t)
{
    return (struct stub_worker *)((char *)(uintptr_t)t->ops - offsetof(struct stub_worker, ops));
}

enum { TYPE_AT = 5 }; /* of a message: wire/frame.h */

static enum status watch_send(struct transport *t, uint64_t peer, enum wire_lane lane, const uint8_t *data, size_t size)
{
    struct stub_worker *s = stub_of(t);
    enum status status = s->inner->send(t, peer, lane, data, size);
    if (status == STATUS_OK && data[TYPE_AT] == MSG_HEARTBEAT && !s->asked_us) s->asked_us = clock_monotonic_us();
    return status;
}

static enum status watch_recv(struct transport *t, uint64_t timeout_us, uint64_t *peer_p, enum wire_lane *lane_p,
                              const uint8_t **data_p, size_t *size_p)
{
    struct stub_worker *s = stub_of(t);
    enum status status = s->inner->recv(t, timeout_us, peer_p, lane_p, data_p, size_p);
    if (status != STATUS_OK || *size_p <= TYPE_AT || (*data_p)[TYPE_AT] != MSG_HEARTBEAT_ACK) return status;
    uint64_t now = clock_monotonic_us();
    if (s->answered_us && now - s->answered_us > s->gap_us) s->gap_us = now - s->answered_us;
    if (s->asked_us && now - s->asked_us > s->wait_us) {
        s->wait_us = now - s->asked_us;
        s->wait_at_us = now;
    }
    s->answered_us = now;
    s->asked_us = 0;
    atomic_fetch_add(&s->beats, 1);
    return status;
}

/* --- sending ------------------------------------------------------------------------------------------------------ */

static const struct stub_delta *delta_of(const struct stub_worker *s, uint32_t fragment)
{
    return &s->model->deltas[s->index % s->model->variants][fragment];
}

static void fill_join(struct stub_worker *s)
{
    struct msg_join *m = &s->out.join;
    *m = (struct msg_join){.config_hash = s->config_hash,
                           .layout_hash = layout_hash(&s->model->layout),
                           .train_hash = 1,
                           .val_hash = 2,
                           .train_samples = 1000000,
                           .val_samples = 1000,
                           .sample_tokens = s->model->config.model.block_size,
                           .ranks = 1,
                           .devices = "none",
                           .layout = s->model->layout_bytes,
                           .layout_size = s->model->layout_size,
                           .model_config = s->model->text,
                           .n_held = s->sync.holds ? s->sync.n_fragments : 0,
                           .round = s->sync.round};
    memcpy(m->uuid, s->key.public_key, WIRE_UUID);
    memcpy(m->name, s->name, sizeof m->name);
    for (uint32_t i = 0; i < m->n_held; i++) m->held[i] = (struct wire_version){s->sync.f[i].version, s->hashes[i]};
}

static void fill_offer(struct stub_worker *s, uint32_t i)
{
    const struct config *c = &s->model->config;
    uint64_t tokens = (uint64_t)s->steps * c->train.batch_size * c->train.grad_accum * c->model.block_size;
    s->out.offer = (struct msg_offer){.session = s->sync.session,
                                      .round = s->sync.round,
                                      .fragment = i,
                                      .form = delta_of(s, i)->form,
                                      .base_version = s->base[i],
                                      .bytes = delta_of(s, i)->size,
                                      .crc = delta_of(s, i)->crc,
                                      .tokens = tokens,
                                      .steps = s->steps,
                                      .loss_sum = LOSS * (double)tokens,
                                      .norm = delta_of(s, i)->norm,
                                      .compute_us = s->steps * s->step_us};
}

static void fill_chunk(struct stub_worker *s, const struct sync_action *a)
{
    const uint8_t *data = delta_of(s, a->fragment)->payload + a->offset;
    s->out.chunk = (struct msg_chunk){.kind = OBJECT_DELTA,
                                      .fragment = a->fragment,
                                      .key = s->sync.round,
                                      .offset = a->offset,
                                      .total = delta_of(s, a->fragment)->size,
                                      .crc = crc32c(0, data, a->length),
                                      .data = data,
                                      .size = a->length};
}

static void fill(struct stub_worker *s, const struct sync_action *a)
{
    static const enum msg_type types[] = {
        [SYNC_SEND_HELLO] = MSG_HELLO, [SYNC_SEND_JOIN] = MSG_JOIN,
        [SYNC_SEND_BIND] = MSG_BIND,   [SYNC_SEND_OFFER] = MSG_OFFER,
        [SYNC_SEND_CHUNK] = MSG_CHUNK, [SYNC_SEND_GET] = MSG_GET,
        [SYNC_SEND_LEAVE] = MSG_LEAVE, [SYNC_SEND_EVAL_RESULT] = MSG_EVAL_RESULT,
    };
    if (a->type == SYNC_SEND_INITIAL) stub_die("this run needs workers that train");
    struct msg *m = &s->out;
    memset(m, 0, sizeof *m);
    m->type = types[a->type];
    switch (a->type) {
    case SYNC_SEND_HELLO:
        memcpy(m->hello.uuid, s->key.public_key, WIRE_UUID);
        memcpy(m->hello.name, s->name, sizeof m->hello.name);
        snprintf(m->hello.software, sizeof m->hello.software, "atoll %s", ATOLL_VERSION);
        break;
    case SYNC_SEND_JOIN: fill_join(s); break;
    case SYNC_SEND_BIND: m->bind.session = s->sync.session; break;
    case SYNC_SEND_OFFER: fill_offer(s, a->fragment); break;
    case SYNC_SEND_CHUNK: fill_chunk(s, a); break;
    case SYNC_SEND_GET:
        m->get = (struct msg_get){.session = s->sync.session,
                                  .kind = a->kind,
                                  .fragment = a->fragment,
                                  .version = a->version,
                                  .offset = a->offset,
                                  .length = a->length};
        break;
    case SYNC_SEND_EVAL_RESULT:
        m->eval_result = s->sync.eval.result;
        m->eval_result.session = s->sync.session;
        break;
    default: m->leave = (struct msg_leave){.session = s->sync.session, .finished = s->sync.finished}; break;
    }
}

static void send_due(struct stub_worker *s)
{
    struct sync_action a;
    uint64_t now = clock_monotonic_us();
    while (sync_poll(&s->sync, now, &a)) {
        fill(s, &a);
        enum status status = link_send(s->link, msg_lane(s->out.type), &s->out);
        if (status != STATUS_OK && a.type == SYNC_SEND_CHUNK) sync_blocked(&s->sync, &a, now);
    }
}

/* --- updates ------------------------------------------------------------------------------------------------------ */

static void feed(struct stub_object *o, uint64_t total, const uint8_t *data, size_t size)
{
    for (uint64_t i = o->at; i < STUB_HEAD && i < o->at + size; i++) o->head[i] = data[i - o->at];
    uint64_t end = total - STUB_TAIL, body = o->at < end ? end - o->at : 0;
    if (body > size) body = size;
    o->crc = crc32c(o->crc, data, body);
    for (uint64_t i = body; i < size; i++) o->tail[o->at + i - end] = data[i];
    o->at += size;
}

/* A relayed update arrives without this worker's own delta. */
static void feed_own(struct stub_worker *s, uint32_t i)
{
    const struct sync_fragment *f = &s->sync.f[i];
    struct stub_object *o = &s->objects[i];
    struct update u;
    uint64_t from, to;
    size_t at, have = o->at < STUB_HEAD ? o->at : STUB_HEAD;
    if (f->own_to && o->at == f->own_from && f->have >= f->own_to)
        feed(o, f->total, delta_of(s, i)->payload, delta_of(s, i)->size);
    if (f->own_to || f->complete || update_peek(&u, s->named, WIRE_NAMED_MAX, o->head, have, &at) != STATUS_OK ||
        strcmp(u.codec, "relay") != 0)
        return;
    for (uint32_t k = 0; k < u.n_named; k++) {
        if (u.named[k].worker_id != s->sync.worker_id || u.named[k].round != s->sync.round) continue;
        if (relay_range(o->head + at, have - at, u.n_named, k, &from, &to) != STATUS_OK) return;
        if (to - from != delta_of(s, i)->size || at + from < o->at) return;
        sync_on_local_bytes(&s->sync, i, at + from, at + to);
        if (f->own_to && o->at == f->own_from) feed(o, f->total, delta_of(s, i)->payload, delta_of(s, i)->size);
        return;
    }
}

static void on_chunk(struct stub_worker *s, const struct msg_chunk *m)
{
    uint64_t now = clock_monotonic_us();
    const struct sync_fragment *f = &s->sync.f[m->fragment];
    sync_on_chunk(&s->sync, m->size, false, now);
    if (!sync_expects(&s->sync, m->kind, m->fragment, m->key)) return;
    struct stub_object *o = &s->objects[m->fragment];
    if (m->offset > f->have || m->offset + m->size <= f->have) return;
    if (crc32c(0, m->data, m->size) != m->crc) stub_die("a chunk has another checksum");
    if (!f->have) *o = (struct stub_object){.head = o->head};
    if (o->at != f->have) stub_die("a part of an update is missing");
    uint64_t skip = f->have - m->offset;
    feed(o, m->total, m->data + skip, m->size - skip);
    sync_on_progress(&s->sync, m->fragment, m->offset + m->size, m->total, now);
    feed_own(s, m->fragment);
}

static uint64_t named_round(const struct stub_worker *s, const struct update *u)
{
    uint64_t round = SYNC_NO_ROUND;
    for (uint32_t i = 0; i < u->n_named; i++) {
        if (u->named[i].worker_id != s->sync.worker_id) continue;
        if (u->named[i].round == s->sync.round) return s->sync.round;
        if (round == SYNC_NO_ROUND || u->named[i].round > round) round = u->named[i].round;
    }
    return round;
}

static void apply(struct stub_worker *s, uint32_t i)
{
    const struct sync_fragment *f = &s->sync.f[i];
    struct stub_object *o = &s->objects[i];
    struct update u;
    struct snapshot_head head;
    uint64_t now = clock_monotonic_us(), before = s->sync.round;
    size_t at;
    if (f->loading) {
        if (snapshot_head_decode(&head, o->head, SNAPSHOT_HEAD_BYTES) || head.version != f->get_version)
            stub_die("malformed snapshot");
        s->hashes[i] = head.hash;
        sync_loaded(&s->sync, i, head.version, now);
        return;
    }
    uint32_t crc;
    memcpy(&crc, o->tail, sizeof crc);
    if (o->at != f->total || crc != o->crc) stub_die("an update has another checksum");
    if (update_peek(&u, s->named, WIRE_NAMED_MAX, o->head, o->at < STUB_HEAD ? o->at : STUB_HEAD, &at) != STATUS_OK ||
        u.fragment != i || u.version != f->version + 1)
        stub_die("an update of another version or fragment");
    uint64_t words[] = {u.theta_hash, crc, i, u.version};
    s->seen += hash64(words, sizeof words); /* fragments arrive in any order */
    s->hashes[i] = u.theta_hash;
    (void)sync_applied(&s->sync, i, u.round, named_round(s, &u), now);
    if (before != SYNC_NO_ROUND && s->sync.round == SYNC_NO_ROUND && before < s->model->rounds)
        s->rounds[before].applied = now;
}

static void apply_ready(struct stub_worker *s)
{
    for (uint32_t i; sync_apply(&s->sync, &i);) apply(s, i);
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

static void on_config(struct stub_worker *s, const struct msg_config *m)
{
    if (!sync_on_config(&s->sync, clock_monotonic_us())) return;
    stub_model_make(s->model, m);
    s->config_hash = m->config_hash;
    if (!s->rounds) {
        s->rounds = mem_alloc(s->model->rounds, sizeof *s->rounds);
        s->named = mem_alloc(WIRE_NAMED_MAX, sizeof *s->named);
        for (uint32_t i = 0; i < s->model->layout.n_fragments; i++)
            if (!(s->objects[i].head = mem_alloc(1, STUB_HEAD))) stub_die("no memory");
        if (!s->rounds || !s->named) stub_die("no memory");
        sync_set_schedule(&s->sync, &s->model->config);
    }
    bool async = s->model->config.train.method == METHOD_ASYNC;
    sync_configured(&s->sync, async, s->model->layout.n_fragments, NULL, clock_monotonic_us());
}

static void on_welcome(struct stub_worker *s, const struct msg_welcome *m)
{
    uint64_t now = clock_monotonic_us();
    if (!sync_on_welcome(&s->sync, m, now)) return;
    if (!s->joined_us) s->joined_us = now;
    heartbeat_join(&s->heartbeat, m->session, s->beat_us ? (uint32_t)(s->beat_us / 1000) : m->heartbeat_ms);
    for (uint32_t i = 0; i < s->sync.n_fragments; i++) {
        if (!s->sync.f[i].loading || m->snapshot[i].version) continue; /* version 0 can be computed */
        s->hashes[i] = m->snapshot[i].hash;
        sync_loaded(&s->sync, i, 0, now);
    }
}

static void note_delivered(struct stub_worker *s)
{
    if (s->sync.state != WORKER_WAITING || s->sync.round >= s->model->rounds) return;
    struct stub_round *t = &s->rounds[s->sync.round];
    if (!t->delivered) t->delivered = clock_monotonic_us();
}

static void on_message(struct stub_worker *s, enum wire_lane lane)
{
    const struct msg *m = &s->in;
    uint64_t now = clock_monotonic_us();
    if (s->sync.phase == SYNC_STOPPED || lane != msg_lane(m->type)) return;
    switch (m->type) {
    case MSG_CONFIG: on_config(s, &m->config); break;
    case MSG_WELCOME: on_welcome(s, &m->welcome); break;
    case MSG_REFUSE:
        fprintf(stderr, "%s: refused: %s\n", s->name, m->refuse.text);
        sync_on_refuse(&s->sync, &m->refuse, now);
        break;
    case MSG_UPLOAD: sync_on_upload(&s->sync, &m->upload, 0, now); break;
    case MSG_ASSIGN: sync_on_assign(&s->sync, &m->assign, now); break;
    case MSG_CREDIT: sync_on_credit(&s->sync, &m->credit, now); break;
    case MSG_REJECT:
        fprintf(stderr, "%s: delta refused: %s\n", s->name, m->reject.text);
        (void)sync_on_reject(&s->sync, &m->reject, now);
        break;
    case MSG_CHUNK: on_chunk(s, &m->chunk); break;
    case MSG_EVAL: sync_on_eval(&s->sync, &m->eval, now); break;
    case MSG_DONE: sync_on_done(&s->sync, &m->done, now); break;
    default: break;
    }
    for (uint32_t lost; sync_take_rollback(&s->sync, &lost);) fprintf(stderr, "%s: a delta was lost\n", s->name);
    sync_set_rtt(&s->sync, heartbeat_rtt_us(&s->heartbeat));
    apply_ready(s);
    note_delivered(s);
}

static void update_heartbeat(struct stub_worker *s)
{
    const struct sync *y = &s->sync;
    uint64_t versions[LAYOUT_FRAGMENTS_MAX], received, expected;
    for (uint32_t i = 0; i < y->n_fragments; i++) versions[i] = y->f[i].version;
    heartbeat_set_state(&s->heartbeat, y->state, y->round != SYNC_NO_ROUND ? y->round : y->last_round,
                        y->round != SYNC_NO_ROUND ? y->current.steps : y->task.steps, 0, y->n_fragments, versions);
    sync_receiving(y, &received, &expected);
    heartbeat_set_received(&s->heartbeat, received, expected, sync_rate_measured(&y->down));
    if (y->phase != SYNC_JOINED) heartbeat_leave(&s->heartbeat);
}

/* --- training ----------------------------------------------------------------------------------------------------- */

static void train_begin(struct stub_worker *s, uint64_t now)
{
    bool new_round = s->sync.round == SYNC_NO_ROUND;
    sync_train_begin(&s->sync, now);
    sync_segment_task(&s->sync, &s->segment);
    s->training_since = now;
    s->told = 0;
    if (!new_round) return;
    s->steps = 0;
    for (uint32_t i = 0; i < s->sync.n_fragments; i++) s->base[i] = s->sync.f[i].version;
    if (s->sync.round >= s->model->rounds) return;
    s->rounds[s->sync.round].begun = now;
    s->beats_at = atomic_load(&s->beats);
}

static void train_done(struct stub_worker *s, uint64_t now)
{
    uint64_t bytes[LAYOUT_FRAGMENTS_MAX] = {0};
    s->training_since = 0;
    s->steps += s->segment.steps;
    sync_segment_done(&s->sync);
    for (uint32_t i = 0; i < s->sync.n_fragments; i++)
        if (sync_is_sent(&s->sync, i)) bytes[i] = delta_of(s, i)->size;
    if (s->sync.round < s->model->rounds) {
        s->rounds[s->sync.round].trained = now;
        s->rounds[s->sync.round].beats = atomic_load(&s->beats) - s->beats_at;
    }
    sync_work_ready(&s->sync, s->sync.round, bytes, now);
}

/* Each token has a loss of LOSS. */
static void evaluate(struct stub_worker *s)
{
    struct wire_part parts[WIRE_PARTS_MAX];
    const struct msg_eval *e = &s->sync.eval.piece;
    uint64_t block = s->model->config.model.block_size;
    if (sync_wants_eval(&s->sync)) sync_eval_begin(&s->sync, clock_monotonic_us());
    while (s->sync.state == WORKER_EVALUATING) {
        uint64_t left = e->count;
        for (uint64_t i = 0; i < msg_eval_parts(e->count, e->part); i++) {
            parts[i].tokens = (left < e->part ? left : e->part) * block;
            parts[i].sum = LOSS * (double)parts[i].tokens;
            left -= parts[i].tokens / block;
        }
        sync_eval_done(&s->sync, LOSS * (double)(e->count * block), parts, clock_monotonic_us());
    }
}

/* Returns the time of the next step. */
static uint64_t train(struct stub_worker *s)
{
    uint64_t now = clock_monotonic_us(), step_us = s->step_us;
    if (!s->sync.computing) s->training_since = 0; /* the round was revoked */
    if (!s->training_since && sync_wants_training(&s->sync)) train_begin(s, now);
    if (!s->training_since) return UINT64_MAX;
    uint64_t done = (now - s->training_since) / (step_us ? step_us : 1);
    if (!step_us || done >= s->segment.steps) {
        train_done(s, now);
        return now;
    }
    update_heartbeat(s);
    if (done > s->told) heartbeat_set_step(&s->heartbeat, s->sync.step + (uint32_t)done, step_us);
    s->told = (uint32_t)done;
    return s->training_since + (done + 1) * step_us;
}

/* --- a worker ----------------------------------------------------------------------------------------------------- */

static void receive(struct stub_worker *s, uint64_t until)
{
    uint64_t now = clock_monotonic_us(), due = sync_deadline_us(&s->sync);
    if (due < until) until = due;
    uint64_t wait = until <= now ? 0 : until - now < WAIT_US ? until - now : WAIT_US;
    enum wire_lane lane;
    enum status status = link_recv(s->link, wait, &lane, &s->in);
    while (status != STATUS_AGAIN) {
        if (status == STATUS_OK) on_message(s, lane);
        status = link_recv(s->link, 0, &lane, &s->in);
    }
    unsigned both = link_both_connected(s->link);
    if (both != s->both_connected) sync_reconnected(&s->sync, clock_monotonic_us());
    s->both_connected = both;
}

static void *work(void *arg)
{
    struct stub_worker *s = arg;
    while (s->sync.phase != SYNC_STOPPED) {
        uint64_t next = train(s);
        apply_ready(s);
        evaluate(s);
        send_due(s);
        update_heartbeat(s);
        receive(s, next);
    }
    if (s->sync.refused) fprintf(stderr, "%s: stopped: %s\n", s->name, s->sync.text);
    link_close(s->link, FLUSH_US);
    return NULL;
}

void stub_worker_start(struct stub_worker *s, const struct transport_address *address)
{
    struct transport *transport;
    struct err err = {0};
    struct transport_worker self = {.fresh = true};
    uint64_t jitter;
    if (transport_key_make(&s->key, &err) != STATUS_OK) stub_die(err.msg);
    memcpy(&jitter, s->key.public_key, sizeof jitter);
    snprintf(s->name, sizeof s->name, "stub-%04u", s->index);
    memcpy(self.name, s->name, sizeof self.name);
    self.key = s->key;
    s->started_us = clock_monotonic_us();
    heartbeat_init(&s->heartbeat);
    sync_init(&s->sync, jitter, s->started_us);
    if (transport_zmq_dial(&transport, address, &self, &err) != STATUS_OK) stub_die(err.msg);
    s->inner = transport->ops;
    s->ops = *transport->ops;
    s->ops.send = watch_send;
    s->ops.recv = watch_recv;
    transport->ops = &s->ops;
    if (link_open(&s->link, transport, &s->heartbeat, &err) != STATUS_OK) stub_die(err.msg);
    if (thread_start(&s->thread, work, s)) stub_die("cannot start a thread");
}

bool stub_worker_join(struct stub_worker *s)
{
    pthread_join(s->thread, NULL);
    for (uint32_t i = 0; i < LAYOUT_FRAGMENTS_MAX; i++) mem_free(s->objects[i].head);
    mem_free(s->named);
    heartbeat_finish(&s->heartbeat);
    return !s->sync.refused;
}
