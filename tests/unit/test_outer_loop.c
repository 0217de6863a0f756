/* The outer loop against a coordinator of a hundred lines that does what the test tells it: joining fresh, from a
 * snapshot and from a saved state, uploads that break off, refusals, wrong hashes, faults, and any of it on a network
 * that loses and doubles messages. What the worker sent plus what it keeps back must always be what it computed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/rng.h"
#include "compress/codec.h"
#include "wire/object.h"
#include "worker/outer_loop.h"
#include "worker/outer_loop_impl.h"

enum { F = 2, N = 3000, VERSIONS = 64, QUEUE = 4096, ID = 5, WINDOW = 1024 };

/* ---- the coordinator ---------------------------------------------------------------------------------------------- */

static struct config config;
static struct layout layout;
static char config_text[CONFIG_TEXT_MAX];

/* Its log. */
static float log_theta[F][VERSIONS][N];
static uint8_t object[F][VERSIONS][2 * 4 * N];
static size_t object_size[F][VERSIONS];
static uint64_t top[F], hash_at[F][VERSIONS];
static struct codec *up[F], *down[F];
static float received[N]; /* sum of all merged deltas */

/* The open delta of each fragment. */
static uint8_t part[F][2 * 4 * N];
static struct msg_offer offered[F];
static uint64_t part_have[F];
static bool merged_round[F][VERSIONS];
static struct msg_get parked[F];

static uint64_t session, snapshot_at, oldest; /* oldest: first version of which updates still exist */
static int joins, hellos, leaves, offers, chunks_in, merges, gets, snapshot_gets;
static bool mute, known = true, reject_next, hold_merge, spoil_hash, spoil_payload, name_nobody;
static uint16_t refuse_hello;

/* The network: worker -> here is a queue, the answers are another. */
static struct msg to_worker[QUEUE];
static uint8_t chunk_bytes[QUEUE][2 * 4 * N];
static int queued, taken;
static double loss;
static uint64_t draw;

static bool chance(double p)
{
    return p > 0 && rng_uniform(11, RNG_TEST, draw++) < p;
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

static void answer(const struct msg *m)
{
    if (mute || chance(loss)) return;
    answer_once(m);
    if (chance(loss / 2)) answer_once(m);
}

static size_t count_of(uint32_t f)
{
    return layout.fragments[f].count;
}

static void send_object(const struct msg_get *g)
{
    static uint8_t snapshot[SNAPSHOT_HEAD_BYTES + 4 * N];
    const uint8_t *data = object[g->fragment][g->version];
    size_t size = object_size[g->fragment][g->version];
    if (g->kind == OBJECT_SNAPSHOT) {
        struct snapshot_head h = {.fragment = g->fragment, .version = g->version, .count = count_of(g->fragment),
                                  .hash = hash_at[g->fragment][g->version]};
        snapshot_head_encode(&h, snapshot);
        memcpy(snapshot + SNAPSHOT_HEAD_BYTES, log_theta[g->fragment][g->version], 4 * h.count);
        data = snapshot;
        size = SNAPSHOT_HEAD_BYTES + 4 * h.count;
        snapshot_gets++;
    }
    for (uint64_t at = g->offset; at < size && at < g->offset + g->length; at += 1000) {
        struct msg m = {.type = MSG_CHUNK};
        size_t n = size - at < 1000 ? size - at : 1000;
        m.chunk = (struct msg_chunk){.kind = g->kind, .fragment = g->fragment, .key = g->version, .offset = at,
                                     .total = size, .crc = crc32c(0, data + at, n), .data = data + at, .size = n};
        answer(&m);
    }
}

static void refuse(uint16_t code)
{
    struct msg m = {.type = MSG_REFUSE, .refuse = {.code = code, .text = "refused by the test"}};
    answer(&m);
}

static void on_get(const struct msg_get *g)
{
    gets++;
    if (g->session != session) {
        refuse(REFUSE_UNKNOWN_SESSION);
        return;
    }
    if (g->kind == OBJECT_UPDATE && g->version == top[g->fragment] + 1) {
        parked[g->fragment] = *g;
        return;
    }
    if (g->version > top[g->fragment] || (g->kind == OBJECT_UPDATE && g->version <= oldest)) {
        refuse(REFUSE_GONE);
        return;
    }
    send_object(g);
}

/* Version top + 1 of fragment f: theta - decode(delta), encoded with codec.down. */
static void publish(uint32_t f, bool with_delta)
{
    static float x[N], was[N];
    size_t n = count_of(f), size;
    uint64_t v = top[f] + 1;
    float *theta = log_theta[f][v];
    bool lossless = codec_lossless(up[f]);
    if (with_delta) {
        assert_int_equal(codec_decode(up[f], part[f], offered[f].bytes, x), STATUS_OK);
        for (size_t i = 0; i < n; i++) {
            float d = lossless ? (float)((double)log_theta[f][v - 1][i] - x[i]) : x[i];
            received[layout.fragments[f].offset + i] += d;
            was[i] = lossless ? x[i] : -d;
        }
    }
    struct update u = {.fragment = f, .version = v, .round = offered[f].round,
                       .form = lossless ? UPDATE_PARAMETERS : UPDATE_INCREMENT};
    struct update_named named = {.worker_id = ID, .round = offered[f].round, .tokens = 1};
    static uint8_t payload[2 * 4 * N];
    if (!with_delta) {
        for (size_t i = 0; i < n; i++) was[i] = lossless ? log_theta[f][v - 1][i] + 1 : 1.0f;
        u.round = v - 1;
    }
    assert_int_equal(codec_encode(down[f], was, payload, sizeof payload, &size, NULL), STATUS_OK);
    assert_int_equal(codec_decode(down[f], payload, size, x), STATUS_OK);
    for (size_t i = 0; i < n; i++) theta[i] = lossless ? x[i] : log_theta[f][v - 1][i] + x[i];
    hash_at[f][v] = hash64(theta, 4 * n);
    u.theta_hash = hash_at[f][v] ^ (spoil_hash ? 1 : 0);
    snprintf(u.codec, sizeof u.codec, "%s", codec_spec(down[f]));
    u.n_named = with_delta && !name_nobody;
    u.named = &named;
    u.payload = payload;
    u.payload_size = size - (spoil_payload ? 1 : 0);
    assert_int_equal(update_encode(&u, object[f][v], sizeof object[f][v], &object_size[f][v]), STATUS_OK);
    spoil_hash = spoil_payload = false;
    if (with_delta) merged_round[f][offered[f].round] = true;
    top[f] = v;
    merges++;
    if (parked[f].version == v) {
        send_object(&parked[f]);
        parked[f].version = 0;
    }
}

static void credit(uint32_t f, uint64_t round, uint64_t have, uint64_t upto)
{
    struct msg m = {.type = MSG_CREDIT, .credit = {.round = round, .fragment = f, .have = have, .upto = upto}};
    answer(&m);
}

static void maybe_merge(uint32_t f)
{
    if (hold_merge || !offered[f].bytes || part_have[f] < offered[f].bytes || merged_round[f][offered[f].round]) return;
    assert_int_equal(crc32c(0, part[f], part_have[f]), offered[f].crc);
    assert_int_equal(offered[f].base_version, top[f]);
    publish(f, true);
}

static void on_offer(const struct msg_offer *o)
{
    struct msg m = {.type = MSG_REJECT, .reject = {.round = o->round, .fragment = o->fragment, .code = REJECT_LATE,
                                                   .text = "too late for the test"}};
    offers++;
    if (o->session != session) {
        refuse(REFUSE_UNKNOWN_SESSION);
    } else if (merged_round[o->fragment][o->round]) {
        credit(o->fragment, o->round, o->bytes, o->bytes);
    } else if (reject_next) {
        answer(&m);
    } else {
        bool same = offered[o->fragment].round == o->round && offered[o->fragment].crc == o->crc;
        if (!same) part_have[o->fragment] = 0;
        offered[o->fragment] = *o;
        credit(o->fragment, o->round, part_have[o->fragment], part_have[o->fragment] + WINDOW);
        maybe_merge(o->fragment);
    }
}

static void on_chunk(const struct msg_chunk *c)
{
    uint32_t f = c->fragment;
    chunks_in++;
    assert_int_equal(c->crc, crc32c(0, c->data, c->size));
    if (c->key != offered[f].round || c->offset != part_have[f]) return;
    memcpy(part[f] + c->offset, c->data, c->size);
    part_have[f] += c->size;
    credit(f, c->key, part_have[f], part_have[f] + WINDOW);
    maybe_merge(f);
}

static void give_work(void)
{
    uint64_t round = top[0] < top[1] ? top[0] : top[1];
    struct msg m = {.type = MSG_ASSIGN,
                    .assign = {.round = round, .worker_id = ID, .steps = 4, .step_rate = 1, .n_ranges = 1,
                               .ranges = {{.start = 0, .count = 4}}, .n_fragments = F, .versions = {round, round}}};
    answer(&m);
}

static void on_hello(void)
{
    struct msg m = {.type = MSG_CONFIG, .config = {.config_hash = config_shared_hash(&config), .text = config_text}};
    hellos++;
    memset(m.config.run_id, 9, WIRE_UUID);
    if (refuse_hello)
        refuse(refuse_hello);
    else
        answer(&m);
}

static void on_join(const struct msg_join *j)
{
    struct msg m = {.type = MSG_WELCOME};
    joins++;
    session = 1000 + (uint64_t)joins;
    m.welcome = (struct msg_welcome){.session = session, .worker_id = UINT32_MAX, .heartbeat_ms = 1000, .n_fragments = F};
    m.welcome.resume = j->n_held == F;
    for (uint32_t f = 0; f < F; f++) {
        m.welcome.current[f] = (struct wire_version){.version = top[f], .hash = hash_at[f][top[f]]};
        m.welcome.snapshot[f] = (struct wire_version){.version = snapshot_at, .hash = hash_at[f][snapshot_at]};
        if (j->n_held == F && (j->held[f].version < oldest || j->held[f].version > top[f] ||
                               j->held[f].hash != hash_at[f][j->held[f].version]))
            m.welcome.resume = false;
        parked[f].version = 0;
    }
    answer(&m);
}

static void coordinator_take(const struct msg *m)
{
    if (mute) return;
    switch (m->type) {
    case MSG_HELLO: on_hello(); break;
    case MSG_JOIN: on_join(&m->join); break;
    case MSG_GET: on_get(&m->get); break;
    case MSG_OFFER: on_offer(&m->offer); break;
    case MSG_CHUNK: on_chunk(&m->chunk); break;
    case MSG_LEAVE: leaves++; break;
    default: break;
    }
}

/* ---- the worker --------------------------------------------------------------------------------------------------- */

static struct outer_loop *loop;
static struct outer_setup setup;
static uint64_t now;
static float params[N], computed[N]; /* computed: sum of all deltas that were trained and not thrown away */
static float inner_state[8];

/* Storage in memory: two generations. */
static uint8_t *stored[2];
static size_t stored_size[2];
static int saves;

static enum status store_save(void *ctx, const struct outer_part *parts, size_t n, struct err *err)
{
    (void)ctx;
    (void)err;
    size_t size = 0;
    for (size_t i = 0; i < n; i++) size += parts[i].size;
    mem_free(stored[1]);
    stored[1] = stored[0];
    stored_size[1] = stored_size[0];
    stored[0] = mem_alloc(1, size);
    stored_size[0] = 0;
    for (size_t i = 0; i < n; i++) {
        memcpy(stored[0] + stored_size[0], parts[i].data, parts[i].size);
        stored_size[0] += parts[i].size;
    }
    saves++;
    return STATUS_OK;
}

static enum status store_load(void *ctx, int age, const uint8_t **data_p, size_t *size_p, struct err *err)
{
    (void)ctx;
    (void)err;
    if (!stored[age]) return STATUS_NOTFOUND;
    *data_p = stored[age];
    *size_p = stored_size[age];
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
    if (m->type == MSG_CHUNK && chance(loss)) return STATUS_AGAIN;
    if (!chance(loss)) coordinator_take(m);
    if (chance(loss / 2)) coordinator_take(m);
    return STATUS_OK;
}

static size_t inner_parts(void *ctx, struct outer_part *parts, size_t cap)
{
    (void)ctx;
    assert_true(cap >= 1);
    parts[0] = (struct outer_part){.data = inner_state, .size = sizeof inner_state};
    return 1;
}

static enum status inner_load(void *ctx, const uint8_t *data, size_t size)
{
    (void)ctx;
    memset(inner_state, 0, sizeof inner_state);
    if (!data) return STATUS_OK;
    if (size != sizeof inner_state) return STATUS_MISMATCH;
    memcpy(inner_state, data, size);
    return STATUS_OK;
}

static enum status on_config(void *ctx, const char *text, struct outer_model *model, struct err *err)
{
    (void)ctx;
    assert_string_equal(text, config_text);
    (void)err;
    *model = (struct outer_model){.config = &config, .layout = &layout, .sample_tokens = 8, .ranks = 1,
                                  .devices = "test", .model_config = "{}",
                                  .inner = {.parts = inner_parts, .load = inner_load}};
    return STATUS_OK;
}

static void worker_up(void)
{
    memset(inner_state, 0, sizeof inner_state);
    assert_int_equal(outer_loop_create(&loop, &setup, now), STATUS_OK);
}

static void worker_kill(void)
{
    outer_loop_destroy(loop);
    loop = NULL;
    queued = taken = 0;
}

/* Deterministic "training": depends on parameters, round and inner state, like the real one. */
static void train(void)
{
    uint64_t round = outer_loop_assignment(loop)->round;
    outer_loop_train_begin(loop, now);
    const float *theta = outer_loop_params(loop);
    for (int i = 0; i < N; i++) {
        float step = 0.01f * (float)sin((double)(i * 7 + (int)round * 13)) + 0.001f * inner_state[0];
        params[i] = theta[i] - step;
        computed[i] += (float)((double)theta[i] - params[i]);
    }
    inner_state[0] += 1;
}

static void train_done(void)
{
    struct outer_result r = {.values = params, .tokens = 32, .steps = 4, .loss_sum = 3, .compute_us = 1000};
    assert_int_equal(outer_loop_train_done(loop, &r, now), STATUS_OK);
}

static void deliver(void)
{
    while (taken < queued) {
        struct msg m = to_worker[taken % QUEUE];
        taken++;
        outer_loop_on_message(loop, msg_lane(m.type), &m, now);
    }
}

/* Time passes: messages, timers, heartbeats (whose only effect here is that a READY worker gets its work again). */
static void pass(uint64_t us)
{
    uint64_t until = now + us;
    struct msg beat;
    while (now < until) {
        outer_loop_tick(loop, now);
        deliver();
        outer_loop_tick(loop, now);
        if (pulse_take(outer_loop_pulse(loop), now, &beat) && !mute && known && !chance(loss)) {
            if (beat.heartbeat.session != session)
                refuse(REFUSE_UNKNOWN_SESSION);
            else if (beat.heartbeat.state == WORKER_READY)
                give_work();
        }
        if (queued == taken) now += 50000;
    }
}

/* Go on until it wants to train (or until nothing helps). */
static bool until_training(void)
{
    for (int i = 0; i < 4000; i++) {
        if (outer_loop_want(loop) == OUTER_TRAIN) return true;
        pass(50000);
    }
    return false;
}

static void rounds(int n)
{
    for (int i = 0; i < n; i++) {
        if (!until_training()) fail_msg("round %d of %d: no work: %s", i, n, outer_loop_text(loop, now));
        train();
        train_done();
    }
    for (int i = 0; i < 4000 && (outer_loop_want(loop) != OUTER_TRAIN || loop->sync.state != WORKER_READY); i++) pass(50000);
}

static void check_same_theta(void)
{
    for (uint32_t f = 0; f < F; f++) {
        assert_int_equal(outer_loop_version(loop, f), top[f]);
        assert_memory_equal(outer_loop_params(loop) + layout.fragments[f].offset, log_theta[f][top[f]], 4 * count_of(f));
    }
}

/* merged + residual = computed, to the rounding of the additions. */
static void check_nothing_lost(void)
{
    for (uint32_t f = 0; f < F; f++)
        for (size_t i = 0; i < count_of(f); i++) {
            size_t at = layout.fragments[f].offset + i;
            double kept = loop->f[f].fb.residual ? loop->f[f].fb.residual[i] : 0;
            if (fabs((double)received[at] + kept - computed[at]) > 2e-5)
                fail_msg("element %zu: merged %g, kept %g, computed %g", at, received[at], kept, computed[at]);
        }
}

/* ---- fixture ------------------------------------------------------------------------------------------------------ */

static void begin(const char *codec)
{
    struct config_sources sources;
    uint64_t shape[2] = {20, 100};
    config_defaults(&config, &sources);
    snprintf(config.codec.up, sizeof config.codec.up, "%s", codec);
    snprintf(config.codec.down, sizeof config.codec.down, "%s", codec);
    assert_int_equal(config_resolve(&config, &sources, NULL), STATUS_OK);
    assert_true(config_shared_text(&config, config_text, sizeof config_text) > 0);
    layout_init(&layout);
    assert_int_equal(layout_add(&layout, "a", 2, shape, LAYOUT_INIT_NORMAL, 0.02f, true), STATUS_OK);
    shape[0] = 1000;
    assert_int_equal(layout_add(&layout, "b", 1, shape, LAYOUT_INIT_NORMAL, 0.02f, false), STATUS_OK);
    assert_int_equal(layout_split(&layout, F), STATUS_OK);
    assert_int_equal(layout.n_params, N);
    assert_int_equal(layout.n_fragments, F);
    for (uint32_t f = 0; f < F; f++) {
        assert_int_equal(codec_create_for_fragment(&up[f], codec, &layout, f, NULL), STATUS_OK);
        assert_int_equal(codec_create_for_fragment(&down[f], codec, &layout, f, NULL), STATUS_OK);
        layout_fill(&layout, f, config.run.seed, log_theta[f][0]);
        hash_at[f][0] = hash64(log_theta[f][0], 4 * count_of(f));
        top[f] = part_have[f] = 0;
        memset(&offered[f], 0, sizeof offered[f]);
        memset(&parked[f], 0, sizeof parked[f]);
    }
    memset(merged_round, 0, sizeof merged_round);
    memset(received, 0, sizeof received);
    memset(computed, 0, sizeof computed);
    joins = hellos = leaves = offers = chunks_in = merges = gets = snapshot_gets = saves = queued = taken = 0;
    mute = reject_next = hold_merge = spoil_hash = spoil_payload = name_nobody = false;
    known = true;
    refuse_hello = 0;
    session = snapshot_at = oldest = draw = 0;
    loss = 0;
    now = 1000000;
    setup = (struct outer_setup){.name = "w", .send = to_coordinator, .on_config = on_config, .save = store_save,
                                 .load = store_load, .release = store_release};
    memset(setup.uuid, 7, WIRE_UUID);
    worker_up();
}

static int end(void **state)
{
    (void)state;
    outer_loop_destroy(loop);
    loop = NULL;
    for (uint32_t f = 0; f < F; f++) {
        codec_destroy(up[f]);
        codec_destroy(down[f]);
    }
    layout_finish(&layout);
    for (int i = 0; i < 2; i++) {
        mem_free(stored[i]);
        stored[i] = NULL;
    }
    return 0;
}

/* ---- tests -------------------------------------------------------------------------------------------------------- */

static void test_fresh_join_makes_version_0(void **state)
{
    (void)state;
    begin("int8:256");
    assert_true(until_training());
    assert_int_equal(snapshot_gets, 0);
    check_same_theta();
    rounds(5);
    check_same_theta();
    check_nothing_lost();
    assert_int_equal(top[0], 5);
    assert_int_equal(saves, 5);
    assert_int_equal(joins, 1);
}

static void test_lossless_sends_parameters(void **state)
{
    (void)state;
    begin("fp32");
    rounds(3);
    assert_int_equal(offered[0].form, DELTA_PARAMETERS);
    check_same_theta();
    check_nothing_lost();
}

static void test_version_0_of_other_weights_is_downloaded(void **state)
{
    (void)state;
    begin("int8:256");
    log_theta[1][0][5] = 3.25f; /* init_from: not what the seed gives */
    hash_at[1][0] = hash64(log_theta[1][0], 4 * count_of(1));
    assert_true(until_training());
    assert_int_equal(snapshot_gets, 1);
    check_same_theta();
}

static void test_late_joiner_takes_snapshot_and_log(void **state)
{
    (void)state;
    begin("int8:256");
    for (int v = 0; v < 6; v++)
        for (uint32_t f = 0; f < F; f++) publish(f, false);
    snapshot_at = oldest = 4;
    assert_true(until_training());
    assert_int_equal(snapshot_gets, F);
    check_same_theta();
    assert_int_equal(outer_loop_assignment(loop)->round, 6);
}

static void test_killed_after_saving_offers_the_same_bytes(void **state)
{
    (void)state;
    uint32_t crc;
    begin("int8:256");
    rounds(2);
    hold_merge = true;
    train();
    train_done();
    pass(2000000);
    crc = offered[0].crc;
    assert_int_equal(loop->sync.state, WORKER_WAITING);
    worker_kill();
    worker_up();
    float was = inner_state[0];
    assert_true(was == 0);
    pass(5000000);
    assert_int_equal(offered[0].crc, crc);
    assert_true(inner_state[0] == 3);
    hold_merge = false;
    part_have[0] = part_have[1] = 0; /* the coordinator had lost it, too */
    pass(60000000);
    rounds(2);
    check_same_theta();
    check_nothing_lost();
}

/* A worker killed while it trains recomputes the same round from the same state: the run's parameters do not change. */
static void test_kills_do_not_change_the_run(void **state)
{
    (void)state;
    uint64_t hashes[2];
    for (int kills = 0; kills < 2; kills++) {
        if (kills) end(NULL);
        begin("int8:256");
        for (int i = 0; i < 8; i++) {
            rounds(1);
            if (!kills) continue;
            assert_true(until_training());
            if (i % 2) train();
            worker_kill();
            worker_up();
        }
        assert_true(until_training());
        hashes[kills] = hash_at[0][8];
    }
    assert_int_equal(hashes[0], hashes[1]);
}

static void test_upload_resumes_after_restart_of_the_coordinator(void **state)
{
    (void)state;
    begin("fp32");
    rounds(1);
    train();
    train_done();
    mute = true; /* everything from here on is lost */
    pass(3000000);
    mute = false;
    session = 1; /* it forgot the sessions, but holds half of fragment 0 */
    part_have[0] = 0;
    pass(60000000);
    assert_int_equal(top[0], 2);
    assert_true(joins >= 2);
    rounds(1);
    check_same_theta();
    check_nothing_lost();
}

static void test_rejection_puts_the_delta_back(void **state)
{
    (void)state;
    begin("int8:256");
    rounds(2);
    assert_true(until_training());
    train();
    reject_next = true;
    known = false; /* no new work before the round closed */
    train_done();
    pass(1000000);
    reject_next = false;
    known = true;
    assert_int_equal(loop->sync.last_rejected, 1);
    check_nothing_lost(); /* all of it is in the residual */
    for (uint32_t f = 0; f < F; f++) publish(f, false); /* the round closed without it */
    rounds(3);
    check_same_theta();
    for (uint32_t f = 0; f < F; f++) assert_false(merged_round[f][2]);
    check_nothing_lost(); /* and was sent with the next ones */
}

static void test_passed_over_is_put_back(void **state)
{
    (void)state;
    begin("int8:256");
    rounds(1);
    hold_merge = true;
    known = false;
    train();
    train_done();
    pass(1000000);
    for (uint32_t f = 0; f < F; f++) {
        offered[f].round = 1;
        publish(f, false);
        merged_round[f][1] = true; /* claims "merged" although no update names it */
    }
    hold_merge = false;
    known = true;
    pass(5000000);
    rounds(2);
    check_same_theta();
    check_nothing_lost();
}

static void test_wrong_hash_drops_everything_and_rejoins(void **state)
{
    (void)state;
    begin("int8:256");
    rounds(2);
    uint64_t good = hash_at[0][2];
    snapshot_at = 2;
    train();
    spoil_hash = true; /* of the first fragment that is merged */
    train_done();
    pass(3000000);
    assert_true(joins >= 2);
    assert_int_equal(good, hash_at[0][2]);
    assert_true(snapshot_gets >= F);
    /* The update itself carries the wrong hash: loading cannot pass it until the snapshot moves on. */
    for (uint32_t f = 0; f < F; f++)
        if (top[f] < 3) publish(f, false);
    snapshot_at = oldest = 3;
    pass(60000000);
    rounds(1);
    check_same_theta();
}

static void test_damaged_update_is_asked_for_again(void **state)
{
    (void)state;
    begin("int8:256");
    rounds(1);
    spoil_payload = true;
    publish(0, false);
    pass(1000000);
    assert_int_equal(outer_loop_version(loop, 0), 1);
    assert_int_equal(joins, 1);
    snapshot_at = oldest = 2;
    publish(1, false);
    pass(60000000); /* three useless copies: everything anew, from the snapshot behind it */
    assert_int_equal(outer_loop_version(loop, 0), 2);
    check_same_theta();
}

static void test_log_gone_means_snapshot_and_no_residual(void **state)
{
    (void)state;
    begin("int8:256");
    rounds(2);
    worker_kill();
    for (int v = 0; v < 5; v++)
        for (uint32_t f = 0; f < F; f++) publish(f, false);
    snapshot_at = oldest = 6;
    worker_up();
    assert_true(until_training());
    check_same_theta();
    for (int i = 0; i < 10; i++) assert_true(loop->f[0].fb.residual[i] == 0.0f);
}

static void test_torn_newest_state_falls_back_to_the_older(void **state)
{
    (void)state;
    begin("int8:256");
    rounds(4);
    worker_kill();
    stored_size[0] -= 100;
    worker_up();
    assert_true(until_training());
    check_same_theta();
    assert_true(inner_state[0] == 3); /* of one round earlier */
    rounds(1);
    check_same_theta();
}

static void test_state_of_another_run_is_not_used(void **state)
{
    (void)state;
    begin("int8:256");
    rounds(1);
    worker_kill();
    setup.uuid[0] ^= 1; /* its file belongs to another worker */
    worker_up();
    assert_true(until_training());
    assert_true(inner_state[0] == 0);
    check_same_theta();
}

static void test_not_finite_is_never_sent(void **state)
{
    (void)state;
    begin("int8:256");
    rounds(1);
    for (int times = 1; times <= 3; times++) {
        int before = offers;
        assert_true(until_training());
        outer_loop_train_begin(loop, now);
        memcpy(params, outer_loop_params(loop), sizeof params);
        params[2500] = times == 2 ? INFINITY : NAN;
        inner_state[0] = 99;
        struct outer_result r = {.values = params, .tokens = 32, .steps = 4, .loss_sum = 3};
        assert_int_equal(outer_loop_train_done(loop, &r, now), STATUS_NONFINITE);
        assert_true(inner_state[0] == 0);
        assert_int_equal(offers, before);
        assert_int_equal(leaves, times);
        check_nothing_lost();
    }
    assert_int_equal(outer_loop_want(loop), OUTER_FAILED);
    assert_non_null(strstr(outer_loop_text(loop, now), "learning_rate"));
}

static void test_refused_for_good(void **state)
{
    (void)state;
    begin("int8:256");
    refuse_hello = REFUSE_VERSION;
    pass(1000000);
    assert_int_equal(outer_loop_want(loop), OUTER_FAILED);
    assert_non_null(strstr(outer_loop_text(loop, now), "refused by the test"));
}

static void test_evaluation_and_end(void **state)
{
    (void)state;
    begin("int8:256");
    rounds(1);
    known = false; /* no new work */
    loop->sync.has_task = false;
    struct msg m = {.type = MSG_EVAL, .eval = {.eval_id = 1, .start = 2, .count = 3, .n_fragments = F, .versions = {1, 1}}};
    answer(&m);
    pass(200000);
    assert_int_equal(outer_loop_want(loop), OUTER_EVAL);
    assert_int_equal(outer_loop_evaluation(loop)->count, 3);
    outer_loop_eval_begin(loop, now);
    outer_loop_eval_done(loop, 4.5, 24, now);
    assert_int_equal(outer_loop_want(loop), OUTER_WAIT);
    m = (struct msg){.type = MSG_DONE, .done = {.n_fragments = F, .text = "all done"}};
    answer(&m);
    pass(200000);
    assert_int_equal(outer_loop_want(loop), OUTER_DONE);
    assert_string_equal(outer_loop_text(loop, now), "all done");
    assert_int_equal(leaves, 1);
}

static void test_bad_network(void **state)
{
    (void)state;
    for (int seed = 0; seed < 6; seed++) {
        if (seed) end(NULL);
        begin("int8:256");
        draw = (uint64_t)seed << 32;
        loss = 0.05 + 0.05 * seed;
        for (int i = 0; i < 12; i++) {
            rounds(1);
            if (i % 5 == 4) {
                worker_kill();
                worker_up();
            }
            if (i % 5 == 2) session = 0; /* the coordinator forgets the sessions */
        }
        loss = 0;
        assert_true(until_training());
        check_same_theta();
        check_nothing_lost();
        assert_int_equal(merges, 2 * (int)top[0]); /* nothing merged twice */
    }
}

static void test_no_allocation_after_the_layout_is_known(void **state)
{
    (void)state;
    begin("int8:256");
    setup.save = NULL;
    rounds(1);
    mem_fail_after(1);
    loop->setup.save = NULL; /* the test's own storage allocates */
    rounds(3);
    mem_fail_after(0);
    check_same_theta();
}

static void test_out_of_memory_at_config(void **state)
{
    (void)state;
    for (long n = 1; n < 12; n++) {
        begin("int8:256");
        mem_fail_after(n);
        pass(500000);
        mem_fail_after(0);
        if (outer_loop_want(loop) == OUTER_FAILED) assert_int_not_equal(outer_loop_text(loop, now)[0], 0);
        end(NULL);
    }
    begin("int8:256");
}

int main(void)
{
    log_set_level(LOG_ERROR - 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_fresh_join_makes_version_0, end),
        cmocka_unit_test_teardown(test_lossless_sends_parameters, end),
        cmocka_unit_test_teardown(test_version_0_of_other_weights_is_downloaded, end),
        cmocka_unit_test_teardown(test_late_joiner_takes_snapshot_and_log, end),
        cmocka_unit_test_teardown(test_killed_after_saving_offers_the_same_bytes, end),
        cmocka_unit_test_teardown(test_kills_do_not_change_the_run, end),
        cmocka_unit_test_teardown(test_upload_resumes_after_restart_of_the_coordinator, end),
        cmocka_unit_test_teardown(test_rejection_puts_the_delta_back, end),
        cmocka_unit_test_teardown(test_passed_over_is_put_back, end),
        cmocka_unit_test_teardown(test_wrong_hash_drops_everything_and_rejoins, end),
        cmocka_unit_test_teardown(test_damaged_update_is_asked_for_again, end),
        cmocka_unit_test_teardown(test_log_gone_means_snapshot_and_no_residual, end),
        cmocka_unit_test_teardown(test_torn_newest_state_falls_back_to_the_older, end),
        cmocka_unit_test_teardown(test_state_of_another_run_is_not_used, end),
        cmocka_unit_test_teardown(test_not_finite_is_never_sent, end),
        cmocka_unit_test_teardown(test_refused_for_good, end),
        cmocka_unit_test_teardown(test_evaluation_and_end, end),
        cmocka_unit_test_teardown(test_bad_network, end),
        cmocka_unit_test_teardown(test_no_allocation_after_the_layout_is_known, end),
        cmocka_unit_test_teardown(test_out_of_memory_at_config, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
