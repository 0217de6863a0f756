/* The worker's connection, with a thread of its own: it sends what the compute thread queued, queues what arrives, and
 * sends heartbeats from `heartbeat`, whatever the compute thread is doing. All queues are bounded and allocated at the
 * start: a full outbox answers AGAIN, a full inbox drops (everything is asked for again). */
#ifndef WORKER_LINK_H
#define WORKER_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "wire/msg.h"
#include "wire/transport.h"
#include "worker/link/heartbeat.h"

struct link;

/* Takes over the transport (closed with the link, also on failure). `heartbeat` is borrowed. */
enum status link_open(struct link **link_p, struct transport *transport, struct heartbeat *heartbeat,
                      struct err *err) MUST_CHECK;
/* The end is near: a lost connection is not worth a warning any more. Any thread or signal handler may call it. */
void link_expect_end(struct link *link);
/* Sends what is queued for at most flush_us, then closes. NULL is allowed. */
void link_close(struct link *link, uint64_t flush_us);

/* The compute thread. m is encoded before it returns. AGAIN: queue full. */
enum status link_send(struct link *link, enum wire_lane lane, const struct msg *m) MUST_CHECK;
/* The next message, waiting up to timeout_us. AGAIN: none came. m borrows from the queue until the next call. */
enum status link_recv(struct link *link, uint64_t timeout_us, enum wire_lane *lane_p, struct msg *m) MUST_CHECK;
/* transport.connected */
unsigned link_connected(const struct link *link);
/* Bytes on the socket so far. */
void link_bytes(struct link *link, uint64_t *sent_p, uint64_t *received_p);

#endif
