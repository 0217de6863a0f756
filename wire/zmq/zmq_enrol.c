#include "wire/zmq/zmq_enrol.h"

#include <assert.h>
#include <string.h>

enum {
    REPEAT_US = 1000 * 1000,
    REFUSED_WAIT_US = 5000 * 1000, /* a name may become free */
};

enum status zmq_enrol_init(struct zmq_enrol *e, const struct transport_worker *worker, bool has_secret, struct err *err)
{
    *e = (struct zmq_enrol){.possible = worker && has_secret};
    if (!e->possible) return STATUS_OK;
    struct msg m = {.type = MSG_ENROL};
    memcpy(e->key, worker->key.public_key, WIRE_KEY);
    memcpy(m.enrol.key, e->key, WIRE_KEY);
    memcpy(m.enrol.name, worker->name, WIRE_NAME_MAX);
    e->active = worker->fresh;
    if (msg_encode(&m, e->frame, sizeof e->frame, &e->size) == STATUS_OK) return STATUS_OK;
    return err_set(err, STATUS_INVALID, "the worker's name is empty or has control characters");
}

const uint8_t *zmq_enrol_take(struct zmq_enrol *e, uint64_t now_us, size_t *size_p)
{
    if (!e->active || now_us < e->due_us) return NULL;
    assert(e->size);
    e->due_us = now_us + REPEAT_US;
    *size_p = e->size;
    return e->frame;
}

enum zmq_enrol_answer zmq_enrol_on_message(struct zmq_enrol *e, uint64_t now_us, const uint8_t *data, size_t size)
{
    assert(e->active);
    /* Decode the two answers only: a whole struct msg is large. wire/frame.h: byte 5 is the type. */
    uint8_t type = size > 5 ? data[5] : 0;
    if (type == MSG_REFUSE) {
        e->due_us = now_us + REFUSED_WAIT_US;
        return ENROL_REFUSED;
    }
    bool own = type == MSG_ENROLLED && size == WIRE_HEADER + WIRE_KEY && !memcmp(data + WIRE_HEADER, e->key, WIRE_KEY);
    return own ? ENROL_DONE : ENROL_OTHER;
}
