/* Message bodies as tables of fields: encode, decode and check a struct by its table.
 *
 * One table per message (wire/msg_table.c) drives size, encode, decode and every check. Each limit is stated once and
 * both sides agree by construction. The order of the table is the order of the bytes. */
#ifndef WIRE_FIELD_H
#define WIRE_FIELD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/bytes.h"

enum field_kind {
    FIELD_END, /* closes a table */
    FIELD_U8,
    FIELD_U16,
    FIELD_U32,
    FIELD_U64,
    FIELD_BOOL,    /* u8, 0 or 1 */
    FIELD_F32,     /* finite */
    FIELD_F64,     /* finite */
    FIELD_F32_ANY, /* NaN and infinity allowed: only shown to people */
    FIELD_F64_ANY,
    FIELD_UUID,   /* WIRE_UUID bytes */
    FIELD_KEY,    /* WIRE_KEY bytes */
    FIELD_LINE,   /* char[]: u16 length, UTF-8 without control characters */
    FIELD_REMARK, /* the same, at most char[WIRE_TEXT_MAX]; the encoder replaces unclean bytes by '?' */
    FIELD_TEXT,   /* const char *: u32 length, UTF-8 lines, zero byte, so that the decoder can borrow it */
    FIELD_BLOB,   /* const uint8_t * and size_t: u32 length, bytes */
    FIELD_LIST,   /* struct[]: the elements without a length; their uint32_t count is an earlier field */
};

struct field {
    const char *name;
    enum field_kind kind;
    size_t at;                 /* offset in the struct */
    size_t count_at;           /* BLOB: offset of its size_t; LIST: offset of its uint32_t */
    uint64_t min, max;         /* bounds of an integer's value, a line's, text's or blob's length, a list's count */
    const struct field *items; /* LIST: the fields of one element */
    size_t stride;             /* LIST: size of one element */
};

/* First field of `object` that breaks its bounds, or NULL. Counts are checked before the lists they count. */
const struct field *fields_check(const struct field *table, const void *object);
/* Bytes that fields_put writes. The object must pass fields_check. */
size_t fields_size(const struct field *table, const void *object);
/* Append the object to `w`. The object must pass fields_check; a full writer sets w->bad. */
void fields_put(const struct field *table, const void *object, struct writer *w);
/* Read into `object`; pointers borrow from the reader. A count or length that exceeds its member fails the reader; the
 * caller runs fields_check for all other bounds. */
void fields_get(const struct field *table, void *object, struct reader *r);

#endif
