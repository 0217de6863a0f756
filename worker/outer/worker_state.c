#include "worker/outer/worker_state.h"

#include <math.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/hash.h"

#define MAGIC 0x5453574c4c4f5441u /* "ATOLLWST" */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the body holds floats in memory order");

enum { FORMAT = 1, CRC_AT = 16, FIXED_BYTES = 134 + 43 + 16 * WIRE_RANGES_MAX, FRAGMENT_BYTES = 57 };

static size_t head_bytes(uint32_t n_fragments)
{
    return (FIXED_BYTES + (size_t)n_fragments * FRAGMENT_BYTES + 63) & ~(size_t)63;
}

static void put_task(struct writer *w, const struct saved_state *s)
{
    const struct msg_assign *t = &s->task;
    put_u8(w, s->has_live);
    put_u8(w, s->has_base);
    put_u8(w, s->in_round);
    put_u32(w, s->step);
    put_u64(w, t->round);
    put_u32(w, t->worker_id);
    put_u32(w, t->steps);
    put_f64(w, t->step0);
    put_f64(w, t->step_rate);
    put_u32(w, t->n_ranges);
    for (uint32_t i = 0; i < WIRE_RANGES_MAX; i++) {
        put_u64(w, t->ranges[i].start);
        put_u64(w, t->ranges[i].count);
    }
}

static void get_task(struct saved_state *s, struct reader *r)
{
    struct msg_assign *t = &s->task;
    s->has_live = get_u8(r);
    s->has_base = get_u8(r);
    s->in_round = get_u8(r);
    s->step = get_u32(r);
    t->round = get_u64(r);
    t->worker_id = get_u32(r);
    t->steps = get_u32(r);
    t->step0 = get_f64(r);
    t->step_rate = get_f64(r);
    t->lr = t->epoch = NAN; /* for programs only; not saved */
    t->n_ranges = get_u32(r);
    for (uint32_t i = 0; i < WIRE_RANGES_MAX; i++) {
        t->ranges[i].start = get_u64(r);
        t->ranges[i].count = get_u64(r);
    }
    t->n_fragments = s->n_fragments;
    bool steps = t->steps && s->step <= t->steps && t->n_ranges && t->n_ranges <= WIRE_RANGES_MAX;
    if (s->in_round && !steps) reader_fail(r);
}

static uint32_t head_crc(const uint8_t *head, size_t size)
{
    static const uint8_t zeros[4];
    uint32_t crc = crc32c(0, head, CRC_AT);
    crc = crc32c(crc, zeros, sizeof zeros);
    return crc32c(crc, head + CRC_AT + 4, size - CRC_AT - 4);
}

size_t saved_state_head(const struct saved_state *s, uint64_t body_size, uint32_t body_crc, uint8_t *dst)
{
    size_t size = head_bytes(s->n_fragments);
    memset(dst, 0, size);
    struct writer w = writer_of(dst, size);
    put_u64(&w, MAGIC);
    put_u32(&w, FORMAT);
    put_u32(&w, (uint32_t)size);
    put_u32(&w, 0);
    put_u32(&w, body_crc);
    put_u64(&w, body_size);
    put_bytes(&w, s->uuid, WIRE_UUID);
    put_bytes(&w, s->run_id, WIRE_UUID);
    put_u64(&w, s->layout_hash);
    put_u64(&w, s->n_params);
    put_u64(&w, s->inner_size);
    put_u64(&w, s->round);
    put_u64(&w, s->tokens);
    put_f64(&w, s->loss_sum);
    put_u64(&w, s->compute_us);
    put_u32(&w, s->steps);
    put_u32(&w, s->worker_id);
    put_u32(&w, s->n_fragments);
    put_u8(&w, s->form);
    put_u8(&w, s->has_residual);
    put_task(&w, s);
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        const struct saved_fragment *f = &s->f[i];
        put_u64(&w, f->version);
        put_u64(&w, f->hash);
        put_u64(&w, f->base_version);
        put_u64(&w, f->payload_size);
        put_u32(&w, f->payload_crc);
        put_f32(&w, f->norm);
        put_u64(&w, f->count);
        put_u64(&w, s->task.versions[i]);
        put_u8(&w, f->moved);
    }
    w = writer_of(dst + CRC_AT, 4);
    put_u32(&w, head_crc(dst, size));
    return size;
}

static void read_head(struct saved_state *s, struct reader *r)
{
    const uint8_t *uuid = get_bytes(r, WIRE_UUID), *run_id = get_bytes(r, WIRE_UUID);
    if (uuid) memcpy(s->uuid, uuid, WIRE_UUID);
    if (run_id) memcpy(s->run_id, run_id, WIRE_UUID);
    s->layout_hash = get_u64(r);
    s->n_params = get_u64(r);
    s->inner_size = get_u64(r);
    s->round = get_u64(r);
    s->tokens = get_u64(r);
    s->loss_sum = get_f64(r);
    s->compute_us = get_u64(r);
    s->steps = get_u32(r);
    s->worker_id = get_u32(r);
    s->n_fragments = get_u32(r);
    s->form = get_u8(r);
    s->has_residual = get_u8(r);
    get_task(s, r);
    if (s->n_fragments < 1 || s->n_fragments > LAYOUT_FRAGMENTS_MAX) {
        reader_fail(r);
        return;
    }
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        struct saved_fragment *f = &s->f[i];
        f->version = get_u64(r);
        f->hash = get_u64(r);
        f->base_version = get_u64(r);
        f->payload_size = get_u64(r);
        f->payload_crc = get_u32(r);
        f->norm = get_f32(r);
        f->count = get_u64(r);
        s->task.versions[i] = get_u64(r);
        f->moved = get_u8(r);
    }
}

/* Decodes the head; checks its CRC and the file's length. *body_crc is the expected CRC of the body. */
static enum status decode_head(struct saved_state *s, const uint8_t *data, size_t size, size_t *head_size,
                               uint32_t *body_crc, struct err *err)
{
    struct reader r = reader_of(data, size);
    memset(s, 0, sizeof *s);
    if (get_u64(&r) != MAGIC) return err_set(err, STATUS_CORRUPT, "not a worker state file");
    uint32_t format = get_u32(&r);
    if (format != FORMAT)
        return err_set(err, STATUS_UNSUPPORTED, "format version %u, this program reads version %d", format, FORMAT);
    *head_size = get_u32(&r);
    uint32_t crc = get_u32(&r);
    *body_crc = get_u32(&r);
    uint64_t body_size = get_u64(&r);
    if (r.bad || *head_size > size || *head_size < FIXED_BYTES || body_size != size - *head_size)
        return err_set(err, STATUS_CORRUPT, "truncated file");
    if (crc != head_crc(data, *head_size)) return err_set(err, STATUS_CORRUPT, "head does not match its checksum");
    read_head(s, &r);
    if (r.bad || *head_size != head_bytes(s->n_fragments)) return err_set(err, STATUS_CORRUPT, "malformed head");
    return STATUS_OK;
}

enum status saved_state_peek(struct saved_state *s, const uint8_t *data, size_t size, struct err *err)
{
    size_t head_size;
    uint32_t body_crc;
    return decode_head(s, data, size, &head_size, &body_crc, err);
}

enum status saved_state_decode(struct saved_state *s, const uint8_t *data, size_t size, struct err *err)
{
    size_t head_size;
    uint32_t body_crc;
    TRY(decode_head(s, data, size, &head_size, &body_crc, err));
    struct reader r = reader_of(data + head_size, size - head_size);
    uint64_t count = 0;
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        if (s->f[i].count > s->n_params - count) return err_set(err, STATUS_CORRUPT, "fragments do not add up");
        count += s->f[i].count;
    }
    if (count != s->n_params || s->n_params > SIZE_MAX / 16)
        return err_set(err, STATUS_CORRUPT, "fragments do not add up");
    s->theta = (const float *)(const void *)get_bytes(&r, s->n_params * 4);
    if (s->has_live) s->live = (const float *)(const void *)get_bytes(&r, s->n_params * 4);
    if (s->has_base) s->base = (const float *)(const void *)get_bytes(&r, s->n_params * 4);
    if (s->has_residual) s->residual = (const float *)(const void *)get_bytes(&r, s->n_params * 4);
    s->inner = get_bytes(&r, s->inner_size);
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        if (s->f[i].payload_size == 0) continue;
        s->payload[i] = get_bytes(&r, s->f[i].payload_size);
    }
    if (!reader_done(&r)) return err_set(err, STATUS_CORRUPT, "sizes of the parts do not add up");
    if (body_crc != crc32c(0, data + head_size, size - head_size))
        return err_set(err, STATUS_CORRUPT, "body does not match its checksum");
    return STATUS_OK;
}
