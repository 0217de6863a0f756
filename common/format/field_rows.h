/* Rows of field tables, for .c files that have tables. A row names the struct and the member, then the bounds where not
 * every value is valid: U32_IN(msg_get, fragment, 0, 255). */
#ifndef COMMON_FIELD_ROWS_H
#define COMMON_FIELD_ROWS_H

#include "common/format/field.h"

#define ROW(what, type, member, low, high)                                                                             \
    {                                                                                                                  \
        .name = #member, .kind = (what), .at = offsetof(struct type, member), .min = (low), .max = (high)              \
    }
#define U8(type, member, low, high) ROW(FIELD_U8, type, member, low, high)
#define U16(type, member, low, high) ROW(FIELD_U16, type, member, low, high)
#define U32(type, member) ROW(FIELD_U32, type, member, 0, UINT32_MAX)
#define U32_IN(type, member, low, high) ROW(FIELD_U32, type, member, low, high)
#define U64(type, member) ROW(FIELD_U64, type, member, 0, UINT64_MAX)
#define U64_IN(type, member, low, high) ROW(FIELD_U64, type, member, low, high)
#define BOOL(type, member) ROW(FIELD_BOOL, type, member, 0, 1)
#define F32(type, member) ROW(FIELD_F32, type, member, 0, 0)
#define F32_ANY(type, member) ROW(FIELD_F32_ANY, type, member, 0, 0)
#define F64(type, member) ROW(FIELD_F64, type, member, 0, 0)
#define F64_ANY(type, member) ROW(FIELD_F64_ANY, type, member, 0, 0)
#define BYTES(type, member) ROW(FIELD_BYTES, type, member, 0, sizeof(((struct type *)0)->member))
/* `low` is the minimum length; the terminator takes one byte of the member. */
#define LINE(type, member, low) ROW(FIELD_LINE, type, member, low, sizeof(((struct type *)0)->member) - 1)
#define REMARK(type, member) ROW(FIELD_REMARK, type, member, 0, sizeof(((struct type *)0)->member) - 1)
#define TEXT(type, member, high) ROW(FIELD_TEXT, type, member, 0, high)
#define COUNT(type, member, low, high) U32_IN(type, member, low, high)
#define CONST(what, bytes, value)                                                                                      \
    {                                                                                                                  \
        .name = (what), .kind = FIELD_CONST, .min = (value), .max = (bytes)                                            \
    }
#define BOOLS(type, first, second)                                                                                     \
    {                                                                                                                  \
        .name = #first, .kind = FIELD_BOOLS, .at = offsetof(struct type, first),                                       \
        .count_at = offsetof(struct type, second)                                                                      \
    }
#define BLOB(type, member, size_member, low, high)                                                                     \
    {                                                                                                                  \
        .name = #member, .kind = FIELD_BLOB, .at = offsetof(struct type, member),                                      \
        .count_at = offsetof(struct type, size_member), .min = (low), .max = (high)                                    \
    }
#define LIST_AT(type, member, count, table, high)                                                                      \
    {                                                                                                                  \
        .name = #member, .kind = FIELD_LIST, .at = offsetof(struct type, member), .count_at = (count), .max = (high),  \
        .items = (table), .stride = sizeof(((struct type *)0)->member[0])                                              \
    }
#define LIST(type, member, count, table, high) LIST_AT(type, member, offsetof(struct type, count), table, high)
/* All elements of the member array, and one struct. */
#define ARRAY(type, member, table, n) LIST_AT(type, member, FIELD_ALL, table, n)
#define STRUCT(type, member, table)                                                                                    \
    {                                                                                                                  \
        .name = #member, .kind = FIELD_LIST, .at = offsetof(struct type, member), .count_at = FIELD_ALL, .max = 1,     \
        .items = (table)                                                                                               \
    }
#define END                                                                                                            \
    {                                                                                                                  \
        .kind = FIELD_END                                                                                              \
    }

#endif
