#include "worker/outer/worker_state.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/format/field_rows.h"
#include "wire/msg_table.h"

#define MAGIC 0x5453574c4c4f5441u /* "ATOLLWST" */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the body holds floats in memory order");

/* A state without files of ranks is written in format 1. */
enum { FORMAT_FILES = 2, CRC_AT = 16 };

/* What precedes the state. */
struct prefix {
    uint64_t magic;
    uint32_t format, head_size, crc, body_crc;
    uint64_t body_size;
};

static const struct field prefix_fields[] = {
    U64(prefix, magic),
    U32(prefix, format),
    U32(prefix, head_size),
    U32(prefix, crc),
    U32(prefix, body_crc),
    U64(prefix, body_size),
    END,
};
/* lr and epoch are for programs only. Empty ranges follow the last one. */
static const struct field task_fields[] = {
    U64(msg_assign, round),
    U32(msg_assign, worker_id),
    WORK_STEPS(msg_assign, 0),
    COUNT(msg_assign, n_ranges, 0, WIRE_RANGES_MAX),
    ARRAY(msg_assign, ranges, wire_range_fields, WIRE_RANGES_MAX),
    END,
};
static const struct field fragment_fields[] = {
    U64(saved_fragment, version),      U64(saved_fragment, hash),
    U64(saved_fragment, base_version), U64(saved_fragment, payload_size),
    U32(saved_fragment, payload_crc),  F32_ANY(saved_fragment, norm),
    U64(saved_fragment, count),        U64(saved_fragment, assigned),
    BOOL(saved_fragment, moved),       END,
};
static const struct field state_fields[] = {
    BYTES(saved_state, uuid),
    BYTES(saved_state, run_id),
    U64(saved_state, layout_hash),
    U64(saved_state, n_params),
    U64(saved_state, inner_size),
    U64(saved_state, round),
    U64(saved_state, tokens),
    F64_ANY(saved_state, loss_sum),
    U64(saved_state, compute_us),
    U32(saved_state, steps),
    U32(saved_state, worker_id),
    COUNT(saved_state, n_fragments, 1, LAYOUT_FRAGMENTS_MAX),
    U8(saved_state, form, 0, UINT8_MAX),
    U8(saved_state, has_residual, SAVED_RESIDUAL_NONE, SAVED_RESIDUAL_DECAYED),
    BOOL(saved_state, has_live),
    BOOL(saved_state, has_base),
    BOOL(saved_state, in_round),
    U32(saved_state, step),
    STRUCT(saved_state, task, task_fields),
    LIST(saved_state, f, n_fragments, fragment_fields, LAYOUT_FRAGMENTS_MAX),
    END,
};
static const struct field files_fields[] = {
    U64(saved_state, tag),
    COUNT(saved_state, n_ranks, 1, SAVED_RANKS_MAX),
    END,
};
const struct field_part saved_state_parts[] = {
    {"prefix", prefix_fields}, {"state", state_fields}, {"format 2: files of ranks", files_fields}, {0}};

static uint32_t head_crc(const uint8_t *head, size_t size)
{
    static const uint8_t zeros[4];
    uint32_t crc = crc32c(0, head, CRC_AT);
    crc = crc32c(crc, zeros, sizeof zeros);
    return crc32c(crc, head + CRC_AT + 4, size - CRC_AT - 4);
}

/* The floats of the body are aligned in a mapped file. */
static size_t padded(size_t size)
{
    return (size + 63) & ~(size_t)63;
}

size_t saved_state_head(const struct saved_state *s, uint64_t body_size, uint32_t body_crc, uint8_t *dst)
{
    struct prefix prefix = {MAGIC, s->n_ranks ? FORMAT_FILES : 1, 0, 0, body_crc, body_size};
    size_t fixed = fields_size(prefix_fields, &prefix);
    size_t size = padded(fixed + fields_size(state_fields, s) + (s->n_ranks ? fields_size(files_fields, s) : 0));
    struct writer w = writer_of(dst, SAVED_HEAD_MAX);
    assert(size <= SAVED_HEAD_MAX);
    prefix.head_size = (uint32_t)size;
    memset(dst, 0, size);
    fields_put(prefix_fields, &prefix, &w);
    fields_put(state_fields, s, &w);
    if (s->n_ranks) fields_put(files_fields, s, &w);
    prefix.crc = head_crc(dst, size);
    w.pos = 0;
    fields_put(prefix_fields, &prefix, &w);
    assert(!w.bad && w.pos == fixed);
    return size;
}

static void read_head(struct saved_state *s, uint32_t format, struct reader *r)
{
    struct msg_assign *t = &s->task;
    fields_read(state_fields, s, r);
    if (format == FORMAT_FILES) fields_read(files_fields, s, r);
    t->lr = t->epoch = NAN;
    t->n_fragments = s->n_fragments;
    for (uint32_t i = 0; !r->bad && i < s->n_fragments; i++) t->versions[i] = s->f[i].assigned;
    if (s->in_round && !(t->steps && s->step <= t->steps && t->n_ranges)) reader_fail(r);
}

/* Decodes the head of a file of `size` bytes, whose first `have` are in data; checks its CRC and the file's length. */
static enum status decode_head(struct saved_state *s, const uint8_t *data, size_t have, uint64_t size, struct prefix *p,
                               struct err *err)
{
    struct reader r = reader_of(data, have);
    memset(s, 0, sizeof *s);
    fields_get(prefix_fields, p, &r);
    if (p->magic != MAGIC) return err_set(err, STATUS_CORRUPT, "not a worker state file");
    if (p->format != 1 && p->format != FORMAT_FILES)
        return err_set(err, STATUS_UNSUPPORTED, "format version %u, this program reads version %d", p->format,
                       FORMAT_FILES);
    if (r.bad || p->head_size > have || p->head_size < r.pos || p->body_size != size - p->head_size)
        return err_set(err, STATUS_CORRUPT, "truncated file");
    if (p->crc != head_crc(data, p->head_size)) return err_set(err, STATUS_CORRUPT, "head does not match its checksum");
    read_head(s, p->format, &r);
    if (r.bad || p->head_size != padded(r.pos)) return err_set(err, STATUS_CORRUPT, "malformed head");
    return STATUS_OK;
}

enum status saved_state_peek(struct saved_state *s, const uint8_t *data, size_t size, struct err *err)
{
    struct prefix prefix;
    return decode_head(s, data, size, size, &prefix, err);
}

enum status saved_state_peek_head(struct saved_state *s, const uint8_t *data, size_t have, uint64_t size,
                                  struct err *err)
{
    struct prefix prefix;
    return decode_head(s, data, have, size, &prefix, err);
}

enum status saved_state_decode(struct saved_state *s, const uint8_t *data, size_t size, struct err *err)
{
    struct prefix prefix;
    TRY(decode_head(s, data, size, size, &prefix, err));
    const uint8_t *body = data + prefix.head_size;
    struct reader r = reader_of(body, prefix.body_size);
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
    if (prefix.body_crc != crc32c(0, body, prefix.body_size))
        return err_set(err, STATUS_CORRUPT, "body does not match its checksum");
    return STATUS_OK;
}
