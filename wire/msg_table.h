/* Tables of the fields of every message, in the order of their bytes; docs/protocol.md explains them. */
#ifndef WIRE_MSG_TABLE_H
#define WIRE_MSG_TABLE_H

#include "wire/field.h"
#include "wire/msg.h"

struct msg_spec {
    const struct field *fields;
    /* Check across fields (NULL: there is none). Returns the reason why the body is invalid, or NULL. */
    const char *(*check)(const void *body);
};

/* NULL for an unknown number. */
const struct msg_spec *msg_spec_of(unsigned type);

#endif
