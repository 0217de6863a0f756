#include "tests/lib/rigs/scripted_coordinator.h"
#include "tests/lib/test.h"

#include "common/base/hash.h"
#include "common/base/rng.h"
#include "wire/object.h"

enum { QUEUE = 2048, ID = 5, WINDOW = 1024, BYTES_MAX = 2 * 4 * SCRIPTED_N };

static struct scripted *const s = &scripted;

/* The log. */
static uint8_t object[SCRIPTED_F][SCRIPTED_VERSIONS][BYTES_MAX];
static size_t object_size[SCRIPTED_F][SCRIPTED_VERSIONS];
static struct codec *up[SCRIPTED_F], *down[SCRIPTED_F];

/* The incomplete delta of each fragment. */
static uint8_t part[SCRIPTED_F][BYTES_MAX];
static struct msg_get parked[SCRIPTED_F];

/* Answers in transit to the worker. */
static struct msg to_worker[QUEUE];
static uint8_t chunk_bytes[QUEUE][1000];
static int queued, delivered;

bool scripted_chance(double p)
{
    return p > 0 && rng_uniform(11, RNG_TEST, s->draw++) < p;
}

static void answer_once(const struct msg *m)
{
    assert_true(queued - delivered < QUEUE);
    struct msg *slot = &to_worker[queued % QUEUE];
    *slot = *m;
    if (m->type == MSG_CHUNK) {
        memcpy(chunk_bytes[queued % QUEUE], m->chunk.data, m->chunk.size);
        slot->chunk.data = chunk_bytes[queued % QUEUE];
    }
    queued++;
}

bool scripted_next_answer(struct msg *m)
{
    if (delivered == queued) return false;
    *m = to_worker[delivered++ % QUEUE];
    return true;
}

bool scripted_answers_wait(void)
{
    return delivered < queued;
}

void scripted_answer(const struct msg *m)
{
    if (s->mute || scripted_chance(s->loss)) return;
    answer_once(m);
    if (scripted_chance(s->loss / 2)) answer_once(m);
}

size_t scripted_count(uint32_t f)
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
                                  .count = scripted_count(g->fragment),
                                  .hash = s->hash_at[g->fragment][g->version]};
        snapshot_head_encode(&h, snapshot);
        memcpy(snapshot + SNAPSHOT_HEAD_BYTES, s->theta[g->fragment][g->version], 4 * h.count);
        if (s->spoil_snapshots > 0 && s->spoil_snapshots--) snapshot[SNAPSHOT_HEAD_BYTES] ^= 1;
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

void scripted_refuse(uint16_t code)
{
    struct msg m = {.type = MSG_REFUSE, .refuse = {.code = code, .text = "refused by the test"}};
    scripted_answer(&m);
}

static void on_get(const struct msg_get *g)
{
    if (g->session != s->session) {
        scripted_refuse(REFUSE_UNKNOWN_SESSION);
        return;
    }
    if (g->kind == OBJECT_UPDATE && g->version == s->top[g->fragment] + 1) {
        parked[g->fragment] = *g;
        return;
    }
    if (g->version > s->top[g->fragment] || (g->kind == OBJECT_UPDATE && g->version <= s->oldest)) {
        scripted_refuse(REFUSE_GONE);
        return;
    }
    send_object(g);
}

/* Encodes theta - decode(delta) with codec.down. */
void scripted_publish(uint32_t f, bool with_delta)
{
    static float x[SCRIPTED_N], was[SCRIPTED_N];
    size_t n = scripted_count(f), size;
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
        .reject = {.round = o->round, .fragment = o->fragment, .code = s->reject, .text = "refused by the test"}};
    s->offers++;
    if (o->session != s->session) {
        scripted_refuse(REFUSE_UNKNOWN_SESSION);
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

void scripted_give_work(void)
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
    struct msg m = {.type = MSG_CONFIG, .config = {.config_hash = config_run_hash(&s->config), .text = s->config_text}};
    memset(m.config.run_id, 9, WIRE_UUID);
    if (s->refuse_hello)
        scripted_refuse(s->refuse_hello);
    else
        scripted_answer(&m);
}

static void on_join(const struct msg_join *j)
{
    struct msg m = {.type = MSG_WELCOME};
    s->joins++;
    s->session = 1000 + (uint64_t)s->joins;
    /* The id is known once the first round has opened. */
    m.welcome = (struct msg_welcome){.session = s->session,
                                     .worker_id = s->joins > 1 ? ID : UINT32_MAX,
                                     .heartbeat_ms = 1000,
                                     .n_fragments = SCRIPTED_F};
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

void scripted_take(const struct msg *m)
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

void scripted_lose_answers(void)
{
    queued = delivered = 0;
}

void scripted_coordinator_begin(void)
{
    assert_true(config_shared_text(&s->config, s->config_text, sizeof s->config_text) > 0);
    for (uint32_t f = 0; f < SCRIPTED_F; f++) {
        assert_int_equal(codec_create_for_fragment(&up[f], s->config.codec.up, &s->layout, f, NULL), STATUS_OK);
        assert_int_equal(codec_create_for_fragment(&down[f], s->config.codec.down, &s->layout, f, NULL), STATUS_OK);
        layout_fill(&s->layout, f, s->config.run.seed, s->theta[f][0]);
        s->hash_at[f][0] = hash_floats(NULL, s->theta[f][0], scripted_count(f));
        memset(&parked[f], 0, sizeof parked[f]);
    }
}

void scripted_coordinator_end(void)
{
    for (uint32_t f = 0; f < SCRIPTED_F; f++) {
        codec_destroy(up[f]);
        codec_destroy(down[f]);
    }
}
