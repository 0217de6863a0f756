/* Guard of a listening socket: a thread that keeps silent connections from using up the descriptors.
 *
 * - The guard reads the socket's monitor and knows every open connection. A connection is pending until its CURVE
 *   handshake is finished; ZeroMQ itself closes it after ZMQ_HANDSHAKE_IVL.
 * - A handshake over a long path, or through a relay, takes long. A handshake is late after GUARD_LATE_US, or 8 round
 *   trips of its connection. Of each address only the newest GUARD_LATE_MAX late ones stay.
 * - At most GUARD_PENDING_MAX connections may be pending, and fewer if the descriptors become scarce. Beyond that the
 *   guard closes the oldest pending connection of the address that has the most.
 * - It logs connections that end without a finished handshake, once a minute. */
#ifndef WIRE_ZMQ_GUARD_H
#define WIRE_ZMQ_GUARD_H

#include <stdint.h>

#include "common/base/status.h"

enum { GUARD_PENDING_MAX = 1024, GUARD_LATE_MAX = 8, GUARD_LATE_US = 3000000 };

/* --- the line about refused connections ----------------------------------------------------------------------------
 */

/* Counts refused connections and logs them at most once a minute: the first at once, later ones with their number. One
 * thread owns a counter. Zeroed except for `reason`: none counted. */
struct strangers {
    const char *reason; /* end of the line, for example "unknown key" */
    uint64_t count;     /* since the last line */
    uint64_t next_us;   /* earliest time of the next line */
    char address[64];   /* of the newest connection */
};

/* Count one connection. Logs it if a line is due. */
void strangers_add(struct strangers *s, const char *address, uint64_t now_us);
/* Log the connections that were counted since the last line, if a line is due. */
void strangers_log(struct strangers *s, uint64_t now_us);

/* --- the guard ---------------------------------------------------------------------------------------------------- */

struct zmq_guard;

/* Start the thread. Call it before the socket binds. `handshake_ms` is the socket's ZMQ_HANDSHAKE_IVL. IO, NOMEM. */
enum status zmq_guard_start(struct zmq_guard **guard_p, void *context, void *socket, int handshake_ms,
                            struct err *err) MUST_CHECK;
/* Wait for the thread to end. Call it after zmq_ctx_shutdown, which ends the thread. NULL is allowed. */
void zmq_guard_join(struct zmq_guard *guard);

#endif
