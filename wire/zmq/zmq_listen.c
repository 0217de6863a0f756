/* The coordinator's side of the transport: one ROUTER socket on one port.
 *
 * A peer's routing id contains its lane, so both lanes of all workers arrive on this socket. The listener reads
 * messages ahead into two small queues and returns control first. ROUTER takes turns among connections. So a control
 * message waits for at most one chunk of each worker, even when all bulk connections are full. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "wire/endpoint.h"
#include "wire/zmq/backlog.h"
#include "wire/zmq/peers.h"
#include "wire/zmq/transport_zmq.h"
#include "wire/zmq/zmq_auth.h"
#include "wire/zmq/zmq_guard.h"
#include "wire/zmq/zmq_path.h"

/* HANDSHAKE_MS: a connection without a finished handshake is closed after this time, because an idle one costs a
 * descriptor. The guard closes most of them sooner. BACKLOG: connections that the kernel keeps until they are
 * accepted. */
enum { AHEAD = 8, QUEUE_MESSAGES = 64, HANDSHAKE_MS = 30000, BACKLOG = 256, IO_THREADS_MAX = 8 };

struct ahead {
    struct {
        zmq_msg_t msg;
        uint64_t peer;
    } slots[AHEAD];
    unsigned first, count;
};

struct listener {
    struct zmq_base base;
    void *router;
    struct zmq_auth auth;
    bool authenticated; /* auth is started */
    struct zmq_guard *guard;
    struct peers peers;
    struct backlog backlog;
    struct ahead lanes[2];
    zmq_msg_t held; /* the message that the last recv returned */
};

/* On OK ZeroMQ owns the message; otherwise the caller closes it. */
static enum status send_parts(struct listener *l, struct peer *peer, zmq_msg_t *msg)
{
    int n;
    do n = zmq_send(l->router, peer->id.bytes, PEER_ID_BYTES, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) return STATUS_AGAIN;
    if (n < 0) return STATUS_CLOSED; /* the peer keeps its number: its last messages may still be unread */
    do n = zmq_msg_send(msg, l->router, ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n < 0 ? STATUS_IO : STATUS_OK;
}

static enum status listener_send_block(struct transport *t, uint64_t number, enum wire_lane lane,
                                       struct wire_block *block)
{
    struct listener *l = (struct listener *)t;
    struct peer *peer = peers_find(&l->peers, number);
    if (!peer) return STATUS_CLOSED;
    if (peer->lane != lane) return STATUS_INVALID;
    zmq_msg_t msg;
    TRY(backlog_message(&l->backlog, peers_slot(&l->peers, peer), block, &msg));
    enum status status = send_parts(l, peer, &msg);
    if (status != STATUS_OK) {
        zmq_msg_close(&msg);
        return status;
    }
    l->base.sent += transport_wire_bytes(block->size);
    return STATUS_OK;
}

static enum status listener_send(struct transport *t, uint64_t number, enum wire_lane lane, const uint8_t *data,
                                 size_t size)
{
    struct listener *l = (struct listener *)t;
    struct peer *peer = peers_find(&l->peers, number);
    if (peer && !backlog_admits(&l->backlog, peers_slot(&l->peers, peer), size)) return STATUS_AGAIN; /* no copy */
    struct wire_block *block = wire_block_new(size);
    if (!block) return STATUS_NOMEM;
    memcpy(block->data, data, size);
    block->size = size;
    enum status status = listener_send_block(t, number, lane, block);
    wire_block_drop(block);
    return status;
}

/* Read one message into its lane's queue. AGAIN: there is none. A message with a foreign routing id is dropped. The key
 * stands in the metadata of the second part; the routing id of the first may lack them. */
static enum status read_ahead(struct listener *l)
{
    zmq_msg_t part;
    zmq_msg_init(&part);
    enum status status = zmq_part_recv(&part, l->router);
    if (status != STATUS_OK || !zmq_msg_more(&part)) goto close_part;
    uint8_t id[PEER_ID_BYTES], key[WIRE_KEY];
    size_t id_size = zmq_msg_size(&part);
    memcpy(id, zmq_msg_data(&part), id_size < sizeof id ? id_size : sizeof id);
    TRY_GOTO(zmq_part_recv(&part, l->router), close_part);
    struct peer *peer = zmq_auth_key(&part, key) ? peers_hear(&l->peers, id, id_size, key) : NULL;
    l->base.received += transport_wire_bytes(zmq_msg_size(&part));
    if (!peer || zmq_msg_more(&part)) {
        zmq_parts_drop(&part, l->router);
        goto close_part;
    }
    peer->fd = zmq_msg_get(&part, ZMQ_SRCFD);
    struct ahead *a = &l->lanes[peer->lane];
    assert(a->count < AHEAD && a->first < AHEAD);
    unsigned at = (a->first + a->count++) % AHEAD;
    zmq_msg_init(&a->slots[at].msg);
    zmq_msg_move(&a->slots[at].msg, &part);
    a->slots[at].peer = peer->number;
close_part:
    zmq_msg_close(&part);
    return status;
}

static bool pop(struct listener *l, enum wire_lane lane, uint64_t *peer_p)
{
    struct ahead *a = &l->lanes[lane];
    if (!a->count) return false;
    zmq_msg_move(&l->held, &a->slots[a->first].msg);
    zmq_msg_close(&a->slots[a->first].msg);
    *peer_p = a->slots[a->first].peer;
    a->first = (a->first + 1) % AHEAD;
    a->count--;
    return true;
}

/* Forget the queued messages of one peer. */
static void discard(struct ahead *a, uint64_t number)
{
    unsigned n = a->count, kept = 0;
    for (unsigned i = 0; i < n; i++) {
        unsigned from = (a->first + i) % AHEAD, to = (a->first + kept) % AHEAD;
        if (a->slots[from].peer == number) {
            zmq_msg_close(&a->slots[from].msg);
            continue;
        }
        kept++;
        if (from == to) continue;
        zmq_msg_init(&a->slots[to].msg);
        zmq_msg_move(&a->slots[to].msg, &a->slots[from].msg);
        zmq_msg_close(&a->slots[from].msg);
        a->slots[to].peer = a->slots[from].peer;
    }
    a->count = kept;
}

/* ZeroMQ sees the end of the stream and closes the descriptor. If the connection broke since its last message, another
 * connection may have the descriptor: it is then closed in vain and opened again by its dialler. */
static void listener_drop(struct transport *t, uint64_t number)
{
    struct listener *l = (struct listener *)t;
    struct peer *peer = peers_find(&l->peers, number);
    if (!peer) return;
    discard(&l->lanes[peer->lane], number);
    if (peer->fd >= 0) shutdown(peer->fd, SHUT_RDWR);
    peers_forget(&l->peers, peer);
}

static bool listener_path(struct transport *t, uint64_t number, struct transport_path *out)
{
    struct listener *l = (struct listener *)t;
    const struct peer *peer = peers_find(&l->peers, number);
    return peer && zmq_path_read(peer->fd, out);
}

static bool listener_key(struct transport *t, uint64_t number, uint8_t key[WIRE_KEY])
{
    struct listener *l = (struct listener *)t;
    const struct peer *peer = peers_find(&l->peers, number);
    if (peer) memcpy(key, peer->key, WIRE_KEY);
    return peer;
}

static enum status listener_recv(struct transport *t, uint64_t timeout_us, uint64_t *peer_p, enum wire_lane *lane_p,
                                 const uint8_t **data_p, size_t *size_p)
{
    struct listener *l = (struct listener *)t;
    for (;;) {
        /* Reading ZMQ_EVENTS makes ZeroMQ notice newly readable connections. Otherwise, while data is queued, it checks
         * only after a hundred parts: a hundred chunks before a heartbeat. */
        int events;
        size_t events_size = sizeof events;
        zmq_getsockopt(l->router, ZMQ_EVENTS, &events, &events_size);
        enum status status = STATUS_OK;
        for (int i = 0; i < 2 * AHEAD && status == STATUS_OK; i++) {
            if (l->lanes[WIRE_CONTROL].count == AHEAD || l->lanes[WIRE_BULK].count == AHEAD) break;
            status = read_ahead(l);
        }
        if (status < 0) return status;
        for (int lane = WIRE_CONTROL; lane <= WIRE_BULK; lane++) {
            if (!pop(l, (enum wire_lane)lane, peer_p)) continue;
            assert(lane == WIRE_CONTROL || !l->lanes[WIRE_CONTROL].count); /* control first */
            *lane_p = (enum wire_lane)lane;
            *data_p = zmq_msg_data(&l->held);
            *size_p = zmq_msg_size(&l->held);
            return STATUS_OK;
        }
        if (!timeout_us || !zmq_base_wait(&l->base, &l->router, 1, timeout_us)) return STATUS_AGAIN;
        timeout_us = 0; /* a dropped message also ends the wait: the caller then calls again */
    }
}

static void listener_close(struct transport *t)
{
    struct listener *l = (struct listener *)t;
    for (int lane = WIRE_CONTROL; lane <= WIRE_BULK; lane++) {
        uint64_t peer;
        while (pop(l, (enum wire_lane)lane, &peer)) continue;
    }
    zmq_msg_close(&l->held);
    /* The monitor is closed first, as in the dialler: a lingering socket must not wait for a reader of its events. */
    if (l->router) {
        zmq_socket_monitor(l->router, NULL, 0);
        zmq_close(l->router);
    }
    zmq_ctx_shutdown(l->base.context);
    zmq_guard_join(l->guard);
    if (l->authenticated) zmq_auth_join(&l->auth);
    zmq_base_finish(&l->base);
    mem_free(l);
}

static enum status listener_bind(struct listener *l, const char *endpoint, const struct transport_access *access,
                                 char *bound, size_t cap, struct err *err)
{
    static const struct zmq_option options[] = {
        {ZMQ_ROUTER_HANDOVER, 1},
        {ZMQ_ROUTER_MANDATORY, 1},
        {ZMQ_SNDHWM, QUEUE_MESSAGES},
        {ZMQ_RCVHWM, QUEUE_MESSAGES},
        {ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS},
        {ZMQ_BACKLOG, BACKLOG},
        {0, 0},
    };
    struct endpoint e;
    struct endpoint_found found;
    TRY(endpoint_parse(&e, endpoint, true, err));
    enum status status = endpoint_find(&found, &e, err);
    if (status != STATUS_OK) return status == STATUS_AGAIN ? STATUS_NOTFOUND : status;
    l->router = zmq_base_socket(&l->base, ZMQ_ROUTER, options, err);
    if (!l->router) return STATUS_IO;
    TRY(zmq_auth_start(&l->auth, l->base.context, access, err));
    l->authenticated = true;
    TRY(zmq_auth_server(l->router, access->server_secret, err));
    TRY(zmq_guard_start(&l->guard, l->base.context, l->router, HANDSHAKE_MS, err));
    char numeric[sizeof found.numeric + 16];
    int ipv6 = found.ipv6;
    snprintf(numeric, sizeof numeric, "tcp://%s:%s", found.numeric, e.port);
    if (zmq_setsockopt(l->router, ZMQ_IPV6, &ipv6, sizeof ipv6) || zmq_bind(l->router, numeric) ||
        zmq_getsockopt(l->router, ZMQ_LAST_ENDPOINT, bound, &cap))
        return endpoint_bind_failed(endpoint, errno, zmq_strerror(errno), err);
    return STATUS_OK;
}

enum status transport_zmq_listen(struct transport **t_p, const char *endpoint, const struct transport_access *access,
                                 char *bound, size_t cap, struct err *err)
{
    static const struct transport_ops ops = {
        .send = listener_send,
        .send_block = listener_send_block,
        .recv = listener_recv,
        .wake = zmq_base_wake,
        .drop = listener_drop,
        .key = listener_key,
        .path = listener_path,
        .bytes = zmq_base_bytes,
        .close = listener_close,
    };
    struct listener *l = mem_alloc(1, sizeof *l);
    if (!l) return err_set(err, STATUS_NOMEM, "out of memory");
    enum status status = zmq_base_init(&l->base, &ops, err);
    if (status != STATUS_OK) {
        mem_free(l);
        return status;
    }
    /* They encrypt: connections are shared out among them, so the order within one stays. */
    int cores = pool_cores(2 * IO_THREADS_MAX);
    zmq_ctx_set(l->base.context, ZMQ_IO_THREADS, cores > 1 ? cores / 2 : 1); /* cannot fail before the first socket */
    zmq_msg_init(&l->held);
    peers_init(&l->peers);
    status = listener_bind(l, endpoint, access, bound, cap, err);
    if (status == STATUS_OK)
        *t_p = &l->base.transport;
    else
        listener_close(&l->base.transport);
    return status;
}
