#include "wire/frame.h"

#include "common/base/bytes.h"
#include "common/base/hash.h"
#include "wire/msg.h"

#include <assert.h>

enum { CRC_AT = 12 };

/* Of the header without its checksum and the first `body` bytes. */
static uint32_t frame_crc(const uint8_t *frame, size_t body)
{
    return crc32c(crc32c(0, frame, CRC_AT), frame + WIRE_HEADER, body);
}

uint32_t frame_seal(uint8_t *dst, uint8_t version, uint8_t type, size_t size)
{
    return frame_seal_tail(dst, version, type, size, 0, 0);
}

uint32_t frame_tail_crc(const uint8_t *frame, size_t size, size_t tail, uint32_t crc)
{
    assert(tail <= size);
    return crc32c_join(frame_crc(frame, size - tail), crc, tail);
}

uint32_t frame_seal_tail(uint8_t *dst, uint8_t version, uint8_t type, size_t size, size_t tail, uint32_t crc)
{
    assert(size <= WIRE_BODY_MAX && tail <= size);
    struct writer w = writer_of(dst, WIRE_HEADER);
    put_u32(&w, FRAME_MAGIC);
    put_u8(&w, version);
    put_u8(&w, type);
    put_u16(&w, 0);
    put_u32(&w, (uint32_t)size);
    assert(w.pos == CRC_AT);
    crc = crc32c_join(frame_crc(dst, size - tail), crc, tail);
    put_u32(&w, crc);
    assert(!w.bad && w.pos == WIRE_HEADER);
    return crc;
}

enum status frame_open(struct frame *f, const uint8_t *src, size_t size, struct err *err)
{
    struct reader r = reader_of(src, size);
    uint32_t magic = get_u32(&r);
    uint8_t version = get_u8(&r), type = get_u8(&r);
    uint16_t zero = get_u16(&r);
    uint32_t body = get_u32(&r), crc = get_u32(&r);
    if (r.bad) return err_set(err, STATUS_CORRUPT, "message of %zu bytes: shorter than its header", size);
    if (magic != FRAME_MAGIC)
        return err_set(err, STATUS_CORRUPT, "message with magic %08x: not Atoll's protocol", magic);
    if (zero) return err_set(err, STATUS_CORRUPT, "message header: reserved bytes are not zero");
    if (body > WIRE_BODY_MAX)
        return err_set(err, STATUS_CORRUPT, "message body of %u bytes: the limit is %d", body, WIRE_BODY_MAX);
    if (body != reader_left(&r))
        return err_set(err, STATUS_CORRUPT, "message header announces a body of %u bytes, received %zu", body,
                       reader_left(&r));
    if (crc != frame_crc(src, body)) /* the one pass over the bytes of a message */
        return err_set(err, STATUS_CORRUPT, "message checksum is wrong");
    assert(r.pos == WIRE_HEADER && size == WIRE_HEADER + (size_t)body);
    *f = (struct frame){.version = version, .type = type, .body = src + WIRE_HEADER, .size = body, .crc = crc};
    return STATUS_OK;
}
