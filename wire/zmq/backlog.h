/* Limits the bytes that ZeroMQ has queued for sending, per connection and in total.
 *
 * ZeroMQ's own limits count messages, and a chunk is as large as a thousand heartbeats. Each message is a
 * block, which several connections may share. ZeroMQ returns a connection's reference when the message is written to
 * the socket or the connection is gone; until then it counts for this connection.
 *
 * - A connection may queue a quarter of the bytes that are free in total. One slow reader gets a long queue; n readers
 *   that fill together get about BACKLOG_BYTES / (n + 4) each.
 * - A connection with an empty queue may always queue one message: stalled readers never stop the others.
 * - Total: at most BACKLOG_BYTES and one message per connection. */
#ifndef WIRE_BACKLOG_H
#define WIRE_BACKLOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#include "common/base/status.h"
#include "wire/block.h"
#include "wire/zmq/peers.h"

enum { BACKLOG_BYTES = 64 << 20 };

/* Zeroed: empty. Must outlive the ZeroMQ context, which returns blocks from its own threads. */
struct backlog {
    atomic_size_t total;
    atomic_size_t queued[PEERS_MAX]; /* by the connection's slot (peers_slot) */
};

/* Make *msg with a reference to the block, whose bytes count until ZeroMQ or zmq_msg_close releases it. AGAIN: the
 * connection's queue is full; NOMEM. */
enum status backlog_message(struct backlog *b, unsigned slot, struct wire_block *block, zmq_msg_t *msg) MUST_CHECK;
/* May the connection queue `size` more bytes? */
bool backlog_admits(const struct backlog *b, unsigned slot, size_t size);

#endif
