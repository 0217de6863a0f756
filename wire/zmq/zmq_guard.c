#include "wire/zmq/zmq_guard.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <zmq.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "wire/zmq/zmq_path.h"

/* FILES_MAX bounds the table; a connection with a larger descriptor is not guarded. SLACK_US: ZeroMQ may be late to
 * close an unfinished handshake. SENT_UNKNOWN: the most bytes that a CURVE server sends to a client whose key it has
 * not accepted: greeting, WELCOME, ERROR; see admitted(). */
enum {
    FILES_MAX = 65536,
    BEYOND = 1024, /* the soft limit may be raised for a moment */
    ADDRESSES = 4096,
    NONE = FILES_MAX + BEYOND,
    POLL_MS = 1000,
    LATE_EVERY_US = 500 * 1000, /* between two looks at late handshakes */
    LATE_RTTS = 8,
    SLACK_US = 2000 * 1000,
    MINUTE_US = 60 * 1000 * 1000,
    SENT_UNKNOWN = 64 + 170 + 12,
};

struct connection {
    struct sockaddr_in6 peer;
    uint64_t accepted_us;
    uint64_t late_us;        /* from then on its handshake is late */
    uint64_t succeeded;      /* handshakes of the socket before this connection */
    uint32_t next, previous; /* in the list of pending connections, oldest first; NONE: the end */
    uint16_t bucket;         /* of the peer's address, below ADDRESSES */
    bool open, pending;
};

struct zmq_guard {
    void *monitor; /* owned by the thread */
    pthread_t thread;
    uint64_t handshake_us;
    struct connection *connections; /* [n_connections], by descriptor */
    uint32_t n_connections;
    uint32_t oldest, newest; /* pending connections; NONE: there are none */
    uint32_t n_open, n_pending;
    uint32_t open_max, pending_max;
    uint16_t held[ADDRESSES]; /* pending connections of each bucket */
    uint16_t late[ADDRESSES]; /* late ones, while the guard counts them */
    uint64_t look_us;         /* next look at late handshakes */
    bool handshake_failed;    /* the next DISCONNECTED belongs to this failure */
    uint64_t succeeded;       /* handshakes so far */
    uint64_t refused;         /* connections with a refused key that are not yet closed: the key check logs them */
    struct strangers strangers;
};

void strangers_log(struct strangers *s, uint64_t now_us)
{
    if (!s->count || now_us < s->next_us) return;
    if (s->count == 1)
        log_warn("refused a connection from %s: %s", s->address, s->reason);
    else
        log_warn("refused %" PRIu64 " connections within a minute, the last one from %s: %s", s->count, s->address,
                 s->reason);
    s->count = 0;
    s->next_us = now_us + MINUTE_US;
}

void strangers_add(struct strangers *s, const char *address, uint64_t now_us)
{
    s->count++;
    snprintf(s->address, sizeof s->address, "%s", address);
    strangers_log(s, now_us);
}

static bool peer_of(int fd, struct sockaddr_in6 *peer)
{
    socklen_t size = sizeof *peer;
    memset(peer, 0, sizeof *peer);
    return !getpeername(fd, (struct sockaddr *)peer, &size);
}

/* Bytes that identify the peer's host: the IPv4 address, or the network part of an IPv6 address, because one host may
 * have all addresses of its network. */
static uint16_t bucket_of(const struct sockaddr_in6 *peer)
{
    enum { IPV6_NETWORK = 8, IPV4 = 4 };
    struct sockaddr_in in;
    memcpy(&in, peer, sizeof in);
    if (in.sin_family == AF_INET) return (uint16_t)(hash64(&in.sin_addr, IPV4) % ADDRESSES);
    if (IN6_IS_ADDR_V4MAPPED(&peer->sin6_addr))
        return (uint16_t)(hash64(peer->sin6_addr.s6_addr + 12, IPV4) % ADDRESSES);
    return (uint16_t)(hash64(&peer->sin6_addr, IPV6_NETWORK) % ADDRESSES);
}

static void settle(struct zmq_guard *g, uint32_t fd)
{
    struct connection *c = &g->connections[fd];
    assert(c->pending && g->n_pending && g->held[c->bucket]);
    *(c->previous == NONE ? &g->oldest : &g->connections[c->previous].next) = c->next;
    *(c->next == NONE ? &g->newest : &g->connections[c->next].previous) = c->previous;
    c->pending = false;
    g->n_pending--;
    g->held[c->bucket]--;
}

/* True if the client's key was accepted. The monitor's events do not name the connection. But a CURVE server sends
 * READY only after it accepted the key, so the number of sent bytes tells. */
static bool admitted(const struct zmq_guard *g, uint32_t fd)
{
    if (clock_monotonic_us() - g->connections[fd].accepted_us > g->handshake_us + SLACK_US) return true;
    uint64_t sent;
    return zmq_path_sent((int)fd, &sent) && sent > SENT_UNKNOWN;
}

/* The next connection to close: the oldest of the bucket that holds the most. */
static uint32_t choose(const struct zmq_guard *g)
{
    uint32_t best = g->oldest;
    for (uint32_t i = g->oldest; i != NONE; i = g->connections[i].next)
        if (g->held[g->connections[i].bucket] > g->held[g->connections[best].bucket]) best = i;
    return best;
}

/* Close a connection that is not pending any more. ZeroMQ sees the end of the stream and closes the descriptor. A reset
 * leaves no state behind in the kernel. */
static void shut(const struct zmq_guard *g, uint32_t fd)
{
    static const struct linger reset = {.l_onoff = 1};
    struct sockaddr_in6 peer;
    if (!peer_of((int)fd, &peer) || memcmp(&peer, &g->connections[fd].peer, sizeof peer) != 0) return;
    setsockopt((int)fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    shutdown((int)fd, SHUT_RDWR);
}

/* Close pending connections until at most `keep` are left. */
static void close_oldest(struct zmq_guard *g, uint32_t keep)
{
    while (g->n_pending > keep) {
        uint32_t fd = choose(g);
        settle(g, fd);
        if (!admitted(g, fd)) shut(g, fd);
    }
}

/* Close late connections, except the newest of each address. */
static void close_late(struct zmq_guard *g, uint64_t now_us)
{
    if (now_us < g->look_us) return;
    g->look_us = now_us + LATE_EVERY_US;
    memset(g->late, 0, sizeof g->late);
    for (uint32_t fd = g->newest, before; fd != NONE; fd = before) {
        const struct connection *c = &g->connections[fd];
        uint64_t sent;
        before = c->previous;
        if (now_us < c->late_us || !zmq_path_sent((int)fd, &sent)) continue;
        bool known = admitted(g, fd);
        if (!known && g->late[c->bucket] < GUARD_LATE_MAX) {
            g->late[c->bucket]++;
            continue;
        }
        settle(g, fd);
        if (!known) shut(g, fd);
    }
}

static void on_accepted(struct zmq_guard *g, uint32_t fd)
{
    struct connection *c = &g->connections[fd];
    if (c->pending) settle(g, fd);
    g->n_open += !c->open;
    *c = (struct connection){.accepted_us = clock_monotonic_us(),
                             .succeeded = g->succeeded,
                             .next = NONE,
                             .previous = g->newest,
                             .open = true};
    struct transport_path path = {0};
    uint64_t rtts_us = zmq_path_read((int)fd, &path) ? (uint64_t)LATE_RTTS * path.rtt_us : 0;
    c->late_us = c->accepted_us + (rtts_us > GUARD_LATE_US ? rtts_us : GUARD_LATE_US);
    peer_of((int)fd, &c->peer);
    c->bucket = bucket_of(&c->peer);
    c->pending = true;
    *(g->newest == NONE ? &g->oldest : &g->connections[g->newest].next) = fd;
    g->newest = fd;
    g->n_pending++;
    g->held[c->bucket]++;
    uint32_t known = g->n_open - g->n_pending, room = g->open_max > known ? g->open_max - known : 0;
    close_oldest(g, room < g->pending_max ? room : g->pending_max);
}

static void on_disconnected(struct zmq_guard *g, uint32_t fd)
{
    struct connection *c = &g->connections[fd];
    if (c->pending) settle(g, fd);
    /* If no handshake at all succeeded in the meantime, this one did not. */
    bool unknown = c->open && (g->handshake_failed || c->succeeded == g->succeeded);
    if (unknown && g->refused) {
        g->refused--;
    } else if (unknown) {
        char address[sizeof g->strangers.address] = "";
        socklen_t size = c->peer.sin6_family == AF_INET6 ? sizeof c->peer : sizeof(struct sockaddr_in);
        if (getnameinfo((struct sockaddr *)&c->peer, size, address, sizeof address, NULL, 0, NI_NUMERICHOST))
            snprintf(address, sizeof address, "an unknown address");
        strangers_add(&g->strangers, address, clock_monotonic_us());
    }
    g->n_open -= c->open;
    c->open = g->handshake_failed = false;
}

static void on_event(struct zmq_guard *g, unsigned event, uint32_t value)
{
    bool known = value < g->n_connections;
    if (event == ZMQ_EVENT_ACCEPTED && known) on_accepted(g, value);
    if (event == ZMQ_EVENT_DISCONNECTED && known) on_disconnected(g, value);
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) g->succeeded++;
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) g->handshake_failed = true;
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) g->refused++;
    /* Out of descriptors: the socket would try again without a pause. */
    if (event == ZMQ_EVENT_ACCEPT_FAILED) close_oldest(g, g->n_pending / 2);
}

/* Read one event: first part u16 event, u32 value; second part address. False: the context ends. */
static bool read_event(struct zmq_guard *g)
{
    zmq_msg_t part;
    zmq_msg_init(&part);
    int n, more = 1;
    for (int i = 0; more; i++) {
        do n = zmq_msg_recv(&part, g->monitor, i ? 0 : ZMQ_DONTWAIT);
        while (n < 0 && errno == EINTR);
        if (n < 0) break;
        uint16_t event;
        uint32_t value;
        more = zmq_msg_more(&part);
        if (i || (size_t)n != sizeof event + sizeof value) continue;
        memcpy(&event, zmq_msg_data(&part), sizeof event);
        memcpy(&value, (const char *)zmq_msg_data(&part) + sizeof event, sizeof value);
        on_event(g, event, value);
    }
    zmq_msg_close(&part);
    return n >= 0;
}

static void *watch(void *arg)
{
    struct zmq_guard *g = arg;
    zmq_pollitem_t item = {.socket = g->monitor, .events = ZMQ_POLLIN};
    for (;;) {
        if (zmq_poll(&item, 1, POLL_MS) < 0 && errno != EINTR) break;
        while (read_event(g)) continue;
        if (errno == ETERM) break;
        strangers_log(&g->strangers, clock_monotonic_us());
        close_late(g, clock_monotonic_us());
    }
    zmq_close(g->monitor);
    return NULL;
}

/* A quarter of the descriptors is left for files and for connections that wait until the guard has run. */
static void set_limits(struct zmq_guard *g)
{
    struct rlimit limit;
    uint32_t files = FILES_MAX;
    if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < FILES_MAX) files = (uint32_t)limit.rlim_cur;
    g->n_connections = files + BEYOND;
    g->open_max = files / 4 * 3;
    g->pending_max = files / 2 < GUARD_PENDING_MAX ? files / 2 : GUARD_PENDING_MAX;
}

enum status zmq_guard_start(struct zmq_guard **guard_p, void *context, void *socket, int handshake_ms, struct err *err)
{
    static const int events = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_ACCEPT_FAILED | ZMQ_EVENT_DISCONNECTED |
                              ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                              ZMQ_EVENT_HANDSHAKE_FAILED_AUTH; /* not _PROTOCOL: see wire/zmq/zmq_dial.c */
    static const char address[] = "inproc://guard";
    struct zmq_guard *g = mem_alloc(1, sizeof *g);
    if (!g) return err_set(err, STATUS_NOMEM, "out of memory");
    set_limits(g);
    g->handshake_us = (uint64_t)handshake_ms * 1000;
    g->oldest = g->newest = NONE;
    g->strangers.reason = "it did not finish the handshake";
    g->connections = mem_alloc(g->n_connections, sizeof *g->connections);
    g->monitor = g->connections ? zmq_socket(context, ZMQ_PAIR) : NULL;
    int zero = 0;
    bool started = g->monitor && !zmq_setsockopt(g->monitor, ZMQ_LINGER, &zero, sizeof zero) &&
                   !zmq_socket_monitor(socket, address, events) && !zmq_connect(g->monitor, address) &&
                   !(errno = thread_start(&g->thread, watch, g));
    if (started) {
        *guard_p = g;
        return STATUS_OK;
    }
    err_set(err, STATUS_IO, "cannot watch the connections: %s", zmq_strerror(errno));
    if (g->monitor) zmq_close(g->monitor);
    mem_free(g->connections);
    mem_free(g);
    return STATUS_IO;
}

void zmq_guard_join(struct zmq_guard *guard)
{
    if (!guard) return;
    pthread_join(guard->thread, NULL);
    mem_free(guard->connections);
    mem_free(guard);
}
