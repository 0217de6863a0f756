#include "common/format/field.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/text.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are written as in memory");

/* Bytes of the kinds that are written as in memory. */
static const uint8_t sizes[] = {
    [FIELD_U8] = 1,  [FIELD_U16] = 2, [FIELD_U32] = 4,     [FIELD_U64] = 8,     [FIELD_BOOL] = 1,
    [FIELD_F32] = 4, [FIELD_F64] = 8, [FIELD_F32_ANY] = 4, [FIELD_F64_ANY] = 8,
};

/* memcpy through the type of the table avoids unaligned and aliased access. */
#define LOAD(type, object, offset)                                                                                     \
    __extension__({                                                                                                    \
        type load_value_;                                                                                              \
        memcpy(&load_value_, (const char *)(object) + (offset), sizeof load_value_);                                   \
        load_value_;                                                                                                   \
    })
#define STORE(type, object, offset, value)                                                                             \
    do {                                                                                                               \
        type store_value_ = (value);                                                                                   \
        memcpy((char *)(object) + (offset), &store_value_, sizeof store_value_);                                       \
    } while (0)

static uint32_t list_count(const struct field *f, const void *object)
{
    return f->count_at == FIELD_ALL ? (uint32_t)f->max : LOAD(uint32_t, object, f->count_at);
}

static const char *list_item(const struct field *f, const void *object, uint32_t i)
{
    assert(f->kind == FIELD_LIST && i < f->max);
    return (const char *)object + f->at + i * f->stride;
}

static bool in_bounds(const struct field *f, uint64_t v)
{
    return v >= f->min && v <= f->max;
}

static bool text_ok(const struct field *f, const char *text, bool lines)
{
    size_t n = text ? strnlen(text, f->max + 1) : 0;
    return text && in_bounds(f, n) && text_is_clean(text, n, lines);
}

static bool field_ok(const struct field *f, const void *object)
{
    const char *p = (const char *)object + f->at;
    switch (f->kind) {
    case FIELD_U8: return in_bounds(f, LOAD(uint8_t, p, 0));
    case FIELD_U16: return in_bounds(f, LOAD(uint16_t, p, 0));
    case FIELD_U32: return in_bounds(f, LOAD(uint32_t, p, 0));
    case FIELD_U64: return in_bounds(f, LOAD(uint64_t, p, 0));
    case FIELD_F32: return isfinite(LOAD(float, p, 0));
    case FIELD_F64: return isfinite(LOAD(double, p, 0));
    case FIELD_LINE: return text_ok(f, p, false);
    case FIELD_REMARK: return in_bounds(f, strnlen(p, f->max + 1));
    case FIELD_TEXT: return text_ok(f, LOAD(const char *, p, 0), true);
    case FIELD_BLOB: {
        size_t n = LOAD(size_t, object, f->count_at);
        return in_bounds(f, n) && (!n || LOAD(const uint8_t *, p, 0));
    }
    case FIELD_LIST:
        if (!in_bounds(f, list_count(f, object))) return false;
        for (uint32_t i = 0; i < list_count(f, object); i++)
            if (fields_check(f->items, list_item(f, object, i))) return false;
        return true;
    default: return true;
    }
}

const struct field *fields_check(const struct field *table, const void *object)
{
    for (const struct field *f = table; f->kind != FIELD_END; f++)
        if (!field_ok(f, object)) return f;
    return NULL;
}

size_t fields_size(const struct field *table, const void *object)
{
    struct writer w = writer_counting();
    fields_put(table, object, &w);
    return w.pos;
}

static void put_remark(const char *remark, struct writer *w)
{
    char clean[FIELD_REMARK_MAX];
    assert(strlen(remark) < sizeof clean);
    memcpy(clean, remark, strlen(remark) + 1);
    text_make_clean(clean);
    put_str(w, clean);
}

void fields_put(const struct field *table, const void *object, struct writer *w)
{
    for (const struct field *f = table; f->kind != FIELD_END; f++) {
        const char *p = (const char *)object + f->at;
        assert(!w->data || field_ok(f, object)); /* the caller ran fields_check */
        switch (f->kind) {
        case FIELD_BOOLS: put_u8(w, (uint8_t)(LOAD(bool, p, 0) | LOAD(bool, object, f->count_at) << 1)); break;
        case FIELD_BYTES: put_bytes(w, p, f->max); break;
        case FIELD_CONST: put_bytes(w, &f->min, f->max); break;
        case FIELD_LINE: put_str(w, p); break;
        case FIELD_REMARK: put_remark(p, w); break;
        case FIELD_TEXT:
            p = LOAD(const char *, p, 0);
            put_u32(w, (uint32_t)strlen(p));
            put_bytes(w, p, strlen(p) + 1);
            break;
        case FIELD_BLOB:
            put_u32(w, (uint32_t)LOAD(size_t, object, f->count_at));
            put_bytes(w, LOAD(const uint8_t *, p, 0), LOAD(size_t, object, f->count_at));
            break;
        case FIELD_LIST: fields_put_all(f->items, p, f->stride, list_count(f, object), w); break;
        default: put_bytes(w, p, sizes[f->kind]); break;
        }
    }
}

static void get_fixed(char *p, size_t size, struct reader *r)
{
    const uint8_t *bytes = get_bytes(r, size);
    if (bytes)
        memcpy(p, bytes, size);
    else
        memset(p, 0, size);
}

/* The lowest `n` bits of a byte whose other bits are 0. */
static unsigned get_bits(int n, struct reader *r)
{
    uint8_t v = get_u8(r);
    if (v >> n) reader_fail(r);
    return r->bad ? 0 : v;
}

static void get_const(const struct field *f, struct reader *r)
{
    const uint8_t *bytes = get_bytes(r, f->max);
    if (bytes && memcmp(bytes, &f->min, f->max) != 0) reader_fail(r);
}

static void get_text(const struct field *f, char *p, struct reader *r)
{
    size_t n = get_u32(r);
    const uint8_t *text = n <= f->max ? get_bytes(r, n + 1) : NULL;
    if (!text || text[n] || memchr(text, 0, n)) {
        reader_fail(r);
        text = (const uint8_t *)"";
    }
    STORE(const char *, p, 0, (const char *)text);
}

static void get_blob(const struct field *f, void *object, struct reader *r)
{
    size_t n = get_u32(r);
    const uint8_t *data = n <= f->max ? get_bytes(r, n) : NULL;
    if (!data) reader_fail(r);
    STORE(const uint8_t *, object, f->at, data);
    assert(!data || n <= f->max);
    STORE(size_t, object, f->count_at, data ? n : 0);
}

static void get_field(const struct field *f, void *object, struct reader *r)
{
    char *p = (char *)object + f->at;
    unsigned bits;
    switch (f->kind) {
    case FIELD_BOOL: STORE(bool, p, 0, get_bits(1, r) != 0); break;
    case FIELD_BOOLS:
        bits = get_bits(2, r);
        STORE(bool, p, 0, bits & 1);
        STORE(bool, object, f->count_at, bits >> 1);
        break;
    case FIELD_BYTES: get_fixed(p, f->max, r); break;
    case FIELD_CONST: get_const(f, r); break;
    case FIELD_LINE: get_str(r, p, f->max + 1); break;
    case FIELD_REMARK:
        get_str(r, p, f->max + 1);
        if (!r->bad && !text_is_clean(p, strlen(p), false)) reader_fail(r);
        break;
    case FIELD_TEXT: get_text(f, p, r); break;
    case FIELD_BLOB: get_blob(f, object, r); break;
    case FIELD_LIST:
        if (list_count(f, object) > f->max) reader_fail(r);
        for (uint32_t i = 0; !r->bad && i < list_count(f, object); i++) fields_get(f->items, p + i * f->stride, r);
        break;
    default: get_fixed(p, sizes[f->kind], r); break;
    }
}

void fields_get(const struct field *table, void *object, struct reader *r)
{
    for (const struct field *f = table; f->kind != FIELD_END; f++) get_field(f, object, r);
}

void fields_read(const struct field *table, void *object, struct reader *r)
{
    fields_get(table, object, r);
    if (!r->bad && fields_check(table, object)) reader_fail(r);
}

enum status fields_decode(const struct field *table, void *object, const uint8_t *body, size_t size)
{
    struct reader r = reader_of(body, size);
    fields_read(table, object, &r);
    return reader_done(&r) ? STATUS_OK : STATUS_CORRUPT;
}

void fields_put_all(const struct field *table, const void *array, size_t stride, size_t n, struct writer *w)
{
    for (size_t i = 0; i < n; i++) fields_put(table, (const char *)array + i * stride, w);
}

void fields_read_all(const struct field *table, void *array, size_t stride, size_t n, struct reader *r)
{
    for (size_t i = 0; i < n && !r->bad; i++) fields_read(table, (char *)array + i * stride, r);
}
