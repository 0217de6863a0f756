#include "wire/msg.h"

#include "common/base/hash.h"
#include "wire/frame.h"
#include "wire/msg_table.h"

#include <assert.h>

/* Every body starts at the address of the union. */
static const void *body_of(const struct msg *m)
{
    return &m->hello;
}

const char *msg_name(enum msg_type type)
{
    switch (type) {
#define MSG_CASE(name, number, lane, direction)                                                                        \
    case MSG_##name: return #name;
        MSG_MAP(MSG_CASE)
#undef MSG_CASE
    }
    return "?";
}

enum wire_lane msg_lane(enum msg_type type)
{
    switch (type) {
#define MSG_CASE(name, number, lane, direction)                                                                        \
    case MSG_##name: return WIRE_##lane;
        MSG_MAP(MSG_CASE)
#undef MSG_CASE
    }
    return WIRE_CONTROL;
}

/* The reason why the body is invalid and in *field_p the name of the field (or "body"); NULL when it is valid. */
static const char *body_fault(const struct msg_spec *spec, const void *body, const char **field_p)
{
    const struct field *field = fields_check(spec->fields, body);
    *field_p = field ? field->name : "body";
    if (field) return "value not allowed";
    return spec->check ? spec->check(body) : NULL;
}

/* The data of a CHUNK are the last bytes of its frame. Their checksum follows from the frame's, without another pass.
 */
static bool is_intact(const struct msg *m, const uint8_t *frame, size_t body, uint32_t crc)
{
    return m->type != MSG_CHUNK || frame_tail_crc(frame, body, m->chunk.size, crc) == m->chunk.crc;
}

size_t msg_encoded_size(const struct msg *m)
{
    const struct msg_spec *spec = msg_spec_of(m->type);
    if (!spec || fields_check(spec->fields, body_of(m))) return 0;
    return WIRE_HEADER + fields_size(spec->fields, body_of(m));
}

enum status msg_encode(const struct msg *m, uint8_t *dst, size_t cap, size_t *size_p)
{
    const struct msg_spec *spec = msg_spec_of(m->type);
    const char *field;
    if (!spec || body_fault(spec, body_of(m), &field)) return STATUS_INVALID;
    size_t body = fields_size(spec->fields, body_of(m));
    if (body > WIRE_BODY_MAX) return STATUS_INVALID;
    if (cap < WIRE_HEADER || cap - WIRE_HEADER < body) return STATUS_LIMIT;
    struct writer w = writer_of(dst + WIRE_HEADER, body);
    fields_put(spec->fields, body_of(m), &w);
    assert(!w.bad && w.pos == body);
    uint32_t crc = frame_seal(dst, WIRE_VERSION, (uint8_t)m->type, body);
    if (!is_intact(m, dst, body, crc)) return STATUS_INVALID;
    *size_p = WIRE_HEADER + body;
    return STATUS_OK;
}

enum status msg_encode_chunk(struct msg_chunk *m, uint8_t *dst, size_t *size_p)
{
    const struct msg_spec *spec = msg_spec_of(MSG_CHUNK);
    const char *field;
    m->data = dst + MSG_CHUNK_HEAD;
    m->crc = crc32c(0, m->data, m->size);
    if (body_fault(spec, m, &field)) return STATUS_INVALID;
    size_t body = MSG_CHUNK_HEAD - WIRE_HEADER + m->size;
    struct writer w = writer_of(dst + WIRE_HEADER, body);
    fields_put(spec->fields, m, &w);
    assert(!w.bad && w.pos == body);
    frame_seal_tail(dst, WIRE_VERSION, MSG_CHUNK, body, m->size, m->crc);
    *size_p = WIRE_HEADER + body;
    return STATUS_OK;
}

enum status msg_decode(struct msg *m, const uint8_t *src, size_t size, struct err *err)
{
    struct frame frame;
    TRY(frame_open(&frame, src, size, err));
    /* REFUSE has the same body in every version: the other side reports with it that versions differ. */
    if (frame.version != WIRE_VERSION && frame.type != MSG_REFUSE)
        return err_set(err, STATUS_UNSUPPORTED,
                       "the other side uses protocol version %u, this program %d: use the same release on both sides",
                       frame.version, WIRE_VERSION);
    const struct msg_spec *spec = msg_spec_of(frame.type);
    if (!spec) return err_set(err, STATUS_CORRUPT, "message type %u is unknown", frame.type);
    assert(frame.size <= WIRE_BODY_MAX);
    m->type = (enum msg_type)frame.type;
    struct reader r = reader_of(frame.body, frame.size);
    fields_get(spec->fields, &m->hello, &r);
    if (!reader_done(&r))
        return err_set(err, STATUS_CORRUPT, "%s of %zu bytes: fields do not fit the body", msg_name(m->type),
                       frame.size);
    const char *field, *fault = body_fault(spec, body_of(m), &field);
    if (!fault && !is_intact(m, src, frame.size, frame.crc)) fault = "checksum of the data is wrong";
    if (fault) return err_set(err, STATUS_CORRUPT, "%s: %s: %s", msg_name(m->type), field, fault);
    return STATUS_OK;
}
