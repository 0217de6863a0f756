/* What the kernel knows of a TCP connection of ZeroMQ (TCP_INFO, Linux 4.19 or newer). */
#ifndef WIRE_ZMQ_PATH_H
#define WIRE_ZMQ_PATH_H

#include <stdbool.h>

#include "wire/transport.h"

/* False: the descriptor belongs to no TCP connection, or the kernel is too old. ZeroMQ's thread may have closed it, and
 * another connection of this process may have the number now: the values are hints. */
bool zmq_path_read(int fd, struct transport_path *out);
/* Bytes that this side sent, each counted once. */
bool zmq_path_sent(int fd, uint64_t *sent_p);
/* True when the descriptor is a connection of this transport to `endpoint`: it has the port and the transport's own
 * time limit. The number may belong to another file since ZeroMQ reported it. */
bool zmq_path_is_own(int fd, const char *endpoint);

#endif
