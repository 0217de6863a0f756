#include "wire/object.h"

#include <assert.h>

#include "common/base/hash.h"
#include "common/format/field_rows.h"

/* docs/protocol.md has both formats byte by byte. */
#define UPDATE_MAGIC 0x50555441u   /* bytes "ATUP" */
#define SNAPSHOT_MAGIC 0x4e535441u /* bytes "ATSN" */

enum { OBJECT_FORMAT = 1 };

const struct field update_fields[] = {
    CONST("magic", 4, UPDATE_MAGIC),
    CONST("format", 1, OBJECT_FORMAT),
    U8(update, form, 0, UPDATE_PARAMETERS),
    CONST("zero", 2, 0),
    U32_IN(update, fragment, 0, LAYOUT_FRAGMENTS_MAX - 1),
    U64_IN(update, version, 1, UINT64_MAX),
    U64(update, round),
    U64(update, theta_hash),
    F64(update, rate),
    LINE(update, codec, 1),
    COUNT(update, n_named, 0, WIRE_NAMED_MAX),
    END,
};
const struct field update_named_fields[] = {
    U32(update_named, worker_id),
    U64(update_named, round),
    U64(update_named, tokens),
    END,
};
const struct field update_payload_fields[] = {U64_IN(update, payload_size, 1, UINT64_MAX), END};
const struct field snapshot_head_fields[] = {
    CONST("magic", 4, SNAPSHOT_MAGIC),
    CONST("format", 1, OBJECT_FORMAT),
    CONST("zero", 1, 0),
    CONST("zero", 2, 0),
    U32_IN(snapshot_head, fragment, 0, LAYOUT_FRAGMENTS_MAX - 1),
    U64(snapshot_head, version),
    U64(snapshot_head, hash),
    U64_IN(snapshot_head, count, 1, (uint64_t)1 << 40),
    END,
};

static bool update_valid(const struct update *u)
{
    return !fields_check(update_fields, u) && !fields_check(update_payload_fields, u);
}

static void put_head(const struct update *u, struct writer *w)
{
    fields_put(update_fields, u, w);
    fields_put_all(update_named_fields, u->named, sizeof *u->named, u->n_named, w);
    fields_put(update_payload_fields, u, w);
}

size_t update_encoded_size(const struct update *u)
{
    size_t named = u->n_named * fields_size(update_named_fields, &(struct update_named){0});
    size_t head = fields_size(update_fields, u) + named + fields_size(update_payload_fields, u);
    return head + u->payload_size + sizeof(uint32_t);
}

enum status update_encode(const struct update *u, uint8_t *dst, size_t cap, size_t *size_p)
{
    if (!update_valid(u)) return STATUS_INVALID;
    size_t size = update_encoded_size(u);
    if (size > cap) return STATUS_LIMIT;
    struct writer w = writer_of(dst, size);
    put_head(u, &w);
    put_bytes(&w, u->payload, u->payload_size);
    put_u32(&w, crc32c(0, dst, w.pos));
    assert(!w.bad && w.pos == size);
    *size_p = size;
    return STATUS_OK;
}

uint32_t update_crc(const uint8_t *object, size_t size)
{
    assert(size > sizeof(uint32_t));
    const uint8_t *last = object + size - sizeof(uint32_t);
    struct reader r = reader_of(last, sizeof(uint32_t));
    return crc32c(get_u32(&r), last, sizeof(uint32_t));
}

/* The last four bytes are the checksum of all others. Checking it first keeps damaged bytes from the parser. */
static bool crc_matches(const uint8_t *src, size_t size)
{
    if (size < sizeof(uint32_t)) return false;
    struct reader r = reader_of(src + size - sizeof(uint32_t), sizeof(uint32_t));
    return get_u32(&r) == crc32c(0, src, size - sizeof(uint32_t));
}

/* Decodes everything before the payload. AGAIN: the bytes end before the payload begins. */
static enum status decode_head(struct update *u, struct update_named *named, size_t named_cap, struct reader *r)
{
    fields_read(update_fields, u, r);
    if (!r->bad && u->n_named > named_cap) return STATUS_LIMIT;
    fields_read_all(update_named_fields, named, sizeof *named, r->bad ? 0 : u->n_named, r);
    u->named = named;
    fields_read(update_payload_fields, u, r);
    if (r->ended) return STATUS_AGAIN;
    return r->bad ? STATUS_CORRUPT : STATUS_OK;
}

enum status update_decode(struct update *u, struct update_named *named, size_t named_cap, const uint8_t *src,
                          size_t size)
{
    if (!crc_matches(src, size)) return STATUS_CORRUPT;
    struct reader r = reader_of(src, size - sizeof(uint32_t));
    enum status status = decode_head(u, named, named_cap, &r);
    if (status != STATUS_OK) return status == STATUS_AGAIN ? STATUS_CORRUPT : status;
    u->payload = get_bytes(&r, u->payload_size);
    if (!reader_done(&r)) return STATUS_CORRUPT;
    assert(update_encoded_size(u) == size && u->payload + u->payload_size + sizeof(uint32_t) == src + size);
    return STATUS_OK;
}

enum status update_peek(struct update *u, struct update_named *named, size_t named_cap, const uint8_t *src, size_t size,
                        size_t *payload_at)
{
    struct reader r = reader_of(src, size);
    TRY(decode_head(u, named, named_cap, &r));
    u->payload = NULL;
    *payload_at = r.pos;
    return STATUS_OK;
}

void snapshot_head_encode(const struct snapshot_head *h, uint8_t dst[SNAPSHOT_HEAD_BYTES])
{
    struct writer w = writer_of(dst, SNAPSHOT_HEAD_BYTES);
    fields_put(snapshot_head_fields, h, &w);
    put_u32(&w, crc32c(0, dst, w.pos));
    assert(!w.bad && w.pos == SNAPSHOT_HEAD_BYTES);
}

enum status snapshot_head_decode(struct snapshot_head *h, const uint8_t *src, size_t size)
{
    if (size < SNAPSHOT_HEAD_BYTES || !crc_matches(src, SNAPSHOT_HEAD_BYTES)) return STATUS_CORRUPT;
    return fields_decode(snapshot_head_fields, h, src, SNAPSHOT_HEAD_BYTES - sizeof(uint32_t));
}
