/* Who may connect: a ZAP 1.0 handler (ZeroMQ RFC 27) that admits one CURVE public key, and the keys themselves. */
#ifndef WIRE_ZMQ_AUTH_H
#define WIRE_ZMQ_AUTH_H

#include <pthread.h>
#include <stdint.h>

#include "common/base/status.h"

struct zmq_auth {
    void *socket; /* owned by the thread once it runs */
    pthread_t thread;
    uint8_t admitted[32];
};

/* Answer the key checks of every socket in `context`; call it before the first bind. */
enum status zmq_auth_start(struct zmq_auth *auth, void *context, const uint8_t admitted[32],
                           struct err *err) MUST_CHECK;
/* After zmq_ctx_shutdown, which ends the thread. */
void zmq_auth_join(struct zmq_auth *auth);

/* Set CURVE keys on a socket. */
enum status zmq_auth_server(void *socket, const uint8_t secret[32], struct err *err) MUST_CHECK;
enum status zmq_auth_client(void *socket, const uint8_t server_key[32], const uint8_t secret[32],
                            struct err *err) MUST_CHECK;

#endif
