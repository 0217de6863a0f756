/* Tables of the fields of every message, in the order of their bytes; docs/protocol.md explains them. */
#ifndef WIRE_MSG_TABLE_H
#define WIRE_MSG_TABLE_H

#include "common/format/field_rows.h"
#include "wire/msg.h"

/* Elements of lists. */
extern const struct field wire_number[], wire_version_fields[], wire_range_fields[];

/* An assignment, in each message, record and file that holds one: its steps, and its samples. */
#define WORK_STEPS(type, low) U32_IN(type, steps, low, UINT32_MAX), F64(type, step0), F64(type, step_rate)
#define WORK_RANGES(type)                                                                                              \
    COUNT(type, n_ranges, 1, WIRE_RANGES_MAX), LIST(type, ranges, n_ranges, wire_range_fields, WIRE_RANGES_MAX)

struct msg_spec {
    const struct field *fields;
    /* Check across fields (NULL: there is none). Returns the reason why the body is invalid, or NULL. */
    const char *(*check)(const void *body);
};

/* NULL for an unknown number. */
const struct msg_spec *msg_spec_of(unsigned type);

#endif
