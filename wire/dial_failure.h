/* Why a worker cannot reach its coordinator: one line for the user. The functions block; any thread may call them. */
#ifndef WIRE_DIAL_FAILURE_H
#define WIRE_DIAL_FAILURE_H

#include <stdint.h>

#include "common/base/status.h"
#include "wire/transport.h"

/* What a dialler saw since it was opened or last connected (struct transport, `failure`). A larger value says more. */
enum dial_failure {
    DIAL_NONE,
    DIAL_SLOW,          /* neither connected nor refused for a second */
    DIAL_NO_CONNECTION, /* refused, no route, or no answer: dial_failure_explain tells which */
    DIAL_CLOSED,        /* the other side repeatedly closed the connection in the handshake */
    DIAL_REFUSED_KEY,   /* the coordinator does not know the worker's key */
};

/* Time for dial_failure_explain: a relay or tunnel in between passes the greeting after its own round trip. */
enum { DIAL_EXPLAIN_US = 3500000 };

/* Find the reason with a plain TCP connection, which takes up to `timeout_us`, longer over a long round trip, and
 * `seen` by the dialler. err says what is wrong and what to do.
 *
 * - INVALID: the join line is wrong (no such host, another program at the port, wrong keys): a retry does not help.
 * - CLOSED: it may pass (refused, no route, no answer, closed at once).
 * - AGAIN: DNS does not answer; or the caller was interrupted by a signal.
 * - OK: the address is a coordinator's, as far as a stranger can see. err is not filled. */
enum status dial_failure_explain(const struct transport_address *address, enum dial_failure seen, uint64_t timeout_us,
                                 struct err *err) MUST_CHECK;

#endif
