#include "common/base/bytes.h"

#include <assert.h>
#include <string.h>

#include "common/base/float_bits.h"

struct reader reader_of(const void *data, size_t size)
{
    assert(data || !size);
    return (struct reader){.data = data, .size = size};
}

struct writer writer_of(void *data, size_t cap)
{
    assert(data || !cap);
    return (struct writer){.data = data, .cap = cap};
}

struct writer writer_counting(void)
{
    return (struct writer){.cap = SIZE_MAX};
}

void reader_fail(struct reader *r)
{
    r->bad = true;
    r->pos = r->size;
}

size_t reader_left(const struct reader *r)
{
    return r->bad ? 0 : r->size - r->pos;
}

bool reader_done(const struct reader *r)
{
    return !r->bad && r->pos == r->size;
}

const uint8_t *get_bytes(struct reader *r, size_t n)
{
    assert(r->pos <= r->size && (!r->bad || r->pos == r->size)); /* reader_fail moves to the end */
    if (r->bad || n > r->size - r->pos) {
        r->ended = r->ended || !r->bad;
        reader_fail(r);
        return NULL;
    }
    const uint8_t *p = r->data + r->pos;
    r->pos += n;
    return p;
}

static uint64_t get_le(struct reader *r, size_t n)
{
    const uint8_t *p = get_bytes(r, n);
    uint64_t v = 0;
    if (p)
        for (size_t i = 0; i < n; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}

uint8_t get_u8(struct reader *r)
{
    return (uint8_t)get_le(r, 1);
}

uint16_t get_u16(struct reader *r)
{
    return (uint16_t)get_le(r, 2);
}

uint32_t get_u32(struct reader *r)
{
    return (uint32_t)get_le(r, 4);
}

uint64_t get_u64(struct reader *r)
{
    return get_le(r, 8);
}

float get_f32(struct reader *r)
{
    return float_of_bits(get_u32(r));
}

double get_f64(struct reader *r)
{
    uint64_t bits = get_u64(r);
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

void get_str(struct reader *r, char *out, size_t cap)
{
    size_t n = get_u16(r);
    const uint8_t *p = get_bytes(r, n);
    if (!p || n >= cap || memchr(p, 0, n)) {
        reader_fail(r);
        if (cap) out[0] = 0;
        return;
    }
    memcpy(out, p, n);
    out[n] = 0;
}

void put_bytes(struct writer *w, const void *data, size_t n)
{
    assert(w->pos <= w->cap);
    if (w->bad || n > w->cap - w->pos) {
        w->bad = true;
        return;
    }
    if (n && w->data && data != w->data + w->pos)
        memcpy(w->data + w->pos, data, n); /* the caller may have built the bytes in place */
    w->pos += n;
}

static void put_le(struct writer *w, uint64_t v, size_t n)
{
    uint8_t b[8];
    for (size_t i = 0; i < n; i++) b[i] = (uint8_t)(v >> (8 * i));
    put_bytes(w, b, n);
}

void put_u8(struct writer *w, uint8_t v)
{
    put_le(w, v, 1);
}

void put_u16(struct writer *w, uint16_t v)
{
    put_le(w, v, 2);
}

void put_u32(struct writer *w, uint32_t v)
{
    put_le(w, v, 4);
}

void put_u64(struct writer *w, uint64_t v)
{
    put_le(w, v, 8);
}

void put_f32(struct writer *w, float v)
{
    put_u32(w, float_bits(v));
}

void put_f64(struct writer *w, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_u64(w, bits);
}

void put_str(struct writer *w, const char *text)
{
    size_t n = strlen(text);
    if (n > 65535) {
        w->bad = true;
        return;
    }
    put_u16(w, (uint16_t)n);
    put_bytes(w, text, n);
}
