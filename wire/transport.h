/* Transport: moves whole encoded messages between peers on two lanes. The vtable has a ZeroMQ implementation
 * (wire/transport_zmq.c: DEALER to ROUTER over TCP, CURVE) and one in virtual time for the simulation (tests/lib).
 *
 * One thread owns a transport. Delivery is at most once, in order per peer and lane while a connection lasts. */
#ifndef WIRE_TRANSPORT_H
#define WIRE_TRANSPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "wire/msg.h"

struct transport;

struct transport_ops {
    /* Queue one message of `size` bytes (copied). AGAIN: the lane's queue is full, try later; CLOSED: unknown peer.
     * A dialler has one peer, 0. A listener's peer ids are its own, never reused, one per connection (so one worker has
     * two: control and bulk). */
    enum status (*send)(struct transport *t, uint64_t peer, enum wire_lane lane, const uint8_t *data, size_t size);
    /* Wait up to timeout_us for a message (0: only look). AGAIN: nothing came (timeout, wake or signal). On OK *data_p
     * is valid until the next call. */
    enum status (*recv)(struct transport *t, uint64_t timeout_us, uint64_t *peer_p, enum wire_lane *lane_p,
                        const uint8_t **data_p, size_t *size_p);
    /* Make a concurrent recv return; the only function another thread or a signal handler may call. */
    void (*wake)(struct transport *t);
    /* Bytes on the socket so far, frame headers of the transport included. */
    void (*bytes)(const struct transport *t, uint64_t *sent_p, uint64_t *received_p);
    void (*close)(struct transport *t);
};

struct transport {
    const struct transport_ops *ops;
    /* Set by any thread or signal handler when the end is near: from then on a connection that is lost is no news. */
    atomic_bool ending;
    /* How often a dialler's control lane came to be connected: at each time, messages sent before may be lost. Any
     * thread may read it; it counts a connection before anything that this one brings is received. */
    atomic_uint connected;
};

/* Where and as whom: "tcp://HOST:PORT" or "tcp://HOST:PORT/SERVERKEY/SECRET" (hex, 64 digits each): the join line.
 * Without keys the connection is plain, allowed on loopback addresses only. */
struct transport_address {
    char endpoint[256];     /* tcp://HOST:PORT */
    uint8_t server_key[32]; /* CURVE public key of the coordinator */
    uint8_t secret[32];     /* CURVE secret key all enrolled workers of the run share */
    int curve;              /* 0 or 1 */
    bool hurried;           /* a name service that does not answer is AGAIN, and not left to ZeroMQ to try on */
};

/* How much of what was given for an address may be repeated on a screen or in a log: not what looks like keys. */
int transport_address_shown(const char *text);
enum status transport_address_parse(struct transport_address *a, const char *text, struct err *err) MUST_CHECK;
void transport_address_format(const struct transport_address *a, char *out, size_t cap);

/* Keys of a run: made once, kept by the coordinator (run folder, mode 0600). */
struct transport_keys {
    uint8_t server_public[32], server_secret[32], worker_public[32], worker_secret[32];
};

enum status transport_keys_make(struct transport_keys *keys, struct err *err) MUST_CHECK;

/* Listen on `endpoint` (port * = any free one); control and bulk arrive on the same port. keys NULL: plain, refused
 * (INVALID) off loopback. *bound (cap bytes) gets the endpoint with its real port. EXISTS: the port is taken; NOTFOUND:
 * no such host. close waits up to a second for what is queued. */
enum status transport_zmq_listen(struct transport **t_p, const char *endpoint, const struct transport_keys *keys,
                                 char *bound, size_t cap, struct err *err) MUST_CHECK;
/* What dial does first: look the host up, and refuse what it refuses. For those who make something before they dial. */
enum status transport_zmq_look_up(const struct transport_address *address, bool *ipv6_p, struct err *err) MUST_CHECK;
/* Dial; connects and reconnects in the background, for as long as recv is called now and then, and logs why it cannot.
 * NOTFOUND when there is no such host (looking it up may take a while), AGAIN when a hurried one cannot know, INVALID
 * for a plain address off loopback. uuid makes both connections recognisable across reconnects. */
enum status transport_zmq_dial(struct transport **t_p, const struct transport_address *address,
                               const uint8_t uuid[WIRE_UUID], struct err *err) MUST_CHECK;

#endif
