/* Common base of the ZeroMQ listener and dialler.
 *
 * Each transport owns a ZeroMQ context. So each listener has its own key check (ZAP is per context) and closing one
 * transport never waits for another. */
#ifndef WIRE_TRANSPORT_ZMQ_H
#define WIRE_TRANSPORT_ZMQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#include "common/base/status.h"
#include "wire/transport.h"

enum { ZMQ_BASE_SOCKETS = 4, ZMQ_BASE_MAXRT_MS = 30000 };

struct zmq_base {
    struct transport transport; /* first: a struct transport * is a struct zmq_base * */
    void *context;
    int wake_fd;
    uint64_t sent, received;
};

/* One integer option of a socket, for tables. */
struct zmq_option {
    int name, value;
};

enum status zmq_base_init(struct zmq_base *base, const struct transport_ops *ops, struct err *err) MUST_CHECK;
/* The caller has closed all sockets. Waits until their queued messages are sent, at most their linger time. */
void zmq_base_finish(struct zmq_base *base);
/* A socket with the common options and those of `more` (ended by {0, 0}); the caller closes it. NULL: err is filled. */
void *zmq_base_socket(struct zmq_base *base, int type, const struct zmq_option *more, struct err *err) MUST_CHECK;
/* Wait until a socket of sockets[n] is readable, a wake-up, a signal or the timeout. True when a socket is readable. n
 * <= ZMQ_BASE_SOCKETS. */
bool zmq_base_wait(struct zmq_base *base, void *const *sockets, int n, uint64_t timeout_us);
/* Receive one part into an initialised message, without waiting. AGAIN: there is none; IO. */
enum status zmq_part_recv(zmq_msg_t *part, void *socket) MUST_CHECK;
/* Read and drop the remaining parts of a message. */
void zmq_parts_drop(zmq_msg_t *part, void *socket);

/* transport_ops.wake and .bytes */
void zmq_base_wake(struct transport *t);
void zmq_base_bytes(const struct transport *t, uint64_t *sent_p, uint64_t *received_p);

#endif
