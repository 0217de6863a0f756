#include "wire/status_client.h"

#include <string.h>

#include "common/clock.h"
#include "wire/msg.h"

enum { ASK_EVERY_US = 1000 * 1000 };

/* AGAIN for messages that answer another question. */
static enum status read_answer(const uint8_t *data, size_t size, char *json, size_t cap, struct err *err)
{
    struct msg m;
    TRY(msg_decode(&m, data, size, err));
    if (m.type == MSG_REFUSE) return err_set(err, STATUS_REFUSED, "the coordinator refuses: %s", m.refuse.text);
    if (m.type != MSG_STATUS_REPLY) return STATUS_AGAIN;
    size_t n = strlen(m.status_reply.json) + 1;
    if (n > cap) return err_set(err, STATUS_LIMIT, "the status of %zu bytes does not fit", n);
    memcpy(json, m.status_reply.json, n);
    return STATUS_OK;
}

static enum status ask(struct transport *t, uint64_t timeout_us, char *json, size_t cap, struct err *err)
{
    uint8_t question[WIRE_HEADER];
    size_t size;
    TRY(msg_encode(&(struct msg){.type = MSG_STATUS}, question, sizeof question, &size));
    uint64_t start = clock_monotonic_us(), asked = 0;
    for (uint64_t now = start; now - start < timeout_us; now = clock_monotonic_us()) {
        if (now - start >= asked * ASK_EVERY_US) {
            enum status sent = t->ops->send(t, 0, WIRE_CONTROL, question, size);
            if (sent < 0) return err_set(err, sent, "cannot send: %s", status_text(sent));
            asked++;
        }
        uint64_t next = start + (asked * ASK_EVERY_US < timeout_us ? asked * ASK_EVERY_US : timeout_us), peer;
        enum wire_lane lane;
        const uint8_t *data;
        enum status status = t->ops->recv(t, next > now ? next - now : 0, &peer, &lane, &data, &size);
        if (status == STATUS_OK) status = read_answer(data, size, json, cap, err);
        if (status < 0) return status;
        if (status == STATUS_OK) return STATUS_OK;
    }
    return STATUS_AGAIN;
}

enum status status_ask(const struct transport_address *address, uint64_t timeout_us, char *json, size_t cap,
                       struct err *err)
{
    static const uint8_t nobody[WIRE_UUID];
    struct transport *t;
    TRY(transport_zmq_dial(&t, address, nobody, err));
    enum status status = ask(t, timeout_us, json, cap, err);
    t->ops->close(t);
    if (status == STATUS_AGAIN)
        status = err_set(err, STATUS_CLOSED,
                         "no answer from %s within %.1f s: is a coordinator running there, is this its join line?",
                         address->endpoint, (double)timeout_us / 1e6);
    return status;
}
