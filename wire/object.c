#include "wire/object.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/hash.h"
#include "common/base/text.h"

/* Update: magic, object format, form, 0, fields, payload, crc32c of everything before the checksum. docs/protocol.md
 * has both formats byte by byte. */
#define UPDATE_MAGIC 0x50555441u   /* bytes "ATUP" */
#define SNAPSHOT_MAGIC 0x4e535441u /* bytes "ATSN" */

enum {
    OBJECT_FORMAT = 1,
    UPDATE_FIXED = 8 + 4 + 4 * 8 + 2 + 4 + 8 + 4, /* without codec name, named deltas and payload */
    UPDATE_NAMED = 20,
};

static size_t codec_length(const struct update *u)
{
    return strnlen(u->codec, sizeof u->codec);
}

static bool update_valid(const struct update *u)
{
    size_t n = codec_length(u);
    return u->fragment < LAYOUT_FRAGMENTS_MAX && u->version && u->form <= UPDATE_PARAMETERS && n &&
           n < sizeof u->codec && isfinite(u->rate) && text_is_clean(u->codec, n, false) &&
           u->n_named <= WIRE_NAMED_MAX && u->payload_size;
}

size_t update_encoded_size(const struct update *u)
{
    return UPDATE_FIXED + codec_length(u) + (size_t)UPDATE_NAMED * u->n_named + u->payload_size;
}

enum status update_encode(const struct update *u, uint8_t *dst, size_t cap, size_t *size_p)
{
    if (!update_valid(u)) return STATUS_INVALID;
    size_t size = update_encoded_size(u);
    if (size > cap) return STATUS_LIMIT;
    struct writer w = writer_of(dst, size);
    put_u32(&w, UPDATE_MAGIC);
    put_u8(&w, OBJECT_FORMAT);
    put_u8(&w, u->form);
    put_u16(&w, 0);
    put_u32(&w, u->fragment);
    put_u64(&w, u->version);
    put_u64(&w, u->round);
    put_u64(&w, u->theta_hash);
    put_f64(&w, u->rate);
    put_str(&w, u->codec);
    put_u32(&w, u->n_named);
    for (uint32_t i = 0; i < u->n_named; i++) {
        put_u32(&w, u->named[i].worker_id);
        put_u64(&w, u->named[i].round);
        put_u64(&w, u->named[i].tokens);
    }
    put_u64(&w, u->payload_size);
    put_bytes(&w, u->payload, u->payload_size);
    put_u32(&w, crc32c(0, dst, w.pos));
    assert(!w.bad && w.pos == size);
    *size_p = size;
    return STATUS_OK;
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
    uint32_t magic = get_u32(r);
    uint8_t format = get_u8(r);
    u->form = get_u8(r);
    uint16_t zero = get_u16(r);
    u->fragment = get_u32(r);
    u->version = get_u64(r);
    u->round = get_u64(r);
    u->theta_hash = get_u64(r);
    u->rate = get_f64(r);
    get_str(r, u->codec, sizeof u->codec);
    u->n_named = get_u32(r);
    if (r->bad) return STATUS_AGAIN;
    if (magic != UPDATE_MAGIC || format != OBJECT_FORMAT || zero || u->n_named > WIRE_NAMED_MAX) return STATUS_CORRUPT;
    if (u->n_named > named_cap) return STATUS_LIMIT;
    for (uint32_t i = 0; i < u->n_named; i++) {
        named[i].worker_id = get_u32(r);
        named[i].round = get_u64(r);
        named[i].tokens = get_u64(r);
    }
    u->named = named;
    u->payload_size = get_u64(r);
    return r->bad ? STATUS_AGAIN : STATUS_OK;
}

enum status update_decode(struct update *u, struct update_named *named, size_t named_cap, const uint8_t *src,
                          size_t size)
{
    if (!crc_matches(src, size)) return STATUS_CORRUPT;
    struct reader r = reader_of(src, size - sizeof(uint32_t));
    enum status status = decode_head(u, named, named_cap, &r);
    if (status != STATUS_OK) return status == STATUS_AGAIN ? STATUS_CORRUPT : status;
    u->payload = get_bytes(&r, u->payload_size);
    if (!reader_done(&r) || !update_valid(u)) return STATUS_CORRUPT;
    assert(update_encoded_size(u) == size && u->payload + u->payload_size + sizeof(uint32_t) == src + size);
    return STATUS_OK;
}

enum status update_peek(struct update *u, struct update_named *named, size_t named_cap, const uint8_t *src, size_t size,
                        size_t *payload_at)
{
    struct reader r = reader_of(src, size);
    TRY(decode_head(u, named, named_cap, &r));
    if (!update_valid(u)) return STATUS_CORRUPT;
    u->payload = NULL;
    assert(r.pos + u->payload_size + sizeof(uint32_t) ==
           update_encoded_size(u)); /* a forged payload_size wraps both sides alike */
    *payload_at = r.pos;
    return STATUS_OK;
}

void snapshot_head_encode(const struct snapshot_head *h, uint8_t dst[SNAPSHOT_HEAD_BYTES])
{
    struct writer w = writer_of(dst, SNAPSHOT_HEAD_BYTES);
    put_u32(&w, SNAPSHOT_MAGIC);
    put_u8(&w, OBJECT_FORMAT);
    put_u8(&w, 0);
    put_u16(&w, 0);
    put_u32(&w, h->fragment);
    put_u64(&w, h->version);
    put_u64(&w, h->hash);
    put_u64(&w, h->count);
    put_u32(&w, crc32c(0, dst, w.pos));
    assert(!w.bad && w.pos == SNAPSHOT_HEAD_BYTES);
}

enum status snapshot_head_decode(struct snapshot_head *h, const uint8_t *src, size_t size)
{
    if (size < SNAPSHOT_HEAD_BYTES || !crc_matches(src, SNAPSHOT_HEAD_BYTES)) return STATUS_CORRUPT;
    struct reader r = reader_of(src, SNAPSHOT_HEAD_BYTES - sizeof(uint32_t));
    uint32_t magic = get_u32(&r);
    uint8_t format = get_u8(&r), zero = get_u8(&r);
    uint16_t zeros = get_u16(&r);
    *h = (struct snapshot_head){.fragment = get_u32(&r)};
    h->version = get_u64(&r);
    h->hash = get_u64(&r);
    h->count = get_u64(&r);
    bool good = reader_done(&r) && magic == SNAPSHOT_MAGIC && format == OBJECT_FORMAT && !zero && !zeros &&
                h->fragment < LAYOUT_FRAGMENTS_MAX && h->count && h->count <= (uint64_t)1 << 40;
    return good ? STATUS_OK : STATUS_CORRUPT;
}
