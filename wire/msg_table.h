/* The fields of every message, in the order of their bytes; docs/protocol.md explains them. */
#ifndef WIRE_MSG_TABLE_H
#define WIRE_MSG_TABLE_H

#include "wire/field.h"
#include "wire/msg.h"

struct msg_spec {
    const struct field *fields;
    /* What one field alone cannot tell (NULL: nothing): the reason why the body makes no sense, or NULL. */
    const char *(*check)(const void *body);
};

/* NULL for an unknown number. */
const struct msg_spec *msg_spec_of(unsigned type);

#endif
