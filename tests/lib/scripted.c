#include "tests/lib/scripted.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/mem.h"
#include "common/rng.h"
#include "tests/lib/save_image.h"
#include "wire/object.h"

enum { QUEUE = 2048, ID = 5, WINDOW = 1024, BYTES_MAX = 2 * 4 * SCRIPTED_N };

struct scripted scripted;
static struct scripted *const s = &scripted;

/* ---- the coordinator ----------------------------------------------------------------------------------------------
 */

static char config_text[CONFIG_TEXT_MAX];

/* Its log. */
static uint8_t object[SCRIPTED_F][SCRIPTED_VERSIONS][BYTES_MAX];
static size_t object_size[SCRIPTED_F][SCRIPTED_VERSIONS];
static struct codec *up[SCRIPTED_F], *down[SCRIPTED_F];

/* The open delta of each fragment. */
static uint8_t part[SCRIPTED_F][BYTES_MAX];
static struct msg_get parked[SCRIPTED_F];

/* The network: worker -> here is a queue, the answers are another. */
static struct msg to_worker[QUEUE];
static uint8_t chunk_bytes[QUEUE][1000];
static int queued, taken;

static bool chance(double p)
{
    return p > 0 && rng_uniform(11, RNG_TEST, s->draw++) < p;
}

static void answer_once(const struct msg *m)
{
    assert_true(queued - taken < QUEUE);
    struct msg *slot = &to_worker[queued % QUEUE];
    *slot = *m;
    if (m->type == MSG_CHUNK) {
        memcpy(chunk_bytes[queued % QUEUE], m->chunk.data, m->chunk.size);
        slot->chunk.data = chunk_bytes[queued % QUEUE];
    }
    queued++;
}

void scripted_answer(const struct msg *m)
{
    if (s->mute || chance(s->loss)) return;
    answer_once(m);
    if (chance(s->loss / 2)) answer_once(m);
}

static size_t count_of(uint32_t f)
{
    return s->layout.fragments[f].count;
}

static void send_object(const struct msg_get *g)
{
    static uint8_t snapshot[SNAPSHOT_HEAD_BYTES + 4 * SCRIPTED_N];
    const uint8_t *data = object[g->fragment][g->version];
    size_t size = object_size[g->fragment][g->version];
    if (g->kind == OBJECT_SNAPSHOT) {
        struct snapshot_head h = {.fragment = g->fragment,
                                  .version = g->version,
                                  .count = count_of(g->fragment),
                                  .hash = s->hash_at[g->fragment][g->version]};
        snapshot_head_encode(&h, snapshot);
        memcpy(snapshot + SNAPSHOT_HEAD_BYTES, s->theta[g->fragment][g->version], 4 * h.count);
        data = snapshot;
        size = SNAPSHOT_HEAD_BYTES + 4 * h.count;
        s->snapshot_gets++;
    }
    for (uint64_t at = g->offset; at < size && at < g->offset + g->length; at += 1000) {
        struct msg m = {.type = MSG_CHUNK};
        size_t n = size - at < 1000 ? size - at : 1000;
        m.chunk = (struct msg_chunk){.kind = g->kind,
                                     .fragment = g->fragment,
                                     .key = g->version,
                                     .offset = at,
                                     .total = size,
                                     .crc = crc32c(0, data + at, n),
                                     .data = data + at,
                                     .size = n};
        scripted_answer(&m);
    }
}

static void refuse(uint16_t code)
{
    struct msg m = {.type = MSG_REFUSE, .refuse = {.code = code, .text = "refused by the test"}};
    scripted_answer(&m);
}

static void on_get(const struct msg_get *g)
{
    if (g->session != s->session) {
        refuse(REFUSE_UNKNOWN_SESSION);
        return;
    }
    if (g->kind == OBJECT_UPDATE && g->version == s->top[g->fragment] + 1) {
        parked[g->fragment] = *g;
        return;
    }
    if (g->version > s->top[g->fragment] || (g->kind == OBJECT_UPDATE && g->version <= s->oldest)) {
        refuse(REFUSE_GONE);
        return;
    }
    send_object(g);
}

/* Version top + 1 of fragment f: theta - decode(delta), encoded with codec.down. */
void scripted_publish(uint32_t f, bool with_delta)
{
    static float x[SCRIPTED_N], was[SCRIPTED_N];
    size_t n = count_of(f), size;
    uint64_t v = s->top[f] + 1;
    float *theta = s->theta[f][v];
    bool lossless = codec_lossless(up[f]), replaces = codec_lossless(down[f]);
    if (with_delta) {
        assert_int_equal(codec_decode(up[f], part[f], s->offered[f].bytes, x), STATUS_OK);
        for (size_t i = 0; i < n; i++) {
            float d = lossless ? (float)((double)s->theta[f][v - 1][i] - x[i]) : x[i];
            s->received[s->layout.fragments[f].offset + i] += d;
            was[i] = lossless ? x[i] : replaces ? s->theta[f][v - 1][i] - d : -d;
        }
    }
    struct update u = {.fragment = f,
                       .version = v,
                       .round = s->offered[f].round,
                       .form = replaces ? UPDATE_PARAMETERS : UPDATE_INCREMENT};
    struct update_named named = {.worker_id = ID, .round = s->offered[f].round, .tokens = 1};
    static uint8_t payload[BYTES_MAX];
    if (!with_delta) {
        for (size_t i = 0; i < n; i++) was[i] = replaces ? s->theta[f][v - 1][i] + 1 : 1.0f;
        u.round = v - 1;
    }
    assert_int_equal(codec_encode(down[f], was, payload, sizeof payload, &size, NULL), STATUS_OK);
    assert_int_equal(codec_decode(down[f], payload, size, x), STATUS_OK);
    for (size_t i = 0; i < n; i++) theta[i] = replaces ? x[i] : s->theta[f][v - 1][i] + x[i];
    s->hash_at[f][v] = hash_floats(NULL, theta, n);
    u.theta_hash = s->hash_at[f][v] ^ (s->spoil_hash ? 1 : 0);
    snprintf(u.codec, sizeof u.codec, "%s", codec_spec(down[f]));
    u.n_named = with_delta;
    u.named = &named;
    u.payload = payload;
    u.payload_size = size - (s->spoil_payload ? 1 : 0);
    assert_int_equal(update_encode(&u, object[f][v], sizeof object[f][v], &object_size[f][v]), STATUS_OK);
    s->spoil_hash = s->spoil_payload = false;
    if (with_delta) s->merged_round[f][s->offered[f].round] = true;
    s->top[f] = v;
    s->merges++;
    if (parked[f].version == v) {
        send_object(&parked[f]);
        parked[f].version = 0;
    }
}

static void credit(uint32_t f, uint64_t round, uint64_t have, uint64_t upto)
{
    struct msg m = {.type = MSG_CREDIT, .credit = {.round = round, .fragment = f, .have = have, .upto = upto}};
    scripted_answer(&m);
}

static void maybe_merge(uint32_t f)
{
    if (s->hold_merge || !s->offered[f].bytes || s->part_have[f] < s->offered[f].bytes ||
        s->merged_round[f][s->offered[f].round])
        return;
    assert_int_equal(crc32c(0, part[f], s->part_have[f]), s->offered[f].crc);
    assert_true(s->offered[f].base_version == s->top[f] || s->config.train.method == METHOD_ASYNC);
    scripted_publish(f, true);
}

static void on_offer(const struct msg_offer *o)
{
    struct msg m = {
        .type = MSG_REJECT,
        .reject = {.round = o->round, .fragment = o->fragment, .code = REJECT_LATE, .text = "too late for the test"}};
    s->offers++;
    if (o->session != s->session) {
        refuse(REFUSE_UNKNOWN_SESSION);
    } else if (s->merged_round[o->fragment][o->round]) {
        credit(o->fragment, o->round, o->bytes, o->bytes);
    } else if (s->reject) {
        scripted_answer(&m);
    } else {
        bool same = s->offered[o->fragment].round == o->round && s->offered[o->fragment].crc == o->crc;
        if (!same) s->part_have[o->fragment] = 0;
        s->offered[o->fragment] = *o;
        credit(o->fragment, o->round, s->part_have[o->fragment], s->part_have[o->fragment] + WINDOW);
        maybe_merge(o->fragment);
    }
}

static void on_chunk(const struct msg_chunk *c)
{
    uint32_t f = c->fragment;
    assert_int_equal(c->crc, crc32c(0, c->data, c->size));
    if (c->key != s->offered[f].round || c->offset != s->part_have[f]) return;
    memcpy(part[f] + c->offset, c->data, c->size);
    s->part_have[f] += c->size;
    credit(f, c->key, s->part_have[f], s->part_have[f] + WINDOW);
    maybe_merge(f);
}

static void give_work(void)
{
    uint64_t round = s->top[0] < s->top[1] ? s->top[0] : s->top[1];
    struct msg m = {.type = MSG_ASSIGN,
                    .assign = {.round = round,
                               .worker_id = ID,
                               .steps = 4,
                               .step_rate = 1,
                               .n_ranges = 1,
                               .ranges = {{.start = 0, .count = 4}},
                               .n_fragments = SCRIPTED_F,
                               .versions = {round, round}}};
    scripted_answer(&m);
}

static void on_hello(void)
{
    struct msg m = {.type = MSG_CONFIG, .config = {.config_hash = config_shared_hash(&s->config), .text = config_text}};
    memset(m.config.run_id, 9, WIRE_UUID);
    if (s->refuse_hello)
        refuse(s->refuse_hello);
    else
        scripted_answer(&m);
}

static void on_join(const struct msg_join *j)
{
    struct msg m = {.type = MSG_WELCOME};
    s->joins++;
    s->session = 1000 + (uint64_t)s->joins;
    m.welcome = (struct msg_welcome){
        .session = s->session, .worker_id = UINT32_MAX, .heartbeat_ms = 1000, .n_fragments = SCRIPTED_F};
    m.welcome.resume = j->n_held == SCRIPTED_F;
    for (uint32_t f = 0; f < SCRIPTED_F; f++) {
        m.welcome.current[f] = (struct wire_version){.version = s->top[f], .hash = s->hash_at[f][s->top[f]]};
        m.welcome.snapshot[f] = (struct wire_version){.version = s->snapshot_at, .hash = s->hash_at[f][s->snapshot_at]};
        if (j->n_held == SCRIPTED_F && (j->held[f].version < s->oldest || j->held[f].version > s->top[f] ||
                                        j->held[f].hash != s->hash_at[f][j->held[f].version]))
            m.welcome.resume = false;
        parked[f].version = 0;
    }
    scripted_answer(&m);
}

static void coordinator_take(const struct msg *m)
{
    if (s->mute) return;
    switch (m->type) {
    case MSG_HELLO: on_hello(); break;
    case MSG_JOIN: on_join(&m->join); break;
    case MSG_GET: on_get(&m->get); break;
    case MSG_OFFER: on_offer(&m->offer); break;
    case MSG_CHUNK: on_chunk(&m->chunk); break;
    case MSG_LEAVE: s->leaves++; break;
    default: break;
    }
}

/* ---- the worker ---------------------------------------------------------------------------------------------------
 */

/* Storage in memory: two generations, and a save that ends when it is looked at late enough. */

static void store_begin(void *ctx, const struct saved_state *state, const struct outer_part *body, size_t n)
{
    (void)ctx;
    assert_int_equal(s->save_end, 0); /* one at a time */
    s->save_bytes = save_image(state, body, n, &s->save_size);
    s->save_body = body;
    s->save_parts = n;
    s->save_end = s->now + s->save_us + 1;
}

static void store_forget(void)
{
    mem_free(s->save_bytes);
    s->save_bytes = NULL;
    s->save_end = 0;
}

void scripted_save_ends(void)
{
    if (!s->save_bytes) return;
    if (!save_image_holds(s->save_bytes, s->save_size, s->save_body, s->save_parts))
        fail_msg("the state changed while it was saved");
    if (s->save_fails) return;
    mem_free(s->stored[1]);
    s->stored[1] = s->stored[0];
    s->stored_size[1] = s->stored_size[0];
    s->stored[0] = s->save_bytes;
    s->stored_size[0] = s->save_size;
    s->save_bytes = NULL;
    s->saves++;
}

static enum status store_poll(void *ctx, bool wait, struct err *err)
{
    (void)ctx;
    if (!s->save_end) return STATUS_OK;
    if (!wait && s->now + 1 < s->save_end) return STATUS_AGAIN;
    scripted_save_ends();
    store_forget();
    return s->save_fails ? err_set(err, STATUS_IO, "the test's disk is full") : STATUS_OK;
}

static enum status store_load(void *ctx, int age, const uint8_t **data_p, size_t *size_p, struct err *err)
{
    (void)ctx;
    (void)err;
    if (!s->stored[age]) return STATUS_NOTFOUND;
    *data_p = s->stored[age];
    *size_p = s->stored_size[age];
    return STATUS_OK;
}

static void store_release(void *ctx, const uint8_t *data, size_t size)
{
    (void)ctx;
    (void)data;
    (void)size;
}

static enum status to_coordinator(void *ctx, enum wire_lane lane, const struct msg *m)
{
    (void)ctx;
    assert_int_equal(lane == WIRE_BULK, m->type == MSG_CHUNK || m->type == MSG_BIND);
    if (m->type == MSG_CHUNK && chance(s->loss)) return STATUS_AGAIN;
    if (!chance(s->loss)) coordinator_take(m);
    if (chance(s->loss / 2)) coordinator_take(m);
    return STATUS_OK;
}

static size_t inner_parts(void *ctx, struct outer_part *parts, size_t cap)
{
    (void)ctx;
    assert_true(cap >= 1);
    parts[0] = (struct outer_part){.data = s->inner, .size = sizeof s->inner};
    return 1;
}

static enum status inner_load(void *ctx, const uint8_t *data, size_t size)
{
    (void)ctx;
    memset(s->inner, 0, sizeof s->inner);
    if (!data) return STATUS_OK;
    if (size != sizeof s->inner) return STATUS_MISMATCH;
    memcpy(s->inner, data, size);
    return STATUS_OK;
}

static enum status on_config(void *ctx, const char *text, struct outer_model *model, struct err *err)
{
    (void)ctx;
    assert_string_equal(text, config_text);
    (void)err;
    *model = (struct outer_model){.config = &s->config,
                                  .layout = &s->layout,
                                  .sample_tokens = 8,
                                  .ranks = 1,
                                  .devices = "test",
                                  .model_config = "{}",
                                  .inner = {.parts = inner_parts, .load = inner_load},
                                  .device = s->device,
                                  .device_theta = s->device_theta};
    return STATUS_OK;
}

void scripted_worker_up(void)
{
    memset(s->inner, 0, sizeof s->inner);
    assert_int_equal(outer_loop_create(&s->loop, &s->setup, s->now), STATUS_OK);
}

void scripted_worker_kill(void)
{
    store_forget();
    outer_loop_destroy(s->loop);
    s->loop = NULL;
    queued = taken = 0;
}

/* What the device has of theta is theta. */
static void check_device(void)
{
    static float seen[SCRIPTED_N];
    const float *there = outer_loop_device_params(s->loop);
    struct err err = {0};
    if (!s->device) return;
    assert_non_null(there);
    s->device->ops->download(s->device, seen, there, sizeof seen);
    if (s->device->ops->sync(s->device, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_memory_equal(seen, outer_loop_params(s->loop), sizeof seen);
}

/* Deterministic "training": depends on parameters, round and inner state, like the real one. */
void scripted_train(void)
{
    uint64_t round = outer_loop_assignment(s->loop)->round;
    outer_loop_train_begin(s->loop, s->now);
    check_device();
    const float *theta = outer_loop_params(s->loop);
    for (int i = 0; i < SCRIPTED_N; i++) {
        float step = 0.01f * (float)sin((double)(i * 7 + (int)round * 13)) + 0.001f * s->inner[0];
        s->params[i] = theta[i] - step;
        s->computed[i] += (float)((double)theta[i] - s->params[i]);
    }
    s->inner[0] += 1;
}

void scripted_train_done(void)
{
    if (s->device) s->device->ops->upload(s->device, s->device_theta, s->params, sizeof s->params);
    struct outer_result r = {.tokens = 32, .steps = 4, .loss_sum = 3, .compute_us = 1000};
    if (!s->device) r.values = s->params;
    assert_int_equal(outer_loop_train_done(s->loop, &r, s->now), STATUS_OK);
}

static void deliver(void)
{
    while (taken < queued) {
        struct msg m = to_worker[taken % QUEUE];
        taken++;
        outer_loop_on_message(s->loop, msg_lane(m.type), &m, s->now);
    }
}

/* Time passes: messages, timers, heartbeats (whose only effect here is that a READY worker gets its work again). */
void scripted_pass(uint64_t us)
{
    uint64_t until = s->now + us;
    struct msg beat;
    while (s->now < until) {
        outer_loop_tick(s->loop, s->now);
        deliver();
        outer_loop_tick(s->loop, s->now);
        if (pulse_take(outer_loop_pulse(s->loop), s->now, &beat) && !s->mute && !s->no_work && !chance(s->loss)) {
            if (beat.heartbeat.session != s->session)
                refuse(REFUSE_UNKNOWN_SESSION);
            else if (beat.heartbeat.state == WORKER_READY)
                give_work();
        }
        if (queued == taken) s->now += 50000;
    }
}

/* Go on until it wants to train (or until nothing helps). */
bool scripted_until_training(void)
{
    for (int i = 0; i < 4000; i++) {
        if (outer_loop_want(s->loop) == OUTER_TRAIN) return true;
        scripted_pass(50000);
    }
    return false;
}

void scripted_rounds(int n)
{
    for (int i = 0; i < n; i++) {
        if (!scripted_until_training()) fail_msg("round %d of %d: no work: %s", i, n, outer_loop_text(s->loop, s->now));
        scripted_train();
        scripted_train_done();
    }
    for (int i = 0; i < 4000 && (outer_loop_want(s->loop) != OUTER_TRAIN || s->loop->sync.state != WORKER_READY); i++)
        scripted_pass(50000);
}

void scripted_check_theta(void)
{
    for (uint32_t f = 0; f < SCRIPTED_F; f++) {
        assert_int_equal(outer_loop_version(s->loop, f), s->top[f]);
        assert_memory_equal(outer_loop_params(s->loop) + s->layout.fragments[f].offset, s->theta[f][s->top[f]],
                            4 * count_of(f));
    }
}

/* merged + residual = computed, to the rounding of the additions. */
void scripted_check_nothing_lost(void)
{
    for (uint32_t f = 0; f < SCRIPTED_F; f++)
        for (size_t i = 0; i < count_of(f); i++) {
            size_t at = s->layout.fragments[f].offset + i;
            if (i == 0) assert_int_equal(outer_residual_read(s->loop, f), STATUS_OK);
            double kept = s->loop->f[f].fb.residual ? s->loop->f[f].fb.residual[i] : 0;
            if (fabs((double)s->received[at] + kept - s->computed[at]) > 2e-5)
                fail_msg("element %zu: merged %g, kept %g, computed %g", at, s->received[at], kept, s->computed[at]);
        }
}

/* ---- fixture ------------------------------------------------------------------------------------------------------
 */

void scripted_begin(const char *codec)
{
    scripted_begin_on(codec, codec, NULL);
}

static void begin(const char *codec_up, const char *codec_down, struct device *device, bool async)
{
    struct config_sources sources;
    uint64_t shape[2] = {20, 100};
    memset(s, 0, sizeof *s);
    queued = taken = 0;
    config_defaults(&s->config, &sources);
    if (async) s->config.train.method = METHOD_ASYNC;
    snprintf(s->config.codec.up, sizeof s->config.codec.up, "%s", codec_up);
    snprintf(s->config.codec.down, sizeof s->config.codec.down, "%s", codec_down);
    assert_int_equal(config_resolve(&s->config, &sources, NULL), STATUS_OK);
    assert_true(config_shared_text(&s->config, config_text, sizeof config_text) > 0);
    layout_init(&s->layout);
    assert_int_equal(layout_add(&s->layout, "a", 2, shape, LAYOUT_INIT_NORMAL, 0.02f, true), STATUS_OK);
    shape[0] = 1000;
    assert_int_equal(layout_add(&s->layout, "b", 1, shape, LAYOUT_INIT_NORMAL, 0.02f, false), STATUS_OK);
    assert_int_equal(layout_split(&s->layout, SCRIPTED_F), STATUS_OK);
    assert_int_equal(s->layout.n_params, SCRIPTED_N);
    assert_int_equal(s->layout.n_fragments, SCRIPTED_F);
    for (uint32_t f = 0; f < SCRIPTED_F; f++) {
        assert_int_equal(codec_create_for_fragment(&up[f], codec_up, &s->layout, f, NULL), STATUS_OK);
        assert_int_equal(codec_create_for_fragment(&down[f], codec_down, &s->layout, f, NULL), STATUS_OK);
        layout_fill(&s->layout, f, s->config.run.seed, s->theta[f][0]);
        s->hash_at[f][0] = hash_floats(NULL, s->theta[f][0], count_of(f));
        memset(&parked[f], 0, sizeof parked[f]);
    }
    s->now = 1000000;
    s->device = device;
    if (device) s->device_theta = device->ops->alloc(device, SCRIPTED_N * sizeof *s->device_theta);
    s->setup = (struct outer_setup){.name = "w",
                                    .send = to_coordinator,
                                    .on_config = on_config,
                                    .save_begin = store_begin,
                                    .save_poll = store_poll,
                                    .load = store_load,
                                    .release = store_release};
    memset(s->setup.uuid, 7, WIRE_UUID);
    scripted_worker_up();
}

void scripted_begin_on(const char *codec_up, const char *codec_down, struct device *device)
{
    begin(codec_up, codec_down, device, false);
}

void scripted_begin_async(const char *codec_up, const char *codec_down, struct device *device)
{
    begin(codec_up, codec_down, device, true);
}

void scripted_end(void)
{
    store_forget();
    outer_loop_destroy(s->loop);
    s->loop = NULL;
    for (uint32_t f = 0; f < SCRIPTED_F; f++) {
        codec_destroy(up[f]);
        codec_destroy(down[f]);
    }
    if (s->device) s->device->ops->release(s->device, s->device_theta);
    layout_finish(&s->layout);
    for (int i = 0; i < 2; i++) {
        mem_free(s->stored[i]);
        s->stored[i] = NULL;
    }
}
