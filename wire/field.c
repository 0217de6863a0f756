#include "wire/field.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/text.h"
#include "wire/msg.h"

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
    return LOAD(uint32_t, object, f->count_at);
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
    case FIELD_BOOL:
    case FIELD_F32_ANY:
    case FIELD_F64_ANY:
    case FIELD_UUID:
    case FIELD_KEY:
    case FIELD_END: break;
    }
    return true;
}

const struct field *fields_check(const struct field *table, const void *object)
{
    for (const struct field *f = table; f->kind != FIELD_END; f++)
        if (!field_ok(f, object)) return f;
    return NULL;
}

size_t fields_size(const struct field *table, const void *object)
{
    size_t n = 0;
    for (const struct field *f = table; f->kind != FIELD_END; f++) {
        switch (f->kind) {
        case FIELD_U8:
        case FIELD_BOOL: n += 1; break;
        case FIELD_U16: n += 2; break;
        case FIELD_U32:
        case FIELD_F32:
        case FIELD_F32_ANY: n += 4; break;
        case FIELD_U64:
        case FIELD_F64:
        case FIELD_F64_ANY: n += 8; break;
        case FIELD_UUID: n += WIRE_UUID; break;
        case FIELD_KEY: n += WIRE_KEY; break;
        case FIELD_LINE:
        case FIELD_REMARK: n += 2 + strlen((const char *)object + f->at); break;
        case FIELD_TEXT: n += 4 + strlen(LOAD(const char *, object, f->at)) + 1; break;
        case FIELD_BLOB: n += 4 + LOAD(size_t, object, f->count_at); break;
        case FIELD_LIST:
            for (uint32_t i = 0; i < list_count(f, object); i++) n += fields_size(f->items, list_item(f, object, i));
            break;
        case FIELD_END: break;
        }
    }
    return n;
}

static void put_remark(const char *remark, struct writer *w)
{
    char clean[WIRE_TEXT_MAX];
    assert(strlen(remark) < sizeof clean);
    memcpy(clean, remark, strlen(remark) + 1);
    text_make_clean(clean);
    put_str(w, clean);
}

void fields_put(const struct field *table, const void *object, struct writer *w)
{
    for (const struct field *f = table; f->kind != FIELD_END; f++) {
        const char *p = (const char *)object + f->at;
        assert(field_ok(f, object)); /* the caller ran fields_check */
        switch (f->kind) {
        case FIELD_U8: put_u8(w, LOAD(uint8_t, p, 0)); break;
        case FIELD_BOOL: put_u8(w, LOAD(bool, p, 0)); break;
        case FIELD_U16: put_u16(w, LOAD(uint16_t, p, 0)); break;
        case FIELD_U32: put_u32(w, LOAD(uint32_t, p, 0)); break;
        case FIELD_U64: put_u64(w, LOAD(uint64_t, p, 0)); break;
        case FIELD_F32:
        case FIELD_F32_ANY: put_f32(w, LOAD(float, p, 0)); break;
        case FIELD_F64:
        case FIELD_F64_ANY: put_f64(w, LOAD(double, p, 0)); break;
        case FIELD_UUID: put_bytes(w, p, WIRE_UUID); break;
        case FIELD_KEY: put_bytes(w, p, WIRE_KEY); break;
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
        case FIELD_LIST:
            for (uint32_t i = 0; i < list_count(f, object); i++) fields_put(f->items, list_item(f, object, i), w);
            break;
        case FIELD_END: break;
        }
    }
}

static void get_bool(char *p, struct reader *r)
{
    uint8_t v = get_u8(r);
    if (v > 1) reader_fail(r);
    STORE(bool, p, 0, v == 1);
}

static void get_fixed(char *p, size_t size, struct reader *r)
{
    const uint8_t *bytes = get_bytes(r, size);
    if (bytes) memcpy(p, bytes, size);
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

void fields_get(const struct field *table, void *object, struct reader *r)
{
    for (const struct field *f = table; f->kind != FIELD_END; f++) {
        char *p = (char *)object + f->at;
        switch (f->kind) {
        case FIELD_U8: STORE(uint8_t, p, 0, get_u8(r)); break;
        case FIELD_BOOL: get_bool(p, r); break;
        case FIELD_U16: STORE(uint16_t, p, 0, get_u16(r)); break;
        case FIELD_U32: STORE(uint32_t, p, 0, get_u32(r)); break;
        case FIELD_U64: STORE(uint64_t, p, 0, get_u64(r)); break;
        case FIELD_F32:
        case FIELD_F32_ANY: STORE(float, p, 0, get_f32(r)); break;
        case FIELD_F64:
        case FIELD_F64_ANY: STORE(double, p, 0, get_f64(r)); break;
        case FIELD_UUID: get_fixed(p, WIRE_UUID, r); break;
        case FIELD_KEY: get_fixed(p, WIRE_KEY, r); break;
        case FIELD_LINE: get_str(r, p, f->max + 1); break;
        case FIELD_REMARK:
            get_str(r, p, f->max + 1);
            if (!r->bad && !text_is_clean(p, strlen(p), false)) reader_fail(r);
            break;
        case FIELD_TEXT: get_text(f, p, r); break;
        case FIELD_BLOB: get_blob(f, object, r); break;
        case FIELD_LIST:
            if (list_count(f, object) > f->max) reader_fail(r);
            for (uint32_t i = 0; !r->bad && i < list_count(f, object); i++)
                fields_get(f->items, (char *)object + f->at + i * f->stride, r);
            break;
        case FIELD_END: break;
        }
    }
}
