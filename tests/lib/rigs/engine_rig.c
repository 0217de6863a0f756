#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/test.h"

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "compress/codec.h"
#include "tests/lib/store/store_mem.h"

enum { PAYLOAD_MAX = 4096 };

const struct rig_access *rig_access;
uint64_t rig_held_most;
bool rig_moves_theta;
void (*rig_meanwhile)(void *ctx, uint64_t bytes, void (*work)(void *arg), void *arg);

static struct msg pool[RIG_OUTBOX]; /* messages are large: only the sent ones use memory */

/* --- io ----------------------------------------------------------------------------------------------------------- */

static enum status rig_send(void *ctx, uint64_t peer, enum wire_lane lane, const struct msg *m)
{
    struct rig *r = ctx;
    static uint8_t encoded[WIRE_HEADER + WIRE_BODY_MAX];
    size_t size;
    assert_int_equal(lane, msg_lane(m->type));
    if (msg_encode(m, encoded, sizeof encoded, &size) != STATUS_OK) fail_msg("%s cannot be encoded", msg_name(m->type));
    if (peer == r->closed_peer) return STATUS_CLOSED;
    if (lane == WIRE_BULK && r->bulk_answer != STATUS_OK) return r->bulk_refused++, r->bulk_answer;
    if (r->n_out == RIG_OUTBOX) fail_msg("the engine sends too many messages");
    struct rig_mail *mail = &r->out[r->n_out++];
    *mail = (struct rig_mail){.peer = peer, .m = &pool[r->n_out - 1]};
    *mail->m = *m;
    if (m->type == MSG_CHUNK) {
        uint8_t *copy = malloc(m->chunk.size); /* separate from the engine's memory, whose allocations may fail */
        assert_non_null(copy);
        memcpy(copy, m->chunk.data, m->chunk.size);
        mail->m->chunk.data = copy;
    }
    if (m->type == MSG_STATUS_REPLY) mail->m->status_reply.json = strdup(m->status_reply.json);
    return STATUS_OK;
}

static void rig_event(void *ctx, const struct engine_event *event)
{
    struct rig *r = ctx;
    if (event->kind == ENGINE_EVENT_ROUND) r->rounds_reported = event->round.round;
    if (r->n_events == RIG_OUTBOX) return;
    const char *text = engine_event_is_line(event)           ? event->line.text
                       : event->kind == ENGINE_EVENT_RESTART ? event->restart.text
                                                             : "";
    snprintf(r->event_text[r->n_events], sizeof r->event_text[0], "%s", text);
    r->events[r->n_events++] = *event;
}

static void rig_bytes(void *ctx, struct engine_bytes *out)
{
    const struct rig *r = ctx;
    *out = (struct engine_bytes){r->socket, r->socket, r->others, 2 * r->others};
}

void rig_forget(struct rig *r)
{
    for (size_t i = 0; i < r->n_out; i++) {
        struct msg *m = r->out[i].m;
        if (m->type == MSG_CHUNK) free((void *)(uintptr_t)m->chunk.data);
        if (m->type == MSG_STATUS_REPLY) free((void *)(uintptr_t)m->status_reply.json);
    }
    r->n_out = 0;
    r->n_events = 0;
}

int rig_events(const struct rig *r, enum engine_event_kind kind)
{
    int n = 0;
    for (size_t i = 0; i < r->n_events; i++) n += r->events[i].kind == kind;
    return n;
}

/* ---- start and stop ---------------------------------------------------------------------------------------------- */

static void quiet(void *ctx, enum log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

static void configure(struct rig *r, const char *const *settings)
{
    static const char *const base[] = {
        "train.max_steps=6",   "train.sync_every=2", "train.batch_size=1",
        "train.fragments=2",   "model.block_size=8", "codec.up=fp32",
        "codec.down=fp32",     "train.eval_every=0", "inner.warmup_steps=1",
        "inner.optimizer=sgd", "inner.grad_clip=0",  NULL}; /* sgd without clipping: deltas have no bound */
    struct config_sources sources;
    struct err err = {0};
    config_defaults(&r->config, &sources);
    for (int pass = 0; pass < 2; pass++)
        for (const char *const *s = pass ? settings : base; s && *s; s++)
            if (config_set(&r->config, &sources, *s, CONFIG_FLAG, &err) != STATUS_OK) fail_msg("%s", err.msg);
    if (config_resolve(&r->config, &sources, &err) != STATUS_OK) fail_msg("%s", err.msg);
}

uint32_t rig_layout_flags;
uint64_t rig_val_samples = 10, rig_entropy = 99;

static void make_layout(struct rig *r)
{
    const uint64_t shapes[4][2] = {{8, 4}, {16, 1}, {8, 4}, {16, 1}};
    layout_init(&r->layout);
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "tensor_%d", i);
        assert_int_equal(layout_add(&r->layout, name, i % 2 ? 1 : 2, shapes[i], LAYOUT_INIT_NORMAL, 0.5f,
                                    (i % 2 == 0 ? LAYOUT_DECAY : 0) | rig_layout_flags),
                         STATUS_OK);
    }
    assert_int_equal(layout_split(&r->layout, r->config.train.fragments), STATUS_OK);
    assert_int_equal(r->layout.n_params, RIG_PARAMS);
    struct writer w = writer_of(r->layout_bytes, sizeof r->layout_bytes);
    layout_encode(&r->layout, &w);
    assert_false(w.bad);
    r->layout_size = w.pos;
}

static enum status rig_recovering(void *ctx, uint64_t round, uint64_t records, struct err *err)
{
    struct rig *r = ctx;
    (void)round;
    return records < r->records_max ? STATUS_OK : err_set(err, STATUS_INTERRUPTED, "interrupted by the test");
}

enum status rig_start(struct rig *r, struct err *err)
{
    struct engine_options options = {.config = &r->config,
                                     .changes = r->changes,
                                     .n_changes = r->n_changes,
                                     .entropy = r->entropy++,
                                     .rounds_reported = r->rounds_reported,
                                     .held_most = rig_held_most};
    struct engine_io io = {.ctx = r, .send = rig_send, .event = rig_event, .bytes = rig_bytes};
    io.recovering = rig_recovering, io.meanwhile = rig_meanwhile;
    if (rig_access) {
        io.peer = rig_access->peer;
        io.enrol = rig_access->enrol;
        io.drop = rig_access->drop;
        io.path = rig_access->path;
    }
    return engine_create(&r->engine, &options, r->store, &io, r->now, err);
}

static void must_start(struct rig *r)
{
    struct err err = {0};
    if (rig_start(r, &err) != STATUS_OK) fail_msg("%s", err.msg);
}

enum status rig_open_on(struct rig *r, const char *const *settings, struct store *store, struct err *err)
{
    memset(r, 0, sizeof *r);
    r->store = store;
    log_set_sink(quiet, NULL);
    long left = mem_fail_after(0);
    configure(r, settings);
    make_layout(r);
    (void)mem_fail_after(left);
    r->now = 1000000;
    r->entropy = rig_entropy;
    r->next_peer = 1;
    r->loss_sum = 10;
    r->compute_us = 5000;
    r->records_max = UINT64_MAX;
    r->closed_peer = UINT64_MAX;
    for (int i = 0; i < RIG_WORKERS; i++) {
        memset(r->workers[i].uuid, 0x40 + i, WIRE_UUID);
        snprintf(r->workers[i].name, sizeof r->workers[i].name, "worker-%d", i);
    }
    return rig_start(r, err);
}

/* Allocations of the rig itself do not fail. */
static void check(const struct rig *r)
{
    struct err err = {0};
    long left = mem_fail_after(0);
    if (engine_check(r->engine, &err) != STATUS_OK) fail_msg("%s", err.msg);
    (void)mem_fail_after(left);
}

void rig_close_on(struct rig *r)
{
    if (r->engine) check(r);
    engine_destroy(r->engine);
    rig_forget(r);
    layout_finish(&r->layout);
}

void rig_open(struct rig *r, const char *const *settings)
{
    struct store *store;
    struct err err = {0};
    size_t live = mem_live_bytes();
    assert_int_equal(store_mem_create(&store), STATUS_OK);
    if (rig_open_on(r, settings, store, &err) != STATUS_OK) fail_msg("%s", err.msg);
    r->live = live;
}

void rig_close(struct rig *r)
{
    rig_close_on(r);
    store_mem_destroy(r->store);
    assert_int_equal(mem_live_bytes(), r->live); /* no memory leaks */
}

void rig_restart(struct rig *r, bool power, uint64_t draw)
{
    engine_destroy(r->engine);
    r->engine = NULL;
    store_mem_crash(r->store, power, draw);
    rig_forget(r);
    r->socket = r->others = 0;
    must_start(r);
}

static void must(const struct rig *r, enum status status, const struct err *err)
{
    if (status == STATUS_OK) return;
    if (r->failed) r->failed(err);
    fail_msg("%s", err->msg);
}

void rig_say(struct rig *r, uint64_t peer, const struct msg *m)
{
    struct err err = {0};
    r->now += RIG_STEP;
    must(r, engine_on_message(r->engine, peer, msg_lane(m->type), m, r->now, &err), &err);
    check(r);
}

void rig_wait(struct rig *r, uint64_t us)
{
    struct err err = {0};
    uint64_t end = r->now + us;
    for (int turns = 0; r->now < end; turns++) {
        uint64_t at = engine_next_deadline_us(r->engine);
        r->now = at > r->now ? (at < end ? at : end) : r->now;
        must(r, engine_tick(r->engine, r->now, &err), &err);
        if (engine_next_deadline_us(r->engine) <= r->now) {
            if (engine_finished(r->engine)) return;
            r->now++; /* a deadline in the past must not stop the clock */
        }
        if (turns > 100000) fail_msg("the engine asks for ticks without limit");
    }
}

/* --- mail --------------------------------------------------------------------------------------------------------- */

bool rig_take(struct rig *r, int worker, enum msg_type type, struct msg *m)
{
    const struct rig_worker *w = &r->workers[worker];
    for (size_t i = 0; i < r->n_out; i++) {
        struct rig_mail *mail = &r->out[i];
        if (mail->received || mail->m->type != type || (mail->peer != w->control && mail->peer != w->bulk)) continue;
        mail->received = true;
        *m = *mail->m;
        return true;
    }
    return false;
}

void rig_expect(struct rig *r, int worker, enum msg_type type, struct msg *m)
{
    if (!rig_take(r, worker, type, m)) fail_msg("no %s for worker-%d", msg_name(type), worker);
}

void rig_expect_none(struct rig *r, int worker, enum msg_type type)
{
    struct msg m;
    if (rig_take(r, worker, type, &m)) fail_msg("unexpected %s for worker-%d", msg_name(type), worker);
}

/* ---- messages of workers ----------------------------------------------------------------------------------------- */

void rig_hello(struct rig *r, int worker)
{
    struct rig_worker *w = &r->workers[worker];
    struct msg m = {.type = MSG_HELLO};
    w->control = r->next_peer++;
    w->bulk = r->next_peer++;
    memcpy(m.hello.uuid, w->uuid, WIRE_UUID);
    memcpy(m.hello.name, w->name, sizeof w->name);
    rig_say(r, w->control, &m);
}

void rig_join_message(struct rig *r, int worker, bool holds, struct msg *m)
{
    const struct rig_worker *w = &r->workers[worker];
    *m = (struct msg){.type = MSG_JOIN,
                      .join = {.config_hash = config_run_hash(engine_config(r->engine)),
                               .layout_hash = layout_hash(&r->layout),
                               .train_hash = 11,
                               .val_hash = w->blind ? 0 : 12,
                               .train_samples = 50,
                               .val_samples = w->blind ? 0 : rig_val_samples,
                               .sample_tokens = r->config.model.block_size,
                               .ranks = 1,
                               .layout = r->layout_bytes,
                               .layout_size = r->layout_size,
                               .model_config = "{\"model_type\": \"gpt2\"}",
                               .round = UINT64_MAX}};
    memcpy(m->join.uuid, w->uuid, WIRE_UUID);
    memcpy(m->join.name, w->name, sizeof w->name);
    if (!holds) return;
    m->join.n_held = r->layout.n_fragments;
    for (uint32_t f = 0; f < r->layout.n_fragments; f++)
        m->join.held[f] = (struct wire_version){w->versions[f], engine_version_hash(r->engine, f, w->versions[f])};
}

void rig_join(struct rig *r, int worker)
{
    struct rig_worker *w = &r->workers[worker];
    bool held = w->session != 0;
    struct msg m;
    rig_hello(r, worker);
    rig_expect(r, worker, MSG_CONFIG, &m);
    rig_join_message(r, worker, held, &m);
    rig_say(r, w->control, &m);
    if (rig_take(r, worker, MSG_REFUSE, &m)) {
        struct err err = {0};
        must(r, err_set(&err, STATUS_REFUSED, "refused: %s", m.refuse.text), &err);
    }
    rig_expect(r, worker, MSG_WELCOME, &m);
    w->session = m.welcome.session;
    w->id = m.welcome.worker_id;
    w->resume = m.welcome.resume;
    if (!w->resume)
        for (uint32_t f = 0; f < r->layout.n_fragments; f++) w->versions[f] = m.welcome.snapshot[f].version;
    m = (struct msg){.type = MSG_BIND, .bind.session = w->session};
    rig_say(r, w->bulk, &m);
    rig_beat(r, worker, WORKER_READY);
}

void rig_beat(struct rig *r, int worker, enum worker_state state)
{
    const struct rig_worker *w = &r->workers[worker];
    struct msg m = {.type = MSG_HEARTBEAT,
                    .heartbeat = {.session = w->session,
                                  .state = (uint8_t)state,
                                  .round = w->task.round,
                                  .steps = w->task.steps,
                                  .n_fragments = r->layout.n_fragments,
                                  .rate = w->rate,
                                  .workers = w->workers + !w->workers}};
    memcpy(m.heartbeat.versions, w->versions, sizeof m.heartbeat.versions);
    rig_say(r, w->control, &m);
}

void rig_assigned(struct rig *r, int worker)
{
    struct msg m;
    rig_expect(r, worker, MSG_ASSIGN, &m);
    do {
        r->workers[worker].task = m.assign;
        r->workers[worker].id = m.assign.worker_id;
    } while (rig_take(r, worker, MSG_ASSIGN, &m));
}

static size_t payload_of(const struct rig *r, uint32_t fragment, float level, uint8_t *out)
{
    struct codec *codec;
    float x[RIG_PARAMS];
    size_t size;
    long left = mem_fail_after(0);
    rig_values(r, fragment, level, x);
    for (uint64_t i = 0; rig_moves_theta && i < r->layout.fragments[fragment].count; i++)
        x[i] = engine_theta(r->engine)[r->layout.fragments[fragment].offset + i] - x[i];
    assert_int_equal(codec_create_for_fragment(&codec, r->config.codec.up, &r->layout, fragment, NULL), STATUS_OK);
    assert_int_equal(codec_encode(codec, x, out, PAYLOAD_MAX, &size, NULL), STATUS_OK);
    codec_destroy(codec);
    (void)mem_fail_after(left);
    return size;
}

void rig_offer_message(struct rig *r, int worker, uint32_t fragment, float level, struct msg *m)
{
    const struct rig_worker *w = &r->workers[worker];
    uint8_t payload[PAYLOAD_MAX];
    size_t size = payload_of(r, fragment, level, payload);
    bool ddp = r->config.train.method == METHOD_DDP, async = r->config.train.method == METHOD_ASYNC;
    bool lossless = codec_spec_lossless(r->config.codec.up);
    *m = (struct msg){
        .type = MSG_OFFER,
        .offer = {.session = w->session,
                  .round = w->task.round,
                  .fragment = fragment,
                  .steps = w->task.steps,
                  .form = ddp                  ? DELTA_GRADIENT
                          : !async && lossless ? DELTA_PARAMETERS
                                               : DELTA_PSEUDO_GRADIENT,
                  .base_version = w->task.versions[fragment],
                  .bytes = size,
                  .crc = crc32c(0, payload, size),
                  .tokens = (uint64_t)w->task.steps * r->config.train.batch_size * r->config.model.block_size,
                  .loss_sum = r->loss_sum,
                  .compute_us = r->compute_us}};
}

struct msg rig_deliver(struct rig *r, int worker, uint32_t fragment, float level)
{
    const struct rig_worker *w = &r->workers[worker];
    uint8_t payload[PAYLOAD_MAX];
    size_t size = payload_of(r, fragment, level, payload);
    struct msg m, answer;
    while (rig_take(r, worker, MSG_CREDIT, &m)) continue;
    rig_offer_message(r, worker, fragment, level, &m);
    rig_say(r, w->control, &m);
    if (rig_take(r, worker, MSG_REJECT, &answer)) return answer;
    rig_expect(r, worker, MSG_CREDIT, &answer);
    for (size_t at = answer.credit.have; at < size;) {
        size_t n = size - at < 50 ? size - at : 50;
        m = (struct msg){.type = MSG_CHUNK,
                         .chunk = {.kind = OBJECT_DELTA,
                                   .fragment = fragment,
                                   .key = w->task.round,
                                   .offset = at,
                                   .total = size,
                                   .crc = crc32c(0, payload + at, n),
                                   .data = payload + at,
                                   .size = n}};
        rig_say(r, w->bulk, &m);
        at += n;
    }
    while (rig_take(r, worker, MSG_CREDIT, &m)) answer = m;
    if (rig_take(r, worker, MSG_REJECT, &m)) answer = m;
    return answer;
}

void rig_catch_up(struct rig *r, int worker)
{
    for (uint32_t f = 0; f < r->layout.n_fragments; f++) r->workers[worker].versions[f] = engine_version(r->engine, f);
    rig_beat(r, worker, WORKER_READY);
}

void rig_deliver_all(struct rig *r, int n_workers, float level)
{
    for (int i = 0; i < n_workers; i++)
        for (uint32_t f = 0; f < r->layout.n_fragments; f++) {
            struct msg m = rig_deliver(r, i, f, level + (float)i);
            assert_int_equal(m.type, MSG_CREDIT);
        }
    for (int i = 0; i < n_workers; i++) rig_catch_up(r, i);
}

size_t rig_get(struct rig *r, int worker, uint8_t kind, uint32_t fragment, uint64_t version, uint8_t *out, size_t cap)
{
    const struct rig_worker *w = &r->workers[worker];
    struct msg m = {
        .type = MSG_GET,
        .get = {.session = w->session, .kind = kind, .fragment = fragment, .version = version, .length = cap}};
    size_t size = 0;
    rig_say(r, w->control, &m);
    while (rig_take(r, worker, MSG_CHUNK, &m)) {
        if (m.chunk.kind != kind || m.chunk.fragment != fragment || m.chunk.key != version) continue;
        assert_int_equal(m.chunk.offset, size);
        assert_true(m.chunk.total <= cap);
        memcpy(out + size, m.chunk.data, m.chunk.size);
        size += m.chunk.size;
        if (size == m.chunk.total) return size;
    }
    return size;
}

void rig_eval_result(const struct rig *r, int worker, const struct msg *eval, double per_token, struct msg *m)
{
    const struct msg_eval task = eval->eval;
    *m = (struct msg){
        .type = MSG_EVAL_RESULT,
        .eval_result = {
            .session = r->workers[worker].session, .eval_id = task.eval_id, .start = task.start, .count = task.count}};
    struct msg_eval_result *result = &m->eval_result;
    for (uint64_t i = 0; i < msg_eval_parts(task.count, task.part); i++) {
        uint64_t left = task.count - i * task.part, tokens = r->config.model.block_size;
        if (!(task.wanted >> i & 1)) continue;
        tokens *= left < task.part ? left : task.part;
        result->parts[result->n_parts++] = (struct wire_part){per_token * (double)tokens, tokens};
        result->tokens += tokens;
    }
    result->loss_sum = per_token * (double)result->tokens;
}

void rig_answer_evals(struct rig *r, int n_workers, double per_token)
{
    struct msg eval, result;
    for (bool any = true; any;) {
        any = false;
        for (int i = 0; i < n_workers; i++) {
            if (!rig_take(r, i, MSG_EVAL, &eval)) continue;
            any = true;
            rig_eval_result(r, i, &eval, per_token, &result);
            rig_say(r, r->workers[i].control, &result);
        }
    }
}

uint64_t rig_theta_hash(const struct rig *r)
{
    return layout_theta_hash(&r->layout, engine_theta(r->engine));
}

void rig_say_join(struct rig *r, int worker)
{
    struct msg m;
    rig_hello(r, worker);
    rig_expect(r, worker, MSG_CONFIG, &m);
    rig_join_message(r, worker, false, &m);
    rig_say(r, r->workers[worker].control, &m);
}

void rig_open_with(struct rig *r, const char *const *settings, int n_workers, bool assigned)
{
    rig_open(r, settings);
    for (int i = 0; i < n_workers; i++) rig_join(r, i);
    for (int i = 0; i < n_workers && assigned; i++) rig_assigned(r, i);
}

void rig_leave(struct rig *r, int worker)
{
    struct msg m = {.type = MSG_LEAVE, .leave.session = r->workers[worker].session};
    rig_say(r, r->workers[worker].control, &m);
}

void rig_stop(struct rig *r)
{
    engine_destroy(r->engine);
    r->engine = NULL;
}

void rig_start_fails(struct rig *r, enum status status, const char *words)
{
    struct err err = {0};
    assert_int_equal(rig_start(r, &err), status);
    if (!strstr(err.msg, words)) fail_msg("%s", err.msg);
    r->engine = NULL;
}

const struct engine_event *rig_last(const struct rig *r, enum engine_event_kind kind, const char **text)
{
    for (size_t i = r->n_events; i-- > 0;) {
        if (r->events[i].kind != kind) continue;
        if (text) *text = r->event_text[i];
        return &r->events[i];
    }
    fail_msg("no event of kind %d", (int)kind);
    return NULL;
}

bool rig_faults(const struct rig *r, const char *a, const char *b)
{
    bool any = false;
    for (size_t i = 0; i < r->n_events; i++)
        any |= r->events[i].kind == ENGINE_EVENT_FAULT && strstr(r->event_text[i], a) && strstr(r->event_text[i], b);
    return any;
}

void rig_refused(struct rig *r, int worker, uint16_t code, const char *words)
{
    struct msg m;
    rig_expect(r, worker, MSG_REFUSE, &m);
    bool right = m.refuse.code == code && strstr(m.refuse.text, words) && !strchr(m.refuse.text, '\n');
    if (!right) fail_msg("refused with %u: %s", m.refuse.code, m.refuse.text);
}

bool rig_find_worker(const struct rig *r, uint64_t peer, struct engine_peer *out)
{
    for (int i = 0; i < RIG_WORKERS; i++) {
        const struct rig_worker *w = &r->workers[i];
        if (peer != w->control && peer != w->bulk) continue;
        *out = (struct engine_peer){.right = ENGINE_RIGHT_WORKER};
        memcpy(out->key, w->uuid, WIRE_UUID);
        snprintf(out->name, sizeof out->name, "%s", w->name);
        return true;
    }
    return false;
}

const char *rig_waiting(const struct rig *r)
{
    static char text[WIRE_TEXT_MAX];
    return engine_waiting(r->engine, text, sizeof text);
}

const char *rig_status(const struct rig *r)
{
    static char json[1 << 16];
    return engine_status_json(r->engine, json, sizeof json) > 0 ? json : "";
}
