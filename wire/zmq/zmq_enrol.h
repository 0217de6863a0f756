/* Enrolment of a worker, as a part of its dialler.
 *
 * - A coordinator admits the keys that are enrolled. A worker with another key connects with the secret of the join
 * line, sends ENROL over control, and gets ENROLLED or REFUSE. Then it connects again with its own key.
 * - The dialler does so for a new key, and whenever the coordinator refuses the worker's key.
 * - The layers above see an outage meanwhile: their messages wait. */
#ifndef WIRE_ZMQ_ENROL_H
#define WIRE_ZMQ_ENROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/transport.h"

enum { ENROL_FRAME_MAX = WIRE_HEADER + WIRE_KEY + 2 + WIRE_NAME_MAX };

struct zmq_enrol {
    bool possible; /* there are both a key and a secret */
    bool active;   /* the connection uses the secret */
    uint64_t due_us;
    uint8_t key[WIRE_KEY]; /* to enrol */
    uint8_t frame[ENROL_FRAME_MAX];
    size_t size;
};

/* Prepare the message. `worker` NULL: enrolment is not possible. INVALID: the name is not clean text. */
enum status zmq_enrol_init(struct zmq_enrol *e, const struct transport_worker *worker, bool has_secret,
                           struct err *err) MUST_CHECK;
/* The message to send over control now; NULL: not due. Call it while control is connected. */
const uint8_t *zmq_enrol_take(struct zmq_enrol *e, uint64_t now_us, size_t *size_p);

enum zmq_enrol_answer { ENROL_OTHER, ENROL_REFUSED, ENROL_DONE };
/* What a message over control means for the enrolment. */
enum zmq_enrol_answer zmq_enrol_on_message(struct zmq_enrol *e, uint64_t now_us, const uint8_t *data, size_t size);

#endif
