/* lz4: compresses the bytes of a value stage with LZ4, which finds repeats but has no entropy stage. It helps for 16-
 * and 32-bit values grouped by byte significance and for data that is mostly zeros. Blocks that would not shrink are
 * stored raw, so the cost is bounded.
 *
 *     u64 raw size, then for each 256 KiB of raw bytes (the last block may be short):
 *     u32 stored size, bit 31 set: raw; the stored bytes
 *
 * Within a block, elements of `width` bytes are split into planes (all lowest bytes first, ...) before LZ4; the bytes
 * after the last whole element follow. A raw block is not split. The decoder accepts the output of any LZ4 encoder; two
 * versions of the library may choose different bytes for the same floats. */
#include <assert.h>
#include <lz4.h>
#include <string.h>

#include "common/base/bytes.h"
#include "compress/bytes/byte_planes.h"
#include "compress/codec_stage.h"

enum { BLOCK = 256 << 10, STATE = 1 << 15, RAW_BIT_SHIFT = 31 };
#define RAW_BIT (1u << RAW_BIT_SHIFT)

static size_t lz4_bound(size_t raw)
{
    return 8 + 4 * ((raw + BLOCK - 1) / BLOCK) + raw;
}

/* scratch: LZ4's state, then one block of planes. */
static enum status lz4_encode(const struct codec_pool *pool, void *scratch, const struct payload_shape *shape,
                              const uint8_t *src, size_t size, uint8_t *dst, size_t cap, size_t *size_p)
{
    (void)pool;
    const size_t width = shape->width;
    uint8_t *planes = (uint8_t *)scratch + STATE;
    struct writer w = writer_of(dst, cap);
    assert(width == 1 || width == 2 || width == 4);
    put_u64(&w, size);
    for (size_t from = 0; from < size; from += BLOCK) {
        size_t raw = size - from < BLOCK ? size - from : BLOCK;
        const uint8_t *input = src + from;
        if (width > 1) {
            planes_split(input, raw, width, planes);
            input = planes;
        }
        size_t head = w.pos;
        put_u32(&w, 0);
        if (w.bad) return STATUS_LIMIT;
        size_t room = cap - w.pos < raw - 1 ? cap - w.pos : raw - 1; /* LZ4 must save at least a byte */
        int stored =
            room ? LZ4_compress_fast_extState(scratch, (const char *)input, (char *)dst + w.pos, (int)raw, (int)room, 1)
                 : 0;
        if (stored > 0)
            w.pos += (size_t)stored;
        else
            put_bytes(&w, src + from, raw);
        struct writer header = writer_of(dst + head, 4);
        put_u32(&header, stored > 0 ? (uint32_t)stored : (uint32_t)raw | RAW_BIT);
    }
    if (w.bad) return STATUS_LIMIT;
    assert(w.pos <= lz4_bound(size));
    *size_p = w.pos;
    return STATUS_OK;
}

static enum status lz4_decode(const struct codec_pool *pool, void *scratch, const struct payload_shape *shape,
                              const uint8_t *src, size_t size, uint8_t *dst, size_t cap, size_t *size_p)
{
    (void)pool;
    const size_t width = shape->width;
    uint8_t *planes = (uint8_t *)scratch + STATE;
    struct reader r = reader_of(src, size);
    uint64_t whole = get_u64(&r);
    if (r.bad || whole > cap) return STATUS_CORRUPT;
    for (size_t from = 0; from < whole; from += BLOCK) {
        size_t raw = whole - from < BLOCK ? (size_t)whole - from : BLOCK;
        uint32_t head = get_u32(&r), stored = head & ~RAW_BIT;
        const uint8_t *bytes = get_bytes(&r, stored);
        if (!bytes || (head & RAW_BIT ? stored != raw : !stored || stored >= raw)) return STATUS_CORRUPT;
        if (head & RAW_BIT) {
            memcpy(dst + from, bytes, raw);
            continue;
        }
        uint8_t *out = width > 1 ? planes : dst + from;
        if (LZ4_decompress_safe((const char *)bytes, (char *)out, (int)stored, (int)raw) != (int)raw)
            return STATUS_CORRUPT;
        if (width > 1) planes_join(planes, raw, width, dst + from);
    }
    if (!reader_done(&r)) return STATUS_CORRUPT;
    *size_p = (size_t)whole;
    return STATUS_OK;
}

_Static_assert(sizeof(LZ4_stream_t) <= STATE, "LZ4's state must fit");

const struct byte_stage codec_lz4 = {
    .name = "lz4",
    .help = "lossless; 16- and 32-bit values split by byte; stored raw where that is smaller",
    .bound = lz4_bound,
    .scratch = STATE + BLOCK,
    .encode = lz4_encode,
    .decode = lz4_decode,
};
