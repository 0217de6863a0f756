#include "coordinator/ledger/record.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Asserts that an encoder wrote as many bytes as its size function returned, unless the buffer was too small. */
static void check_size(const struct writer *w, size_t start, size_t size)
{
    assert(w->bad || w->pos - start == size);
}

static enum status finish(const struct reader *r)
{
    return reader_done(r) ? STATUS_OK : STATUS_CORRUPT;
}

void record_clock_encode(const struct record_clock *c, struct writer *w)
{
    const size_t start = w->pos;
    put_u64(w, c->elapsed_us);
    put_u64(w, c->bytes_up);
    put_u64(w, c->bytes_down);
    put_u64(w, c->other_up);
    put_u64(w, c->other_down);
    check_size(w, start, RECORD_CLOCK_BYTES);
}

void record_clock_decode(struct record_clock *c, struct reader *r)
{
    c->elapsed_us = get_u64(r);
    c->bytes_up = get_u64(r);
    c->bytes_down = get_u64(r);
    c->other_up = get_u64(r);
    c->other_down = get_u64(r);
}

static void get_blob(struct reader *r, const uint8_t **data, size_t *size)
{
    *size = get_u32(r);
    *data = get_bytes(r, *size);
}

static void get_id(struct reader *r, uint8_t out[WIRE_UUID])
{
    const uint8_t *bytes = get_bytes(r, WIRE_UUID);
    if (bytes) memcpy(out, bytes, WIRE_UUID);
}

size_t record_run_size(const struct record_run *m)
{
    return WIRE_UUID + 8 + 4 + m->config_size;
}

void record_run_encode(const struct record_run *m, struct writer *w)
{
    const size_t start = w->pos;
    put_bytes(w, m->run_id, WIRE_UUID);
    put_u64(w, m->config_hash);
    put_u32(w, (uint32_t)m->config_size);
    put_bytes(w, m->config_text, m->config_size);
    check_size(w, start, record_run_size(m));
}

enum status record_run_decode(struct record_run *m, const uint8_t *body, size_t size)
{
    struct reader r = reader_of(body, size);
    *m = (struct record_run){0};
    get_id(&r, m->run_id);
    m->config_hash = get_u64(&r);
    get_blob(&r, (const uint8_t **)&m->config_text, &m->config_size);
    if (m->config_size >= WIRE_CONFIG_MAX) return STATUS_CORRUPT;
    return finish(&r);
}

size_t record_model_size(const struct record_model *m)
{
    size_t frozen = m->frozen ? 1 + 4 + m->frozen_size : 0;
    return 4 * 8 + 4 + 4 + m->layout_size + 4 + m->model_config_size + 4 + 8 * (size_t)m->n_hashes + frozen;
}

void record_model_head_encode(const struct record_model *m, struct writer *w)
{
    put_u64(w, m->train_hash);
    put_u64(w, m->val_hash);
    put_u64(w, m->train_samples);
    put_u64(w, m->val_samples);
    put_u32(w, m->sample_tokens);
}

void record_model_encode(const struct record_model *m, struct writer *w)
{
    const size_t start = w->pos;
    record_model_head_encode(m, w);
    put_u32(w, (uint32_t)m->layout_size);
    put_bytes(w, m->layout, m->layout_size);
    put_u32(w, (uint32_t)m->model_config_size);
    put_bytes(w, m->model_config, m->model_config_size);
    put_u32(w, m->n_hashes);
    for (uint32_t f = 0; f < m->n_hashes; f++) put_u64(w, m->hashes[f]);
    if (m->frozen) {
        put_u8(w, m->frozen_whole);
        put_u32(w, (uint32_t)m->frozen_size);
        put_bytes(w, m->frozen, m->frozen_size);
    }
    check_size(w, start, record_model_size(m));
}

enum status record_model_decode(struct record_model *m, const uint8_t *body, size_t size)
{
    struct reader r = reader_of(body, size);
    *m = (struct record_model){0};
    m->train_hash = get_u64(&r);
    m->val_hash = get_u64(&r);
    m->train_samples = get_u64(&r);
    m->val_samples = get_u64(&r);
    m->sample_tokens = get_u32(&r);
    get_blob(&r, &m->layout, &m->layout_size);
    get_blob(&r, (const uint8_t **)&m->model_config, &m->model_config_size);
    m->n_hashes = get_u32(&r);
    if (m->n_hashes > LAYOUT_FRAGMENTS_MAX || m->model_config_size >= WIRE_CONFIG_MAX) return STATUS_CORRUPT;
    for (uint32_t f = 0; f < m->n_hashes; f++) m->hashes[f] = get_u64(&r);
    if (!r.bad && reader_left(&r)) {
        uint8_t whole = get_u8(&r);
        if (whole > 1) reader_fail(&r);
        m->frozen_whole = whole == 1;
        get_blob(&r, &m->frozen, &m->frozen_size);
    }
    return finish(&r);
}

void record_val_encode(const struct record_val *m, struct writer *w)
{
    assert(m->samples > 0);
    put_u64(w, m->hash);
    put_u64(w, m->samples);
}

enum status record_val_decode(struct record_val *m, const uint8_t *body, size_t size)
{
    struct reader r = reader_of(body, size);
    m->hash = get_u64(&r);
    m->samples = get_u64(&r);
    if (!m->samples) return STATUS_CORRUPT;
    return finish(&r);
}

void record_member_encode(const struct record_member *m, struct writer *w)
{
    assert(m->what <= RECORD_MEMBER_READMIT);
    put_u8(w, m->what);
    put_u32(w, m->id);
    put_bytes(w, m->uuid, WIRE_UUID);
    put_str(w, m->name);
}

enum status record_member_decode(struct record_member *m, const uint8_t *body, size_t size)
{
    struct reader r = reader_of(body, size);
    *m = (struct record_member){0};
    m->what = get_u8(&r);
    m->id = get_u32(&r);
    get_id(&r, m->uuid);
    get_str(&r, m->name, sizeof m->name);
    if (m->what > RECORD_MEMBER_READMIT) return STATUS_CORRUPT;
    return finish(&r);
}

size_t record_open_size(const struct round_open *open, uint32_t n_fragments)
{
    size_t size = RECORD_CLOCK_BYTES + 8 * (size_t)n_fragments + 4;
    for (uint32_t i = 0; i < open->n; i++) size += 4 + 8 + 4 + 8 + 8 + 4 + 16 * (size_t)open->grants[i].n_ranges;
    return size;
}

void record_open_encode(const struct round_open *open, uint32_t n_fragments, const struct record_clock *clock,
                        struct writer *w)
{
    const size_t start = w->pos;
    record_clock_encode(clock, w);
    for (uint32_t f = 0; f < n_fragments; f++) put_u64(w, open->versions[f]);
    put_u32(w, open->n);
    for (uint32_t i = 0; i < open->n; i++) {
        const struct round_grant *g = &open->grants[i];
        put_u32(w, g->id);
        put_u64(w, g->round);
        put_u32(w, g->steps);
        put_f64(w, g->step0);
        put_f64(w, g->step_rate);
        put_ranges(w, g->ranges, g->n_ranges);
    }
    check_size(w, start, record_open_size(open, n_fragments));
}

static void get_grant(struct round_grant *g, struct reader *r)
{
    memset(g, 0, sizeof *g);
    g->id = get_u32(r);
    g->round = get_u64(r);
    g->steps = get_u32(r);
    g->step0 = get_f64(r);
    g->step_rate = get_f64(r);
    g->n_ranges = get_ranges(r, g->ranges);
    if (!isfinite(g->step0) || !isfinite(g->step_rate)) reader_fail(r);
}

enum status record_open_decode(struct round_open *open, uint32_t cap, uint32_t n_fragments, struct record_clock *clock,
                               const uint8_t *body, size_t size)
{
    struct reader r = reader_of(body, size);
    record_clock_decode(clock, &r);
    for (uint32_t f = 0; f < n_fragments; f++) open->versions[f] = get_u64(&r);
    open->n = get_u32(&r);
    if (open->n > cap) {
        open->n = 0;
        return STATUS_CORRUPT;
    }
    for (uint32_t i = 0; i < open->n; i++) get_grant(&open->grants[i], &r);
    return finish(&r);
}

void record_delta_encode(const struct record_delta *m, struct writer *w)
{
    const size_t start = w->pos;
    const struct part *p = &m->part;
    put_u32(w, m->id);
    put_u32(w, m->fragment);
    put_u64(w, m->round);
    put_u64(w, p->base_version);
    put_u64(w, p->tokens);
    put_u64(w, p->bytes);
    put_u64(w, p->compute_us);
    put_f64(w, p->loss_sum);
    put_u32(w, p->steps);
    put_u32(w, p->crc);
    put_f32(w, p->norm);
    check_size(w, start, RECORD_DELTA_HEAD);
}

enum status record_delta_decode(struct record_delta *m, const uint8_t *body, size_t size)
{
    if (size < RECORD_DELTA_HEAD) return STATUS_CORRUPT;
    struct reader r = reader_of(body, RECORD_DELTA_HEAD);
    struct part *p = &m->part;
    *m = (struct record_delta){0};
    m->id = get_u32(&r);
    m->fragment = get_u32(&r);
    m->round = get_u64(&r);
    p->base_version = get_u64(&r);
    p->tokens = get_u64(&r);
    p->bytes = get_u64(&r);
    p->compute_us = get_u64(&r);
    p->loss_sum = get_f64(&r);
    p->steps = get_u32(&r);
    p->crc = get_u32(&r);
    p->norm = get_f32(&r);
    if (size != RECORD_DELTA_HEAD && size - RECORD_DELTA_HEAD != p->bytes) return STATUS_CORRUPT;
    return finish(&r);
}

void record_drop_encode(const struct record_drop *m, struct writer *w)
{
    put_u32(w, m->id);
    put_u32(w, m->fragment);
    put_u64(w, m->round);
    put_u16(w, m->code);
}

enum status record_drop_decode(struct record_drop *m, const uint8_t *body, size_t size)
{
    struct reader r = reader_of(body, size);
    m->id = get_u32(&r);
    m->fragment = get_u32(&r);
    m->round = get_u64(&r);
    m->code = get_u16(&r);
    return finish(&r);
}

void record_eval_encode(const struct record_eval *m, struct writer *w)
{
    assert(!isnan(m->loss_sum));
    record_clock_encode(&m->clock, w);
    put_u64(w, m->round);
    put_u8(w, (uint8_t)(m->final | m->by_one << 1));
    put_f64(w, m->loss_sum);
    put_u64(w, m->tokens);
}

enum status record_eval_decode(struct record_eval *m, const uint8_t *body, size_t size)
{
    struct reader r = reader_of(body, size);
    *m = (struct record_eval){0};
    record_clock_decode(&m->clock, &r);
    m->round = get_u64(&r);
    uint8_t flags = get_u8(&r);
    m->final = flags & 1;
    m->by_one = flags & 2;
    m->loss_sum = get_f64(&r);
    m->tokens = get_u64(&r);
    if (flags > 3 || isnan(m->loss_sum)) return STATUS_CORRUPT;
    return finish(&r);
}
