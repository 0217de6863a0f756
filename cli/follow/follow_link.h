/* The connection of a follower: it asks a coordinator for the newest model, and reads objects by FETCH, without a place
 * in the run. docs/protocol.md has the messages. One thread. */
#ifndef CLI_FOLLOW_LINK_H
#define CLI_FOLLOW_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "wire/transport.h"

enum { FOLLOW_WINDOW = 8 }; /* FETCHes under way */

struct follow_asked {
    uint64_t id, offset, sent_us;
};

struct follow_link {
    struct transport *t; /* NULL: closed */
    struct transport_address address;
    unsigned connected;                       /* number of the connection at the last request */
    uint64_t ids;                             /* of FETCHes */
    uint32_t want;                            /* bytes of the next FETCH: as many as do not wait long in the line */
    uint64_t grown_id;                        /* `want` grows again with a reply to a later FETCH */
    struct follow_asked asked[FOLLOW_WINDOW]; /* [n] in order */
    uint32_t n;
    uint64_t received; /* bytes of objects so far */
    uint8_t frame[WIRE_HEADER + 256];
};

/* Takes the bytes of an object in order. `total`: of the whole object. */
typedef enum status follow_sink_fn(void *ctx, uint64_t offset, const uint8_t *data, size_t size, uint64_t total,
                                   struct err *err);

/* Dials `address`, which is copied. Errors of transport_zmq_dial. */
enum status follow_link_open(struct follow_link *l, const struct transport_address *address,
                             struct err *err) MUST_CHECK;
/* Accepts a zeroed or closed link. */
void follow_link_close(struct follow_link *l);
/* Asks for the newest model. CLOSED: no answer, err says why; INVALID: the line cannot be right; REFUSED; INTERRUPTED.
 */
enum status follow_link_ask(struct follow_link *l, struct msg_model_reply *out, struct err *err) MUST_CHECK;
/* Reads an object. NOTFOUND: it does not exist (any more); CLOSED: the coordinator is silent; INTERRUPTED; errors of
 * the sink. */
enum status follow_link_fetch(struct follow_link *l, enum fetch_kind kind, uint32_t index, uint64_t version,
                              follow_sink_fn *sink, void *ctx, struct err *err) MUST_CHECK;
/* Waits; the connection stays alive. INTERRUPTED. */
enum status follow_link_idle(struct follow_link *l, uint64_t us, struct err *err) MUST_CHECK;

#endif
