/* What ZeroMQ still has to send, in bytes: its own limits count messages, and a chunk is as large as a thousand
 * heartbeats. Messages are copied into blocks that ZeroMQ hands back once they are on the socket or their connection
 * is gone; until then they count.
 *
 * A connection may queue a quarter of what all together leave free. So one reader that is slow gets a long queue, many
 * get short ones (n that fill together, about BACKLOG_BYTES / (n + 4) each), and one message may always be queued where
 * none is: those that stall never stop the others. All together: BACKLOG_BYTES and one message a connection. */
#ifndef WIRE_BACKLOG_H
#define WIRE_BACKLOG_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#include "common/base/status.h"
#include "wire/peers.h"

enum { BACKLOG_BYTES = 64 << 20 };

/* Zeroed: empty. Must outlive the ZeroMQ context: that hands blocks back in threads of its own. */
struct backlog {
    atomic_size_t total;
    atomic_size_t queued[PEERS_MAX]; /* by slot of the connection, as peers_slot counts them */
};

/* A message with a copy of data[size], counted until ZeroMQ lets go of it (zmq_msg_close lets go of it, too). AGAIN:
 * this connection has enough queued; NOMEM. */
enum status backlog_message(struct backlog *b, unsigned slot, const uint8_t *data, size_t size,
                            zmq_msg_t *msg) MUST_CHECK;

#endif
