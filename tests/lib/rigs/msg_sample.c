#include "tests/lib/rigs/msg_sample.h"

#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/rng.h"

const enum msg_type msg_sample_types[] = {
#define SAMPLE_TYPE(name, number, lane, direction) MSG_##name,
    MSG_MAP(SAMPLE_TYPE)
#undef SAMPLE_TYPE
        0,
};

struct source {
    uint64_t seed, drawn;
    uint32_t most;
};

static uint64_t any(struct source *s)
{
    return rng_u64(s->seed, RNG_TEST, s->drawn++);
}

static uint64_t up_to(struct source *s, uint64_t high)
{
    return high == UINT64_MAX ? any(s) : any(s) % (high + 1);
}

static uint32_t count(struct source *s, uint32_t low, uint32_t high)
{
    if (high > s->most) high = s->most;
    return high <= low ? low : low + (uint32_t)up_to(s, high - low);
}

static double real(struct source *s)
{
    return ((double)(any(s) >> 11) - 4503599627370496.0) / 1048576.0;
}

static void raw(struct source *s, uint8_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++) out[i] = (uint8_t)any(s);
}

/* Printable text with some characters of two and three bytes. */
static void text(struct source *s, char *out, size_t cap, bool lines)
{
    static const char *const odd[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x8f\x9d"};
    size_t want = 1 + up_to(s, s->most), n = 0;
    while (n < want && n + 5 < cap) {
        uint64_t v = any(s);
        if (v % 16 == 0)
            n += (size_t)snprintf(out + n, cap - n, "%s", odd[v / 16 % 3]);
        else
            out[n++] = lines && v % 16 == 1 ? '\n' : (char)(' ' + v / 16 % 95);
    }
    out[n] = 0;
}

static void versions(struct source *s, struct wire_version *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) out[i] = (struct wire_version){.version = any(s), .hash = any(s)};
}

static void numbers(struct source *s, uint64_t *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) out[i] = any(s);
}

#define LINE(member) text(s, member, sizeof(member), false)

static char long_text[WIRE_STATUS_MAX];
static uint8_t long_data[WIRE_CHUNK_MAX], frozen_data[WIRE_CHUNK_MAX];

static void fill_join(struct source *s, struct msg_join *m)
{
    raw(s, m->uuid, WIRE_UUID);
    LINE(m->name);
    m->config_hash = any(s);
    m->layout_hash = any(s);
    m->train_hash = any(s);
    m->val_hash = any(s);
    m->train_samples = any(s);
    m->val_samples = any(s);
    m->sample_tokens = (uint32_t)any(s);
    m->ranks = (uint32_t)any(s);
    LINE(m->devices);
    m->layout_size = count(s, 1, sizeof long_data);
    raw(s, long_data, m->layout_size);
    m->layout = long_data;
    text(s, long_text, WIRE_CONFIG_MAX, true);
    m->model_config = long_text;
    m->frozen_any = any(s) & 1;
    m->frozen_whole = any(s) & 1;
    m->frozen_size = count(s, 0, sizeof frozen_data);
    raw(s, frozen_data, m->frozen_size);
    m->frozen = frozen_data;
    m->n_held = count(s, 1, LAYOUT_FRAGMENTS_MAX);
    versions(s, m->held, m->n_held);
    m->round = any(s);
}

static void fill_heartbeat(struct source *s, struct msg_heartbeat *m)
{
    m->session = any(s);
    m->sent_us = any(s);
    m->round = any(s);
    m->step = (uint32_t)any(s);
    m->steps = (uint32_t)any(s);
    m->state = (uint8_t)(1 + up_to(s, WORKER_FINISHED - 1));
    m->step_s = real(s);
    m->eval_id = any(s);
    m->train_hash = any(s);
    m->val_hash = any(s);
    m->n_fragments = count(s, 1, LAYOUT_FRAGMENTS_MAX);
    numbers(s, m->versions, m->n_fragments);
    m->received = any(s);
    m->expected = any(s);
    m->rate = any(s);
}

static void fill_assign(struct source *s, struct msg_assign *m)
{
    m->round = any(s);
    m->worker_id = (uint32_t)any(s);
    m->steps = 1 + (uint32_t)up_to(s, UINT32_MAX - 1);
    m->step0 = real(s);
    m->step_rate = real(s);
    m->lr = real(s);
    m->epoch = real(s);
    m->n_ranges = count(s, 1, WIRE_RANGES_MAX);
    for (uint32_t i = 0; i < m->n_ranges; i++)
        m->ranges[i] = (struct wire_range){.start = any(s) >> 1, .count = any(s) >> 1};
    m->n_fragments = count(s, 1, LAYOUT_FRAGMENTS_MAX);
    numbers(s, m->versions, m->n_fragments);
}

static void fill_offer(struct source *s, struct msg_offer *m)
{
    m->session = any(s);
    m->round = any(s);
    m->fragment = (uint32_t)up_to(s, LAYOUT_FRAGMENTS_MAX - 1);
    m->form = (uint8_t)(1 + up_to(s, DELTA_GRADIENT - 1));
    m->base_version = any(s);
    m->bytes = 1 + (any(s) >> 1);
    m->crc = (uint32_t)any(s);
    m->tokens = any(s);
    m->steps = (uint32_t)any(s);
    m->loss_sum = real(s);
    m->norm = (float)real(s);
    m->compute_us = any(s);
}

static void fill_chunk(struct source *s, struct msg_chunk *m)
{
    m->kind = (uint8_t)(1 + up_to(s, OBJECT_SNAPSHOT - 1));
    m->fragment = (uint32_t)up_to(s, LAYOUT_FRAGMENTS_MAX - 1);
    m->key = any(s);
    m->size = count(s, 1, WIRE_CHUNK_MAX);
    raw(s, long_data, m->size);
    m->data = long_data;
    m->crc = crc32c(0, m->data, m->size);
    m->offset = any(s) >> 2;
    m->total = m->offset + m->size + (any(s) >> 2);
}

static const uint8_t *filling(struct source *s, size_t *size)
{
    *size = count(s, 0, WIRE_PROBE_MAX);
    raw(s, long_data, *size);
    return long_data;
}

static void fill_metrics(struct source *s, struct msg_metrics *m)
{
    m->session = any(s);
    m->bytes_up = any(s);
    m->bytes_down = any(s);
    m->round = any(s);
    float *times[] = {&m->compute_s, &m->compress_s, &m->send_s, &m->wait_s, &m->apply_s};
    for (size_t i = 0; i < 5; i++) *times[i] = (float)real(s);
    m->n_steps = count(s, 1, WIRE_METRICS_MAX);
    for (uint32_t i = 0; i < m->n_steps; i++) {
        struct metrics_step *step = &m->steps[i];
        step->round = any(s);
        step->step = (uint32_t)any(s);
        step->position = real(s);
        step->loss = (float)real(s);
        step->lr = (float)real(s);
        step->grad_norm = (float)real(s);
        step->tokens = any(s);
        step->step_us = (uint32_t)any(s);
        step->age_us = any(s);
    }
}

static void fill_small(struct source *s, struct msg *m)
{
    switch (m->type) {
    case MSG_HELLO:
        raw(s, m->hello.uuid, WIRE_UUID);
        raw(s, m->hello.run_id, WIRE_UUID);
        LINE(m->hello.name);
        LINE(m->hello.software);
        break;
    case MSG_CONFIG:
        raw(s, m->config.run_id, WIRE_UUID);
        m->config.config_hash = any(s);
        text(s, long_text, WIRE_CONFIG_MAX, true);
        m->config.text = long_text;
        break;
    case MSG_REFUSE:
        m->refuse.code = (uint16_t)(1 + up_to(s, REFUSE_MALFORMED - 1)); /* golden/protocol_v2 holds this range */
        LINE(m->refuse.text);
        break;
    case MSG_BIND: m->bind.session = any(s); break;
    case MSG_HEARTBEAT_ACK:
        m->heartbeat_ack.sent_us = any(s);
        LINE(m->heartbeat_ack.waiting_for);
        break;
    case MSG_CREDIT:
        m->credit.round = any(s);
        m->credit.fragment = (uint32_t)up_to(s, LAYOUT_FRAGMENTS_MAX - 1);
        m->credit.have = any(s);
        m->credit.upto = any(s);
        break;
    case MSG_REJECT:
        m->reject.round = any(s);
        m->reject.fragment = (uint32_t)up_to(s, LAYOUT_FRAGMENTS_MAX - 1);
        m->reject.code = (uint16_t)(REJECT_LATE + up_to(s, REJECT_LAST - REJECT_LATE));
        LINE(m->reject.text);
        break;
    case MSG_GET:
        m->get.session = any(s);
        m->get.kind = (uint8_t)(OBJECT_UPDATE + up_to(s, OBJECT_SNAPSHOT - OBJECT_UPDATE));
        m->get.fragment = (uint32_t)up_to(s, LAYOUT_FRAGMENTS_MAX - 1);
        m->get.version = any(s);
        m->get.offset = any(s) >> 1;
        m->get.length = 1 + (any(s) >> 2);
        break;
    case MSG_LEAVE:
        m->leave.session = any(s);
        m->leave.finished = any(s) & 1;
        LINE(m->leave.text);
        break;
    case MSG_ENROL:
        raw(s, m->enrol.key, WIRE_KEY);
        LINE(m->enrol.name);
        break;
    case MSG_NOTE: LINE(m->note.text); break;
    case MSG_ENROLLED: raw(s, m->enrolled.key, WIRE_KEY); break;
    case MSG_UPLOAD:
        m->upload.upload = any(s);
        m->upload.have = any(s);
        m->upload.upto = any(s);
        LINE(m->upload.text);
        break;
    default: break;
    }
}

static void fill_other(struct source *s, struct msg *m)
{
    switch (m->type) {
    case MSG_JOIN: fill_join(s, &m->join); break;
    case MSG_WELCOME:
        m->welcome.session = any(s);
        m->welcome.worker_id = (uint32_t)any(s);
        m->welcome.heartbeat_ms = 1 + (uint32_t)up_to(s, UINT32_MAX - 1);
        m->welcome.resume = any(s) & 1;
        m->welcome.shorter = any(s) & 1;
        m->welcome.assigned = any(s);
        m->welcome.n_fragments = count(s, 1, LAYOUT_FRAGMENTS_MAX);
        versions(s, m->welcome.current, m->welcome.n_fragments);
        versions(s, m->welcome.snapshot, m->welcome.n_fragments);
        break;
    case MSG_HEARTBEAT: fill_heartbeat(s, &m->heartbeat); break;
    case MSG_ASSIGN: fill_assign(s, &m->assign); break;
    case MSG_EVAL:
        m->eval.eval_id = 1 + (any(s) >> 1);
        m->eval.start = any(s) >> 1;
        m->eval.count = any(s) >> 1;
        m->eval.count += !m->eval.count;
        m->eval.part = 1 + m->eval.count / (1 + any(s) % WIRE_PARTS_MAX);
        m->eval.wanted = 1 + (any(s) & msg_eval_all(msg_eval_parts(m->eval.count, m->eval.part) - 1));
        m->eval.n_fragments = count(s, 1, LAYOUT_FRAGMENTS_MAX);
        numbers(s, m->eval.versions, m->eval.n_fragments);
        break;
    case MSG_EVAL_RESULT:
        m->eval_result.session = any(s);
        m->eval_result.eval_id = 1 + (any(s) >> 1);
        m->eval_result.start = any(s) >> 1;
        m->eval_result.count = any(s) >> 1;
        m->eval_result.loss_sum = real(s);
        m->eval_result.tokens = any(s);
        m->eval_result.n_parts = count(s, 0, WIRE_PARTS_MAX);
        for (uint32_t i = 0; i < m->eval_result.n_parts; i++)
            m->eval_result.parts[i] = (struct wire_part){real(s), any(s)};
        break;
    case MSG_OFFER: fill_offer(s, &m->offer); break;
    case MSG_CHUNK: fill_chunk(s, &m->chunk); break;
    case MSG_METRICS: fill_metrics(s, &m->metrics); break;
    case MSG_DONE:
        m->done.n_fragments = count(s, 1, LAYOUT_FRAGMENTS_MAX);
        versions(s, m->done.final, m->done.n_fragments);
        LINE(m->done.text);
        break;
    case MSG_STATUS_REPLY:
        text(s, long_text, WIRE_STATUS_MAX, true);
        m->status_reply.json = long_text;
        break;
    case MSG_PROBE:
        m->probe.id = any(s);
        m->probe.want = (uint32_t)up_to(s, WIRE_PROBE_MAX);
        m->probe.data = filling(s, &m->probe.size);
        break;
    case MSG_PROBE_REPLY:
        m->probe_reply.id = any(s);
        m->probe_reply.wait_s = (uint32_t)any(s);
        m->probe_reply.data = filling(s, &m->probe_reply.size);
        break;
    default: break;
    }
}

void msg_sample(struct msg *m, enum msg_type type, uint64_t seed, uint32_t most)
{
    struct source s = {.seed = hash_mix(seed, (uint64_t)type), .most = most};
    memset(m, 0, sizeof *m);
    m->type = type;
    fill_small(&s, m);
    fill_other(&s, m);
}

static bool same_text(const char **a, const char **b)
{
    bool same = !strcmp(*a, *b);
    *a = *b = NULL;
    return same;
}

static bool same_data(const uint8_t **a, const uint8_t **b, size_t na, size_t nb)
{
    bool same = na == nb && !memcmp(*a, *b, na);
    *a = *b = NULL;
    return same;
}

bool msg_sample_equal(const struct msg *a, const struct msg *b)
{
    static struct msg x, y;
    x = *a;
    y = *b;
    bool same = true;
    if (a->type != b->type) return false;
    if (a->type == MSG_CONFIG) same = same_text(&x.config.text, &y.config.text);
    if (a->type == MSG_STATUS_REPLY) same = same_text(&x.status_reply.json, &y.status_reply.json);
    if (a->type == MSG_CHUNK) same = same_data(&x.chunk.data, &y.chunk.data, x.chunk.size, y.chunk.size);
    if (a->type == MSG_PROBE) same = same_data(&x.probe.data, &y.probe.data, x.probe.size, y.probe.size);
    if (a->type == MSG_PROBE_REPLY)
        same = same_data(&x.probe_reply.data, &y.probe_reply.data, x.probe_reply.size, y.probe_reply.size);
    if (a->type == MSG_JOIN)
        same = same_data(&x.join.layout, &y.join.layout, x.join.layout_size, y.join.layout_size) &&
               same_data(&x.join.frozen, &y.join.frozen, x.join.frozen_size, y.join.frozen_size) &&
               same_text(&x.join.model_config, &y.join.model_config);
    return same && !memcmp(&x, &y, sizeof x);
}
