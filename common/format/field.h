/* Formats as tables of fields: encode, decode and check a struct by its table.
 *
 * One table for each message, journal record and file head drives size, encode, decode and every check. Each limit is
 * stated once and both sides agree by construction. The order of the table is the order of the bytes. The macros of
 * common/format/field_rows.h make the rows. */
#ifndef COMMON_FIELD_H
#define COMMON_FIELD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/bytes.h"
#include "common/base/status.h"

enum field_kind {
    FIELD_END, /* closes a table */
    FIELD_U8,
    FIELD_U16,
    FIELD_U32,
    FIELD_U64,
    FIELD_BOOL,    /* u8, 0 or 1 */
    FIELD_F32,     /* finite */
    FIELD_F64,     /* finite */
    FIELD_F32_ANY, /* NaN and infinity allowed */
    FIELD_F64_ANY,
    FIELD_BOOLS,  /* u8: bit 0 is the bool at `at`, bit 1 the bool at count_at */
    FIELD_BYTES,  /* uint8_t[max] */
    FIELD_CONST,  /* no member: the lowest `max` bytes of `min` */
    FIELD_LINE,   /* char[]: u16 length, UTF-8 without control characters */
    FIELD_REMARK, /* the same, at most char[FIELD_REMARK_MAX]; the encoder replaces unclean bytes by '?' */
    FIELD_TEXT,   /* const char *: u32 length, UTF-8 lines, zero byte, so that the decoder can borrow it */
    FIELD_BLOB,   /* const uint8_t * or const char *, and size_t: u32 length, bytes */
    FIELD_LIST,   /* struct[]: the elements without a length */
};

enum { FIELD_REMARK_MAX = 1024 };

/* count_at of a LIST: it has always `max` elements. */
#define FIELD_ALL SIZE_MAX

struct field {
    const char *name;
    enum field_kind kind;
    size_t at; /* offset in the struct */
    /* BLOB: offset of its size_t. LIST: offset of its uint32_t, an earlier field or set by the caller; or FIELD_ALL. */
    size_t count_at;
    uint64_t min, max;         /* bounds of an integer's value, a line's, text's or blob's length, a list's count */
    const struct field *items; /* LIST: the fields of one element */
    size_t stride;             /* LIST: size of one element */
};

/* A format of several tables, in the order of their bytes; a part without a name ends the list. */
struct field_part {
    const char *name;
    const struct field *fields;
};

/* First field of `object` that breaks its bounds, or NULL. Counts are checked before the lists they count. */
const struct field *fields_check(const struct field *table, const void *object);
/* Bytes that fields_put writes. Only lengths and counts need be those of a valid object. */
size_t fields_size(const struct field *table, const void *object);
/* Append the object to `w`. The object must pass fields_check; a full writer sets w->bad. */
void fields_put(const struct field *table, const void *object, struct writer *w);
/* Read into `object`; pointers borrow from the reader. A count or length that exceeds its member, or another constant,
 * fails the reader; the caller runs fields_check for all other bounds. */
void fields_get(const struct field *table, void *object, struct reader *r);

/* fields_get and fields_check: any fault fails the reader. */
void fields_read(const struct field *table, void *object, struct reader *r);
/* fields_read of a whole body. CORRUPT: a fault, or bytes are left. */
enum status fields_decode(const struct field *table, void *object, const uint8_t *body, size_t size) MUST_CHECK;

/* The same for an array of n elements of `stride` bytes. */
void fields_put_all(const struct field *table, const void *array, size_t stride, size_t n, struct writer *w);
void fields_read_all(const struct field *table, void *array, size_t stride, size_t n, struct reader *r);

#endif
