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
#include "common/base/pool.h"
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

/* One block of the input. Zeroed: before the first. */
struct block {
    size_t at, size, width, section;
};

static bool next_block(const struct payload_shape *shape, size_t size, struct block *b)
{
    size_t at = b->at + b->size;
    assert(shape->n_sections <= PAYLOAD_SECTIONS);
    for (; at < size; b->section++) {
        bool last = b->section == shape->n_sections;
        size_t width = last ? shape->width : shape->section[b->section].width;
        size_t to = last ? size : shape->section[b->section].to;
        if (to > size) to = size;
        if (at >= to) continue;
        size_t most = to - at < BLOCK ? to - at : BLOCK;
        bool whole = most >= width;
        *b = (struct block){at, whole ? most / width * width : most, whole ? width : 1, b->section};
        return true;
    }
    return false;
}

/* Threads share the blocks and write them to regions of dst that hold the longest output. */
struct encoding {
    const struct payload_shape *shape;
    const uint8_t *src;
    size_t size;
    uint8_t *dst, *scratch;
    size_t each;                      /* bytes of scratch of a thread */
    size_t from[POOL_THREADS_MAX];    /* by thread: start of its region */
    size_t written[POOL_THREADS_MAX]; /* bytes there */
};

/* A block belongs to the thread of its first byte. */
static void encode_share(void *ctx, int thread, int threads)
{
    struct encoding *e = ctx;
    size_t from, to, pos = 8;
    struct writer w = {0};
    pool_share(e->size, BLOCK, thread, threads, &from, &to);
    for (struct block b = {0}; next_block(e->shape, e->size, &b) && b.at < to; pos += WORST_HEAD + b.size) {
        if (b.at < from) continue;
        if (!w.data) {
            w = writer_of(e->dst + pos, huff_bound(e->size) - pos); /* no block leaves its region */
            e->from[thread] = pos;
        }
        put_block((struct work *)(void *)(e->scratch + (size_t)thread * e->each), e->src + b.at, b.size, b.width, &w);
    }
    assert(!w.bad);
    e->written[thread] = w.pos;
}

static enum status encode_on_pool(const struct codec_pool *p, const struct payload_shape *shape, const uint8_t *src,
                                  size_t size, uint8_t *dst, size_t *size_p)
{
    struct encoding e = {.shape = shape, .src = src, .size = size, .dst = dst, .scratch = p->scratch, .each = p->each};
    struct writer w = writer_of(dst, 8);
    size_t end = 8;
    put_u64(&w, size);
    pool_run(p->pool, encode_share, &e);
    for (int t = 0; t < POOL_THREADS_MAX; t++) {
        if (e.written[t]) memmove(dst + end, dst + e.from[t], e.written[t]);
        end += e.written[t];
    }
    assert(end <= huff_bound(size));
    *size_p = end;
    return STATUS_OK;
}

static enum status huff_encode(const struct codec_pool *pool, void *scratch, const struct payload_shape *shape,
                               const uint8_t *src, size_t size, uint8_t *dst, size_t cap, size_t *size_p)
{
    if (size > BLOCK && cap >= huff_bound(size) && codec_pool_with(pool, sizeof(struct work)))
        return encode_on_pool(pool, shape, src, size, dst, size_p);
    struct writer w = writer_of(dst, cap);
    put_u64(&w, size);
    for (struct block b = {0}; !w.bad && next_block(shape, size, &b);)
        put_block(scratch, src + b.at, b.size, b.width, &w);
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

/* Reads the head of the block at raw byte `at` of `whole`. */
static enum status get_head(struct reader *r, size_t at, size_t whole, size_t *raw_p, size_t *width_p)
{
    uint32_t head = get_u32(r);
    size_t raw = head & 0xffffff, width = head >> 24;
    if (r->bad || !raw || raw > BLOCK || raw > whole - at || !width || width > WIDTH_MAX || raw % width)
        return STATUS_CORRUPT;
    *raw_p = raw;
    *width_p = width;
    return STATUS_OK;
}

/* Reads the planes of a block to dst[raw]. */
static enum status get_block(struct work *work, struct reader *r, size_t raw, size_t width, uint8_t *dst)
{
    uint8_t *planes = width > 1 ? work->planes : dst;
    for (size_t p = 0; p < width; p++) TRY(get_plane(work, r, planes + p * (raw / width), raw / width));
    if (width > 1) planes_join(planes, raw, width, dst);
    return STATUS_OK;
}

/* Goes past a plane of n bytes. */
static enum status skip_plane(struct reader *r, size_t n)
{
    uint8_t mode = get_u8(r);
    size_t bytes = mode == MODE_SAME ? 1 : n;
    if (mode == MODE_CODED) {
        bytes = 0;
        (void)get_bytes(r, TABLE);
        for (size_t k = 0; k < HUFFMAN_STREAMS; k++) bytes += get_u16(r);
    }
    return mode <= MODE_CODED && get_bytes(r, bytes) ? STATUS_OK : STATUS_CORRUPT;
}

struct decoding {
    struct reader start; /* behind the size */
    uint8_t *dst, *scratch;
    size_t whole, each;
    enum status status[POOL_THREADS_MAX]; /* by thread */
};

/* Each thread finds its blocks by the heads of all. */
static enum status decode_blocks(const struct decoding *d, struct work *work, size_t from, size_t to)
{
    struct reader r = d->start;
    for (size_t at = 0, raw, width; at < to; at += raw) {
        TRY(get_head(&r, at, d->whole, &raw, &width));
        if (at >= from)
            TRY(get_block(work, &r, raw, width, d->dst + at));
        else
            for (size_t p = 0; p < width; p++) TRY(skip_plane(&r, raw / width));
    }
    return to < d->whole || reader_done(&r) ? STATUS_OK : STATUS_CORRUPT;
}

static void decode_share(void *ctx, int thread, int threads)
{
    struct decoding *d = ctx;
    size_t from, to;
    pool_share(d->whole, BLOCK, thread, threads, &from, &to);
    void *work = d->scratch + (size_t)thread * d->each;
    d->status[thread] = from < to ? decode_blocks(d, work, from, to) : STATUS_OK;
}

static enum status huff_decode(const struct codec_pool *pool, void *scratch, const struct payload_shape *shape,
                               const uint8_t *src, size_t size, uint8_t *dst, size_t cap, size_t *size_p)
{
    (void)shape;
    struct reader r = reader_of(src, size);
    uint64_t whole = get_u64(&r);
    if (r.bad || whole > cap) return STATUS_CORRUPT;
    struct decoding d = {.start = r, .dst = dst, .whole = (size_t)whole};
    if (whole > BLOCK && codec_pool_with(pool, sizeof(struct work))) {
        d.scratch = pool->scratch;
        d.each = pool->each;
        pool_run(pool->pool, decode_share, &d);
        for (int t = 0; t < POOL_THREADS_MAX; t++) TRY(d.status[t]);
    } else {
        TRY(decode_blocks(&d, scratch, 0, d.whole));
    }
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
