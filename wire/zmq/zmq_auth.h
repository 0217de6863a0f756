/* Authentication: a ZAP 1.0 handler (ZeroMQ RFC 27) that asks the owner of a listener about each CURVE public key, and
 * the sockets' CURVE options. The key goes into the "User-Id" of every message of the connection, in hex. */
#ifndef WIRE_ZMQ_AUTH_H
#define WIRE_ZMQ_AUTH_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

#include "common/base/status.h"
#include "wire/transport.h"
#include "wire/zmq/zmq_guard.h"

struct zmq_auth {
    void *socket; /* owned by the thread after zmq_auth_start */
    pthread_t thread;
    struct transport_access access;
    struct strangers refused; /* the thread's */
};

/* Start the thread that answers the key checks of every socket in `context`. Call it before the first bind. IO. */
enum status zmq_auth_start(struct zmq_auth *auth, void *context, const struct transport_access *access,
                           struct err *err) MUST_CHECK;
/* Wait for the thread to end. Call it after zmq_ctx_shutdown, which ends the thread. */
void zmq_auth_join(struct zmq_auth *auth);

/* Set the CURVE keys of a socket. UNSUPPORTED: libzmq without CURVE; INVALID: bad keys. */
enum status zmq_auth_server(void *socket, const uint8_t secret[32], struct err *err) MUST_CHECK;
enum status zmq_auth_client(void *socket, const uint8_t server_key[32], const struct transport_key *own,
                            struct err *err) MUST_CHECK;

/* Copy the public key of the connection that a message came from. False: the message has none. */
bool zmq_auth_key(zmq_msg_t *part, uint8_t key[WIRE_KEY]);

#endif
