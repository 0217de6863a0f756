/* The worker's connection. Its thread sends queued messages, queues arriving ones, and sends heartbeats while the
 * compute thread is busy. All queues are bounded and allocated by link_open: a full outbox returns AGAIN, a full inbox
 * drops the message (the state machine requests it again). */
#ifndef WORKER_LINK_H
#define WORKER_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "wire/msg.h"
#include "wire/transport.h"
#include "worker/link/heartbeat.h"

struct link;

/* Takes ownership of the transport, also on failure. `heartbeat` is borrowed. NOMEM. */
enum status link_open(struct link **link_p, struct transport *transport, struct heartbeat *heartbeat,
                      struct err *err) MUST_CHECK;
/* From here on a lost connection is expected and not logged as a warning. Safe in any thread and signal handler. */
void link_expect_end(struct link *link);
/* Sends queued messages for at most flush_us, then closes. NULL is allowed. */
void link_close(struct link *link, uint64_t flush_us);

/* --- the thread that has the session ------------------------------------------------------------------------------ */
/* Encodes m into the outbox. AGAIN: it is full. */
enum status link_send(struct link *link, enum wire_lane lane, const struct msg *m) MUST_CHECK;
/* Waits up to timeout_us for the next message. AGAIN: none arrived. *m borrows from the inbox until the next call. */
enum status link_recv(struct link *link, uint64_t timeout_us, enum wire_lane *lane_p, struct msg *m) MUST_CHECK;
/* Waits up to timeout_us until there is a message, and leaves it in the inbox. Any thread, while the link is open. */
void link_wait(struct link *link, uint64_t timeout_us);
/* enum dial_failure: why there is no connection yet. */
unsigned link_failure(const struct link *link);
/* Counters of connections: transport.connected and transport.both_connected. */
unsigned link_connected(const struct link *link);
unsigned link_both_connected(const struct link *link);
/* Bytes sent and received on the socket so far. */
void link_bytes(struct link *link, uint64_t *sent_p, uint64_t *received_p);

#endif
