/* huff: a Huffman code for bytes that are skewed but do not repeat: 2- and 4-bit codes, of which a byte holds four or
 * two, and exponents of floats. Each section of a payload (scales, codes) and each byte plane of larger elements has
 * its own code. A plane that would not shrink is stored raw.
 *
 *     u64 raw size, then blocks up to that size:
 *     u32 raw bytes of the block (up to 131072) | element bytes << 24; then for each byte of an element its plane:
 *         u8 mode; 0: the bytes; 1: one byte, they are all equal;
 *         2: 128 bytes of code lengths (4 bits each, even byte in the low nibble), u16 x 8 sizes of the streams,
 *            the streams
 *
 * A stream holds an eighth of the plane (rounded up; the last one holds the rest). */
#include <assert.h>
#include <string.h>

#include "common/base/bytes.h"
#include "compress/bytes/byte_planes.h"
#include "compress/bytes/huffman.h"
#include "compress/codec_stage.h"

enum { BLOCK = 128 << 10, WIDTH_MAX = 4, WORST_HEAD = 4 + WIDTH_MAX, TABLE = 128, MODE_RAW = 0, MODE_SAME, MODE_CODED };
enum { STREAM_ROOM = BLOCK / HUFFMAN_STREAMS * HUFFMAN_BITS_MAX / 8 + HUFFMAN_SLACK };

struct work {
    uint8_t planes[BLOCK];
    uint8_t streams[HUFFMAN_STREAMS][STREAM_ROOM];
    struct huffman_encoder encoder;
    struct huffman_decoder decoder;
};

/* A section adds a short block at its end, and one for the bytes after its last whole element. */
static size_t huff_bound(size_t raw)
{
    return 8 + (raw / (BLOCK - WIDTH_MAX) + 2 * PAYLOAD_SECTIONS) * WORST_HEAD + raw;
}

static void split_streams(size_t n, size_t from[HUFFMAN_STREAMS], size_t count[HUFFMAN_STREAMS])
{
    size_t share = (n + HUFFMAN_STREAMS - 1) / HUFFMAN_STREAMS;
    for (size_t k = 0; k < HUFFMAN_STREAMS; k++) {
        from[k] = k * share < n ? k * share : n;
        count[k] = n - from[k] < share ? n - from[k] : share;
    }
}

/* Writes the plane in mode 2. Returns false, with w unchanged, if that is not smaller than raw. */
static bool put_coded(struct work *work, const uint8_t *plane, size_t n, const uint32_t counts[256], struct writer *w)
{
    uint8_t lengths[256], table[TABLE], *dst[HUFFMAN_STREAMS];
    const uint8_t *src[HUFFMAN_STREAMS];
    size_t from[HUFFMAN_STREAMS], count[HUFFMAN_STREAMS], size[HUFFMAN_STREAMS];
    size_t total = TABLE + 2 * HUFFMAN_STREAMS;
    if (n <= total || huffman_lengths(counts, lengths) / 8 + total >= n) return false;
    huffman_encoder_init(&work->encoder, lengths);
    split_streams(n, from, count);
    for (size_t k = 0; k < HUFFMAN_STREAMS; k++) {
        src[k] = plane + from[k];
        dst[k] = work->streams[k];
    }
    huffman_encode(&work->encoder, src, count, dst, size);
    for (size_t k = 0; k < HUFFMAN_STREAMS; k++) total += size[k];
    if (total >= n) return false;
    for (size_t i = 0; i < TABLE; i++) table[i] = (uint8_t)(lengths[2 * i] | lengths[2 * i + 1] << 4);
    put_u8(w, MODE_CODED);
    put_bytes(w, table, TABLE);
    for (size_t k = 0; k < HUFFMAN_STREAMS; k++) put_u16(w, (uint16_t)size[k]);
    for (size_t k = 0; k < HUFFMAN_STREAMS; k++) put_bytes(w, work->streams[k], size[k]);
    return true;
}

static void put_plane(struct work *work, const uint8_t *plane, size_t n, struct writer *w)
{
    uint32_t counts[256];
    huffman_count(plane, n, counts);
    if (n > 1 && counts[plane[0]] == n) {
        put_u8(w, MODE_SAME);
        put_u8(w, plane[0]);
    } else if (!put_coded(work, plane, n, counts, w)) {
        put_u8(w, MODE_RAW);
        put_bytes(w, plane, n);
    }
}

static void put_block(struct work *work, const uint8_t *raw, size_t size, size_t width, struct writer *w)
{
    const uint8_t *planes = raw;
    assert(size && size <= BLOCK && width && width <= WIDTH_MAX && size % width == 0);
    if (width > 1) {
        planes_split(raw, size, width, work->planes);
        planes = work->planes;
    }
    put_u32(w, (uint32_t)(size | width << 24));
    for (size_t p = 0; p < width; p++) put_plane(work, planes + p * (size / width), size / width, w);
}

static enum status huff_encode(void *scratch, const struct payload_shape *shape, const uint8_t *src, size_t size,
                               uint8_t *dst, size_t cap, size_t *size_p)
{
    struct writer w = writer_of(dst, cap);
    put_u64(&w, size);
    assert(shape->n_sections <= PAYLOAD_SECTIONS);
    size_t at = 0;
    for (size_t s = 0; s <= shape->n_sections && at < size; s++) {
        bool last = s == shape->n_sections;
        size_t width = last ? shape->width : shape->section[s].width, to = last ? size : shape->section[s].to;
        if (to > size) to = size;
        for (size_t count; at < to && !w.bad; at += count) {
            size_t most = to - at < BLOCK ? to - at : BLOCK;
            bool whole = most >= width;
            count = whole ? most / width * width : most;
            put_block(scratch, src + at, count, whole ? width : 1, &w);
        }
    }
    if (w.bad) return STATUS_LIMIT;
    assert(w.pos <= huff_bound(size));
    *size_p = w.pos;
    return STATUS_OK;
}

static enum status get_coded(struct work *work, struct reader *r, uint8_t *plane, size_t n)
{
    const uint8_t *table = get_bytes(r, TABLE), *src[HUFFMAN_STREAMS];
    uint8_t lengths[256], *out[HUFFMAN_STREAMS];
    size_t from[HUFFMAN_STREAMS], count[HUFFMAN_STREAMS], size[HUFFMAN_STREAMS], total = TABLE + 2 * HUFFMAN_STREAMS;
    if (!table) return STATUS_CORRUPT;
    for (size_t i = 0; i < TABLE; i++) {
        lengths[2 * i] = table[i] & 15;
        lengths[2 * i + 1] = table[i] >> 4;
    }
    TRY(huffman_decoder_init(&work->decoder, lengths));
    split_streams(n, from, count);
    for (size_t k = 0; k < HUFFMAN_STREAMS; k++) total += size[k] = get_u16(r);
    if (total >= n) return STATUS_CORRUPT;
    for (size_t k = 0; k < HUFFMAN_STREAMS; k++) {
        src[k] = get_bytes(r, size[k]);
        out[k] = plane + from[k];
        if (!src[k]) return STATUS_CORRUPT;
    }
    return huffman_decode(&work->decoder, src, size, out, count);
}

static enum status get_plane(struct work *work, struct reader *r, uint8_t *plane, size_t n)
{
    uint8_t mode = get_u8(r);
    if (mode == MODE_CODED) return get_coded(work, r, plane, n);
    if (mode > MODE_CODED || (mode == MODE_SAME && n < 2)) return STATUS_CORRUPT;
    const uint8_t *bytes = get_bytes(r, mode == MODE_SAME ? 1 : n);
    if (!bytes) return STATUS_CORRUPT;
    if (mode == MODE_SAME)
        memset(plane, *bytes, n);
    else
        memcpy(plane, bytes, n);
    return STATUS_OK;
}

static enum status huff_decode(void *scratch, const struct payload_shape *shape, const uint8_t *src, size_t size,
                               uint8_t *dst, size_t cap, size_t *size_p)
{
    (void)shape;
    struct work *work = scratch;
    struct reader r = reader_of(src, size);
    uint64_t whole = get_u64(&r);
    if (r.bad || whole > cap) return STATUS_CORRUPT;
    for (size_t at = 0; at < whole;) {
        uint32_t head = get_u32(&r);
        size_t raw = head & 0xffffff, width = head >> 24;
        if (r.bad || !raw || raw > BLOCK || raw > whole - at || !width || width > WIDTH_MAX || raw % width)
            return STATUS_CORRUPT;
        uint8_t *planes = width > 1 ? work->planes : dst + at;
        for (size_t p = 0; p < width; p++) TRY(get_plane(work, &r, planes + p * (raw / width), raw / width));
        if (width > 1) planes_join(planes, raw, width, dst + at);
        at += raw;
    }
    if (!reader_done(&r)) return STATUS_CORRUPT;
    *size_p = (size_t)whole;
    return STATUS_OK;
}

_Static_assert(BLOCK / HUFFMAN_STREAMS * HUFFMAN_BITS_MAX / 8 <= UINT16_MAX, "sizes of streams fit 16 bits");

const struct byte_stage codec_huff = {
    .name = "huff",
    .help = "lossless; Huffman codes for bytes: 2- and 4-bit codes, exponents; stored raw where that is smaller",
    .bound = huff_bound,
    .scratch = sizeof(struct work),
    .encode = huff_encode,
    .decode = huff_decode,
};
