/* skip: runs of zero bytes are left out. Every block codec turns a block of zeros into a scale of 0 and codes of 0, and
 * the wide values have no other bytes there: a row of the embedding that nobody touched costs its share of one run.
 *
 *     u64 raw size, then pairs (literals, zeros) of varints until they add up to it, zeros up to a multiple of 4, and
 *     the literal bytes end to end
 *
 * A varint has 7 bits a byte, the lowest first; bit 7 says that another follows. Runs begin and end between elements,
 * so that the literals are elements again, and a stage after this one finds its sections. */
#include <string.h>

#include "common/base/bytes.h"
#include "compress/codec_stage.h"

enum { RUN_MIN = 8, VARINT_MAX = 7, PAD = 4, WORD = 8, HALF = 4 };

/* Pairs before the last one pay for themselves: at most VARINT_MAX bytes for the literals, one for RUN_MIN zeros. */
static size_t skip_bound(size_t raw)
{
    return 8 + 2 * VARINT_MAX + PAD - 1 + raw;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static void put_varint(struct writer *w, uint64_t v)
{
    for (; v >= 0x80; v >>= 7) put_u8(w, (uint8_t)(v | 0x80));
    put_u8(w, (uint8_t)v);
}

/* Bad where it is longer than it need be, or than any that a payload holds. */
static uint64_t get_varint(struct reader *r)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < VARINT_MAX; i++) {
        uint8_t byte = get_u8(r);
        v |= (uint64_t)(byte & 0x7f) << 7 * i;
        if (byte & 0x80) continue;
        if (i && !byte) reader_fail(r);
        return v;
    }
    reader_fail(r);
    return 0;
}

/* The next run of RUN_MIN zero bytes or more in src[from, to), in whole elements of `width` counted from `start`.
 * Returns its length, 0 when there is none; *at_p is where it begins. */
static size_t next_run(const uint8_t *src, size_t start, size_t from, size_t to, size_t width, size_t *at_p)
{
    size_t i = from;
    while (i < to) {
        uint64_t word = ~(uint64_t)0; /* any run holds four zero bytes that lie at a multiple of four from `from` */
        for (; to - i >= WORD; i += WORD) {
            memcpy(&word, src + i, WORD);
            if (!(uint32_t)word || !(word >> 32)) break;
        }
        if (to - i < WORD && (to - i < HALF || src[i] || src[i + 1] || src[i + 2] || src[i + 3])) break;
        if (to - i >= WORD && (uint32_t)word) i += HALF;
        size_t first = i, last = i;
        while (first > from && !src[first - 1]) first--;
        while (last < to && !src[last]) last++;
        size_t begin = start + (first - start + width - 1) / width * width;
        size_t end = start + (last - start) / width * width;
        if (begin < end && end - begin >= RUN_MIN) {
            *at_p = begin;
            return end - begin;
        }
        i = last + 1; /* a byte that is not 0, or the end */
    }
    return 0;
}

struct pair {
    uint64_t literals, zeros;
};

static void put_pair(struct writer *w, struct pair *p)
{
    put_varint(w, p->literals);
    put_varint(w, p->zeros);
    *p = (struct pair){0};
}

/* The pairs of src[size]: runs do not cross from one section into the next, but join where they meet. */
static void put_pairs(struct writer *w, const struct payload_shape *shape, const uint8_t *src, size_t size)
{
    struct pair p = {0};
    size_t at = 0;
    for (size_t s = 0; s <= shape->n_sections && at < size; s++) {
        bool last = s == shape->n_sections;
        size_t width = last ? shape->width : shape->section[s].width, to = last ? size : shape->section[s].to;
        if (to > size) to = size;
        for (size_t start = at; at < to;) {
            size_t run_at = to, run = next_run(src, start, at, to, width, &run_at);
            if (!run) run_at = to;
            if (run_at > at && p.zeros) put_pair(w, &p);
            p.literals += run_at - at;
            p.zeros += run;
            at = run_at + run;
        }
    }
    if (size) put_pair(w, &p);
}

/* One pair that was checked before. */
static struct pair next_pair(struct reader *r)
{
    struct pair p = {.literals = get_varint(r)};
    p.zeros = get_varint(r);
    return p;
}

/* ---- the stage ----------------------------------------------------------------------------------------------------
 */

static enum status skip_encode(void *scratch, const struct payload_shape *shape, const uint8_t *src, size_t size,
                               uint8_t *dst, size_t cap, size_t *size_p)
{
    (void)scratch;
    struct writer w = writer_of(dst, cap);
    put_u64(&w, size);
    put_pairs(&w, shape, src, size);
    if (w.bad) return STATUS_LIMIT;
    struct reader pairs = reader_of(dst + 8, w.pos - 8);
    while (w.pos % PAD && !w.bad) put_u8(&w, 0);
    for (size_t at = 0; at < size && !w.bad;) {
        struct pair p = next_pair(&pairs);
        put_bytes(&w, src + at, (size_t)p.literals);
        at += (size_t)(p.literals + p.zeros);
    }
    if (w.bad) return STATUS_LIMIT;
    *size_p = w.pos;
    return STATUS_OK;
}

/* Where the literals begin; *literals_p: how many the pairs tell of. */
static enum status check_pairs(struct reader *r, uint64_t whole, uint64_t *literals_p)
{
    uint64_t at = 0, literals = 0;
    while (at < whole) {
        bool first = at == 0;
        struct pair p = next_pair(r);
        if (r->bad || p.literals > whole - at || p.zeros > whole - at - p.literals) return STATUS_CORRUPT;
        at += p.literals + p.zeros;
        literals += p.literals;
        if ((!p.literals && !first) || (p.zeros < RUN_MIN && (p.zeros || at < whole))) return STATUS_CORRUPT;
    }
    while (r->pos % PAD)
        if (get_u8(r) || r->bad) return STATUS_CORRUPT;
    *literals_p = literals;
    return STATUS_OK;
}

static enum status skip_decode(void *scratch, const struct payload_shape *shape, const uint8_t *src, size_t size,
                               uint8_t *dst, size_t cap, size_t *size_p)
{
    (void)scratch;
    (void)shape;
    struct reader r = reader_of(src, size), pairs;
    uint64_t whole = get_u64(&r), literals = 0;
    if (r.bad || whole > cap) return STATUS_CORRUPT;
    pairs = r;
    TRY(check_pairs(&r, whole, &literals));
    if (reader_left(&r) != literals) return STATUS_CORRUPT;
    for (size_t at = 0; at < whole;) {
        struct pair p = next_pair(&pairs);
        if (p.literals) memcpy(dst + at, get_bytes(&r, (size_t)p.literals), (size_t)p.literals);
        at += (size_t)p.literals;
        if (p.zeros) memset(dst + at, 0, (size_t)p.zeros);
        at += (size_t)p.zeros;
    }
    *size_p = (size_t)whole;
    return STATUS_OK;
}

/* Sections end where their literals do; pairs and padding come before, as a section of bytes. */
static void skip_reshape(const uint8_t *out, size_t size, struct payload_shape *shape)
{
    struct reader r = reader_of(out, size);
    uint64_t whole = get_u64(&r), literals = 0, at = 0;
    struct reader pairs = r;
    if (shape->n_sections == PAYLOAD_SECTIONS || check_pairs(&r, whole, &literals) != STATUS_OK) {
        shape->n_sections = 0;
        return;
    }
    struct payload_shape in = *shape;
    size_t s = 0, passed = 0;
    while (at < whole) {
        struct pair p = next_pair(&pairs);
        for (; s < in.n_sections && in.section[s].to <= at + p.literals + p.zeros; s++) {
            uint64_t kept = in.section[s].to - at < p.literals ? in.section[s].to - at : p.literals;
            shape->section[s + 1].to = r.pos + passed + (size_t)kept;
            shape->section[s + 1].width = in.section[s].width;
        }
        at += p.literals + p.zeros;
        passed += (size_t)p.literals;
    }
    for (; s < in.n_sections; s++) { /* past the end */
        shape->section[s + 1].to = size;
        shape->section[s + 1].width = in.section[s].width;
    }
    shape->section[0].to = r.pos;
    shape->section[0].width = 1;
    shape->n_sections = in.n_sections + 1;
}

const struct byte_stage codec_skip = {
    .name = "skip",
    .help = "lossless; leaves out zeros, such as rows that nobody touched: two to four bytes a run",
    .bound = skip_bound,
    .encode = skip_encode,
    .decode = skip_decode,
    .reshape = skip_reshape,
};
