/* Transport: moves whole encoded messages between peers on two lanes.
 *
 * - The vtable has two implementations: ZeroMQ (wire/zmq/transport_zmq.c: DEALER to ROUTER over TCP, with CURVE) and
 * virtual time for the simulation (tests/lib).
 * - One thread owns a transport; only `wake`, `ending` and `connected` may be used from other threads.
 * - Delivery is at most once, in order per peer and lane while a connection lasts. */
#ifndef WIRE_TRANSPORT_H
#define WIRE_TRANSPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "wire/block.h"
#include "wire/msg.h"

struct transport;

/* What the kernel knows of a connection. */
struct transport_path {
    uint64_t acked, received; /* bytes that the other side acknowledged, and that arrived from it */
    bool unacked;             /* bytes are on their way, and not acknowledged */
    uint32_t rtt_us;          /* round trip; a relay hides the path behind it */
};

struct transport_ops {
    /* Queue one message of `size` bytes (copied). AGAIN: the lane's queue is full, try later; CLOSED: unknown peer. A
     * dialler has one peer, 0. A listener numbers its peers itself: one id per connection, never reused. One worker has
     * two connections, control and bulk. */
    enum status (*send)(struct transport *t, uint64_t peer, enum wire_lane lane, const uint8_t *data, size_t size);
    /* The same without a copy: the transport keeps a reference until the block is sent. NULL: there is only `send`. */
    enum status (*send_block)(struct transport *t, uint64_t peer, enum wire_lane lane, struct wire_block *block);
    /* Wait up to timeout_us for a message (0: return at once). AGAIN: no message (timeout, wake or signal). On OK
     * *data_p is borrowed and valid until the next call. */
    enum status (*recv)(struct transport *t, uint64_t timeout_us, uint64_t *peer_p, enum wire_lane *lane_p,
                        const uint8_t **data_p, size_t *size_p);
    /* Make a concurrent recv return; the only function another thread or a signal handler may call. */
    void (*wake)(struct transport *t);
    /* Close a connection. A listener: the peer's connection; the number is unknown from then on, and unread messages of
     * this number are lost. The partner may connect again as a new peer. A dialler (peer 0): both lanes, if
     * they are connected, and it connects again at once. An unknown peer is ignored. */
    void (*drop)(struct transport *t, uint64_t peer);
    /* A listener: copy the public key that the connection of this peer proved to own. False: the peer is unknown. */
    bool (*key)(struct transport *t, uint64_t peer, uint8_t key[WIRE_KEY]);
    /* The connection of a listener's peer, or the bulk connection of a dialler (peer 0). False: unknown. NULL: always.
     */
    bool (*path)(struct transport *t, uint64_t peer, struct transport_path *out);
    /* Bytes sent and received on the sockets so far, including the transport's frame headers. */
    void (*bytes)(const struct transport *t, uint64_t *sent_p, uint64_t *received_p);
    void (*close)(struct transport *t);
};

struct transport {
    const struct transport_ops *ops;
    /* Set by any thread or signal handler when the program is about to end. From then on the transport does not log
     * lost connections. */
    atomic_bool ending;
    /* Number of times a dialler's control lane connected. Messages sent before a new connection may be lost. Any thread
     * may read it; it is incremented before the first message of the new connection is received. */
    atomic_uint connected;
    /* Number of times both lanes of a dialler were connected after at least one was not. */
    atomic_uint both_connected;
    /* enum dial_failure (wire/dial_failure.h): what a dialler's control lane saw since it was opened or last connected.
     * Any thread may read it. */
    atomic_uint failure;
    /* A dialler: round trip of the newest connection, in microseconds, as the kernel measured it. 0: unknown. Any
     * thread may read it. */
    atomic_uint rtt_us;
};

/* Bytes of an encoded message of `size` bytes on its connection, including ZMTP's framing and CURVE's box. */
uint64_t transport_wire_bytes(size_t size);

/* Address of the coordinator, parsed from the join line: "tcp://HOST:PORT/SERVERKEY/SECRET", or
 * "tcp://HOST:PORT/SERVERKEY" for a worker whose key is enrolled (hex, 64 digits each). */
struct transport_address {
    char endpoint[256];           /* tcp://HOST:PORT */
    uint8_t server_key[WIRE_KEY]; /* public key of the coordinator */
    uint8_t secret[WIRE_KEY];     /* secret key that may enrol workers and ask for the status */
    bool has_secret;
    bool quiet;     /* log no failures before the first connection: the caller does */
    bool fail_fast; /* if DNS does not answer, return AGAIN instead of leaving the retries to ZeroMQ */
};

/* Number of leading bytes of `text` that may be printed or logged. It stops before the first part between slashes that
 * looks like a key, also a mistyped one (16 or more hex digits in a row). */
int transport_address_shown_length(const char *text);
/* INVALID, with the reason in err, when `text` is neither form. */
enum status transport_address_parse(struct transport_address *a, const char *text, struct err *err) MUST_CHECK;
/* Write the join line to out[cap], terminated. */
void transport_address_format(const struct transport_address *a, char *out, size_t cap);

/* A pair of CURVE keys. */
struct transport_key {
    uint8_t public_key[WIRE_KEY], secret[WIRE_KEY];
};

/* Makes a new pair. UNSUPPORTED: ZeroMQ has no CURVE. */
enum status transport_key_make(struct transport_key *key, struct err *err) MUST_CHECK;
/* Computes key->public_key from key->secret. */
enum status transport_key_complete(struct transport_key *key, struct err *err) MUST_CHECK;

/* What a listener asks of its connections. Each one proves that it owns a key. `admits` says whether that key may
 * connect; the transport calls it in a thread of its own. */
struct transport_access {
    uint8_t server_secret[WIRE_KEY];
    bool (*admits)(void *ctx, const uint8_t key[WIRE_KEY]);
    void *ctx;
};

/* Listen on `endpoint` (port * = any free port). Control and bulk arrive on the same port.
 *
 * - bound[cap] gets the endpoint with its real port.
 * - Errors: EXISTS: the port is taken; NOTFOUND: no such host; INVALID, IO, NOMEM, UNSUPPORTED (no CURVE).
 * - close waits up to 1 s for queued messages to be sent. */
enum status transport_zmq_listen(struct transport **t_p, const char *endpoint, const struct transport_access *access,
                                 char *bound, size_t cap, struct err *err) MUST_CHECK;

/* The worker that dials. */
struct transport_worker {
    struct transport_key key;
    char name[WIRE_NAME_MAX];
    bool fresh; /* the key was made just now: no coordinator knows it */
};

/* The first step of transport_zmq_dial: resolve the host and check the address, with the same errors. A caller that
 * creates files before it dials calls this first. */
enum status transport_zmq_resolve(const struct transport_address *address, bool *ipv6_p, struct err *err) MUST_CHECK;
/* Dial the coordinator. The transport connects and reconnects in the background and logs failures, as long as the
 * caller keeps calling recv.
 *
 * - `worker` dials with its own key. If the coordinator does not know it, and the address has a secret, the transport
 *   enrols it first (wire/zmq/zmq_enrol.h). A refusal of ENROL arrives as a message.
 * - `worker` NULL: a client that only asks for the status, with the secret of the address.
 * - NOTFOUND: no such host (DNS may take a while); AGAIN: `fail_fast` is set and DNS does not answer; INVALID: the
 *   address has no secret, and `worker` is NULL. */
enum status transport_zmq_dial(struct transport **t_p, const struct transport_address *address,
                               const struct transport_worker *worker, struct err *err) MUST_CHECK;

#endif
