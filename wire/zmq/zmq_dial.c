/* The worker's side of the transport: two DEALER sockets, one per lane.
 *
 * ZeroMQ connects and reconnects on its own, with two exceptions. After some failed handshakes (wrong keys, another
 * program at the port) it stops for good. After others it retries ten times a second. A monitor on each socket detects
 * both; the dialler logs the cause, closes the socket and opens a new one after REOPEN_US, or sooner if the connection
 * had worked. The layers above see only lost messages.
 *
 * The dialler limits the time of a handshake, which takes four round trips. The limit follows from the round trip of
 * the connection, and from the time of the last handshake. It doubles with each handshake that exceeds it: a relay or
 * tunnel accepts the connection at once, and hides the path behind it. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/backoff.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/units.h"
#include "common/os/fork_close.h"
#include "wire/dial_failure.h"
#include "wire/endpoint.h"
#include "wire/zmq/peers.h"
#include "wire/zmq/transport_zmq.h"
#include "wire/zmq/zmq_auth.h"
#include "wire/zmq/zmq_enrol.h"
#include "wire/zmq/zmq_path.h"

/* CONNECT_MS, RECONNECT_MAX_MS: after an outage the next SYN follows within two seconds: the kernel sends one after 0,
 * 1 and 3 s. With its own timeout one would follow up to half a minute later. HANDSHAKE_MAX_US: as at the coordinator.
 */
enum {
    LANES = 2,
    CONNECT_MS = 4000,
    RECONNECT_MAX_MS = 1000,
    HANDSHAKE_MIN_US = 3 * 1000 * 1000,
    HANDSHAKE_MAX_US = 30 * 1000 * 1000,
    HANDSHAKE_RTTS = 8,
    EXPIRED_MAX = 4,          /* doublings up to HANDSHAKE_MAX_US */
    LONG_RTT_US = 100 * 1000, /* a longer one may be the reason */
    SLOW_US = 1000 * 1000,    /* without a connection for so long: DIAL_SLOW */
    REOPEN_US = 3 * 1000 * 1000,
    REOPEN_BROKEN_US = 200 * 1000, /* a connection that worked: for example after a corrupted byte */
    FAILED_HANDSHAKES_MAX = 5,
    CLOSED_HANDSHAKES = 3, /* in a row: the keys are wrong */
    LOST_US = 2000 * 1000,
    WARN_AGAIN_US = 60 * 1000 * 1000,
};

struct dialler_lane {
    void *socket, *monitor;
    struct peer_id id;
    bool connected, key_refused;
    int fd;                     /* of the connection, which ZeroMQ may have closed; -1: there is none */
    uint64_t begun_us;          /* start of the handshake; 0: none is under way */
    uint64_t rtt_us;            /* round trip of the connection; 0: unknown */
    unsigned expired;           /* handshakes in a row that exceeded the limit */
    unsigned failed_handshakes; /* in a row, closed by the other side without a reason */
    uint64_t reopen_us;         /* time to open it anew, because ZeroMQ stopped retrying; 0: it did not */
};

struct dialler {
    struct zmq_base base;
    struct transport_address address;
    struct transport_key own, guest; /* the worker's key; the key of the address's secret */
    struct zmq_enrol enrol;
    bool ipv6;
    /* First warning of the present outage of control (0: none yet) and time of the next: not one line an attempt. */
    uint64_t warned_us, warn_again_us;
    uint64_t refused_us; /* time of the last line about a refused key; 0: none since it was accepted */
    uint64_t lost_us;    /* when control was lost, until that is logged; 0: it was not */
    uint64_t opened_us;
    uint64_t took_us; /* time of the last handshake that succeeded; 0: none yet */
    struct dialler_lane lanes[LANES];
    zmq_msg_t held;
};

/* The monitor is closed first. A socket with queued messages lives on while it lingers, and ZeroMQ's thread would block
 * for ever on an event that no reader takes. */
static void lane_close(struct dialler_lane *lane)
{
    if (lane->socket) {
        zmq_socket_monitor(lane->socket, NULL, 0);
        zmq_close(lane->socket);
    }
    if (lane->monitor) zmq_close(lane->monitor);
    lane->socket = lane->monitor = NULL;
}

/* Without linger: the connection is gone, so queued messages cannot be sent. */
static void lane_drop(struct dialler_lane *lane)
{
    int zero = 0;
    if (lane->socket) zmq_setsockopt(lane->socket, ZMQ_LINGER, &zero, sizeof zero);
    lane_close(lane);
}

static enum status lane_configure(struct dialler *d, enum wire_lane which, struct err *err)
{
    /* The receive queues are short of a whole window: the worker's inbox has room for it. The send queue of bulk is
     * short: queued chunks can no longer be reordered, withdrawn or measured. */
    static const struct zmq_option options[LANES][8] = {
        {{ZMQ_SNDHWM, 64},
         {ZMQ_RCVHWM, 256},
         {ZMQ_CONNECT_TIMEOUT, CONNECT_MS},
         {ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS},
         {ZMQ_HANDSHAKE_IVL, 0},
         {0, 0}},
        {{ZMQ_SNDHWM, 4},
         {ZMQ_RCVHWM, 64},
         {ZMQ_CONNECT_TIMEOUT, CONNECT_MS},
         {ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS},
         {ZMQ_HANDSHAKE_IVL, 0},
         {ZMQ_LINGER, 0},
         {0, 0}},
    };
    struct dialler_lane *lane = &d->lanes[which];
    assert(!lane->socket && !lane->monitor);
    lane->socket = zmq_base_socket(&d->base, ZMQ_DEALER, options[which], err);
    if (!lane->socket) return STATUS_IO;
    TRY(zmq_auth_client(lane->socket, d->address.server_key, d->enrol.active ? &d->guest : &d->own, err));
    int ipv6 = d->ipv6;
    if (zmq_setsockopt(lane->socket, ZMQ_ROUTING_ID, lane->id.bytes, PEER_ID_BYTES) ||
        zmq_setsockopt(lane->socket, ZMQ_IPV6, &ipv6, sizeof ipv6))
        return err_set(err, STATUS_IO, "ZeroMQ socket: %s", zmq_strerror(errno));
    return STATUS_OK;
}

static enum status lane_open(struct dialler *d, enum wire_lane which, struct err *err)
{
    /* Without HANDSHAKE_FAILED_PROTOCOL: libzmq up to 4.3.5 reports a message that it cannot decrypt as this event,
     * which overwrites errno. It then takes the error for a full queue, and keeps a connection that reads nothing. */
    static const int events = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
                              ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                              ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL;
    struct dialler_lane *lane = &d->lanes[which];
    TRY(lane_configure(d, which, err));
    char watch[64]; /* unique: the monitor of an old socket may still exist */
    snprintf(watch, sizeof watch, "inproc://monitor-%p-%llu", lane->socket, (unsigned long long)clock_monotonic_us());
    lane->monitor = zmq_socket(d->base.context, ZMQ_PAIR);
    if (!lane->monitor || zmq_socket_monitor(lane->socket, watch, events) || zmq_connect(lane->monitor, watch) ||
        zmq_connect(lane->socket, d->address.endpoint))
        return err_set(err, STATUS_IO, "cannot connect to %s: %s", d->address.endpoint, zmq_strerror(errno));
    lane->reopen_us = lane->begun_us = 0;
    lane->fd = -1;
    lane->connected = lane->key_refused = false;
    return STATUS_OK;
}

static void lane_reopen(struct dialler *d, enum wire_lane which)
{
    struct dialler_lane *lane = &d->lanes[which];
    lane_drop(lane);
    lane->failed_handshakes = 0;
    if (lane_open(d, which, NULL) == STATUS_OK) return;
    lane_drop(lane); /* for example out of descriptors: retried after REOPEN_US */
    lane->connected = false;
    lane->begun_us = 0;
    lane->reopen_us = clock_monotonic_us() + REOPEN_US;
}

/* Connect again, with the secret of the address (control only) or with the worker's own key. */
static void use_secret(struct dialler *d, bool secret)
{
    d->enrol.active = secret;
    d->enrol.due_us = 0;
    lane_drop(&d->lanes[WIRE_BULK]);
    d->lanes[WIRE_BULK].connected = false;
    d->lanes[WIRE_BULK].reopen_us = d->lanes[WIRE_BULK].begun_us = 0;
    lane_reopen(d, WIRE_CONTROL);
    if (!secret) lane_reopen(d, WIRE_BULK);
}

/* An outage is logged at its start, after one minute, and then each time its duration has doubled. */
static bool warning_due(struct dialler *d)
{
    uint64_t now = clock_monotonic_us();
    if (d->warned_us && now < d->warn_again_us) return false;
    d->warn_again_us = now + (d->warned_us ? now - d->warned_us : WARN_AGAIN_US);
    if (!d->warned_us) d->warned_us = now;
    return true;
}

/* A worker with a secret has a second key to try: only the refusal of both counts. */
static bool may_enrol(const struct dialler *d)
{
    return d->enrol.possible && !d->enrol.active;
}

static void report_refused(struct dialler *d)
{
    uint64_t now = clock_monotonic_us();
    d->lost_us = 0;
    if (may_enrol(d) || (d->refused_us && now - d->refused_us < WARN_AGAIN_US)) return;
    d->refused_us = now;
    struct err why = {0};
    if (dial_failure_explain(&d->address, DIAL_REFUSED_KEY, 0, &why) < 0) log_warn("%s", why.msg); /* dials nothing */
}

/* Log the state of the control connection: connected, or why it cannot connect. */
static void report_event(struct dialler *d, unsigned event, bool was_connected)
{
    const char *where = d->address.endpoint;
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
        log_write(d->warned_us ? LOG_INFO : LOG_DEBUG, "connected to %s", where);
        d->warned_us = d->lost_us = d->refused_us = 0;
        return;
    }
    if (was_connected) d->lost_us = clock_monotonic_us();
    if (d->address.quiet && !atomic_load(&d->base.transport.connected)) return;
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {
        report_refused(d);
        return;
    }
    if (d->lost_us || atomic_load(&d->base.transport.ending) || !warning_due(d)) return;
    if (event == ZMQ_EVENT_CONNECT_RETRIED)
        log_warn("retrying %s: no answer; check that the coordinator runs and that the firewall opens its port", where);
    else
        log_warn(
            "retrying %s: it closed the connection; check that the coordinator runs and that the join line is its own",
            where);
}

/* Note why control is not connected, for dial_failure_explain. */
static void note_failure(struct dialler *d, unsigned event)
{
    const struct dialler_lane *lane = &d->lanes[WIRE_CONTROL];
    unsigned failure = DIAL_NO_CONNECTION;
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH && may_enrol(d)) return;
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) failure = DIAL_REFUSED_KEY;
    if (lane->failed_handshakes >= CLOSED_HANDSHAKES) failure = DIAL_CLOSED;
    if (lane->connected) failure = DIAL_NONE;
    atomic_uint *noted = &d->base.transport.failure;
    if (lane->connected || failure > atomic_load(noted)) atomic_store(noted, failure);
}

/* Delayed by LOST_US: when a whole run stops, the coordinator may end a moment before this program's own signal. */
static void report_lost(struct dialler *d)
{
    if (!d->lost_us || clock_monotonic_us() - d->lost_us < LOST_US) return;
    d->lost_us = 0;
    if (!atomic_load(&d->base.transport.ending) && warning_due(d))
        log_warn("lost the connection to %s: reconnecting", d->address.endpoint);
}

/* The TCP connection stands: the handshake begins. */
static void begin_handshake(struct dialler *d, struct dialler_lane *lane, int fd)
{
    struct transport_path path;
    lane->fd = fd;
    lane->begun_us = clock_monotonic_us();
    lane->rtt_us = zmq_path_read(fd, &path) ? path.rtt_us : 0;
    if (lane->rtt_us) atomic_store(&d->base.transport.rtt_us, (unsigned)lane->rtt_us);
    if (zmq_path_is_own(fd, d->address.endpoint)) fork_close_add(fd); /* else: already closed again */
}

/* The handshake succeeded, failed, or did not begin. */
static void end_handshake(struct dialler *d, struct dialler_lane *lane)
{
    if (lane->connected && lane->begun_us) d->took_us = clock_monotonic_us() - lane->begun_us;
    if (lane->connected) lane->failed_handshakes = lane->expired = 0;
    if (!lane->connected) lane->fd = -1;
    lane->begun_us = 0;
}

static uint64_t handshake_limit_us(const struct dialler *d, const struct dialler_lane *lane)
{
    uint64_t us = HANDSHAKE_RTTS * lane->rtt_us;
    assert(lane->expired <= EXPIRED_MAX);
    if (us < 2 * d->took_us) us = 2 * d->took_us;
    if (us < HANDSHAKE_MIN_US) us = HANDSHAKE_MIN_US;
    return backoff_us(us, lane->expired, HANDSHAKE_MAX_US);
}

/* The first line waits for the second attempt if the caller may find the reason. */
static void report_expired(struct dialler *d, enum wire_lane which, uint64_t limit_us, uint64_t next_us)
{
    const struct dialler_lane *lane = &d->lanes[which];
    bool first = lane->expired == 1 && lane->rtt_us < LONG_RTT_US;
    if (first && d->address.quiet && !atomic_load(&d->base.transport.connected)) return;
    if (atomic_load(&d->base.transport.ending) || (which == WIRE_BULK && !d->lanes[WIRE_CONTROL].connected)) return;
    if (!warning_due(d) && next_us <= limit_us) return;
    struct units_text rtt = {"unknown"};
    if (lane->rtt_us) rtt = units_duration((double)lane->rtt_us / 1e6);
    log_warn("retrying %s: the handshake takes longer than %s (round trip %s); trying with %s", d->address.endpoint,
             units_duration((double)limit_us / 1e6).text, rtt.text, units_duration((double)next_us / 1e6).text);
}

static void watch_handshake(struct dialler *d, enum wire_lane which)
{
    struct dialler_lane *lane = &d->lanes[which];
    uint64_t limit_us = handshake_limit_us(d, lane);
    if (!lane->begun_us || clock_monotonic_us() - lane->begun_us < limit_us) return;
    if (lane->expired < EXPIRED_MAX) lane->expired++;
    if (which == WIRE_CONTROL) note_failure(d, 0);
    report_expired(d, which, limit_us, handshake_limit_us(d, lane));
    lane_reopen(d, which);
}

static void read_monitor(struct dialler *d, enum wire_lane which)
{
    struct dialler_lane *lane = &d->lanes[which];
    zmq_msg_t part; /* first part: u16 event, u32 value; second part: address */
    zmq_msg_init(&part);
    while (zmq_part_recv(&part, lane->monitor) == STATUS_OK) {
        uint16_t event = 0;
        uint32_t value = 0;
        if (zmq_msg_size(&part) >= sizeof event + sizeof value) {
            memcpy(&event, zmq_msg_data(&part), sizeof event);
            memcpy(&value, (const char *)zmq_msg_data(&part) + sizeof event, sizeof value);
        }
        zmq_parts_drop(&part, lane->monitor);
        if (event == ZMQ_EVENT_CONNECTED) {
            begin_handshake(d, lane, (int)value);
            continue;
        }
        bool was_connected = lane->connected;
        lane->connected = event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
        end_handshake(d, lane);
        if (lane->connected && which == WIRE_CONTROL && !d->enrol.active)
            atomic_fetch_add(&d->base.transport.connected, 1);
        if (lane->connected && d->lanes[!which].connected) atomic_fetch_add(&d->base.transport.both_connected, 1);
        bool refused = event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
        lane->key_refused = !lane->connected && (lane->key_refused || refused); /* the end of the connection follows */
        if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) lane->failed_handshakes++;
        /* ZeroMQ reports CONNECT_RETRIED at once for each connection that it retries by itself. */
        bool alive = lane->connected || event == ZMQ_EVENT_CONNECT_RETRIED;
        if (alive)
            lane->reopen_us = 0;
        else if (!lane->reopen_us) /* the first event of several */
            lane->reopen_us = clock_monotonic_us() + (was_connected ? REOPEN_BROKEN_US : REOPEN_US);
        if (which != WIRE_CONTROL || (lane->key_refused && !refused)) continue;
        note_failure(d, event);
        report_event(d, event, was_connected);
    }
    zmq_msg_close(&part);
}

static void maintain_lanes(struct dialler *d)
{
    unsigned none = DIAL_NONE;
    if (clock_monotonic_us() - d->opened_us >= SLOW_US && !atomic_load(&d->base.transport.connected))
        atomic_compare_exchange_strong(&d->base.transport.failure, &none, DIAL_SLOW);
    report_lost(d);
    for (int i = WIRE_CONTROL; i <= WIRE_BULK; i++) {
        struct dialler_lane *lane = &d->lanes[i];
        if (lane->monitor) read_monitor(d, (enum wire_lane)i);
        watch_handshake(d, (enum wire_lane)i);
        if (lane->failed_handshakes >= FAILED_HANDSHAKES_MAX) {
            lane_drop(lane);
            lane->failed_handshakes = 0;
            lane->begun_us = 0;
            lane->reopen_us = clock_monotonic_us() + REOPEN_US;
        }
        if (!lane->reopen_us || clock_monotonic_us() < lane->reopen_us) continue;
        lane_reopen(d, (enum wire_lane)i);
    }
}

/* An unknown key is enrolled at once. After a refused secret the worker's key has its turn: an operator may have
 * enrolled it. */
static void maintain_enrolment(struct dialler *d)
{
    struct dialler_lane *control = &d->lanes[WIRE_CONTROL];
    if (!d->enrol.possible) return;
    bool waited = clock_monotonic_us() >= control->reopen_us;
    if (control->key_refused && (!d->enrol.active || waited)) use_secret(d, !d->enrol.active);
    if (!control->connected) return;
    size_t size;
    const uint8_t *data = zmq_enrol_take(&d->enrol, clock_monotonic_us(), &size);
    if (data && zmq_send(control->socket, data, size, ZMQ_DONTWAIT) >= 0) d->base.sent += transport_wire_bytes(size);
}

static enum status dialler_send(struct transport *t, uint64_t peer, enum wire_lane lane, const uint8_t *data,
                                size_t size)
{
    struct dialler *d = (struct dialler *)t;
    assert(lane == WIRE_CONTROL || lane == WIRE_BULK);
    if (peer) return STATUS_CLOSED;
    if (!d->lanes[lane].socket || d->enrol.active) return STATUS_AGAIN;
    int n;
    do n = zmq_send(d->lanes[lane].socket, data, size, ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0) return errno == EAGAIN ? STATUS_AGAIN : STATUS_IO;
    d->base.sent += transport_wire_bytes(size);
    return STATUS_OK;
}

static bool receive(struct dialler *d, enum wire_lane lane)
{
    void *socket = d->lanes[lane].socket;
    if (!socket || zmq_part_recv(&d->held, socket) != STATUS_OK) return false;
    d->base.received += transport_wire_bytes(zmq_msg_size(&d->held));
    bool single = !zmq_msg_more(&d->held); /* a coordinator sends messages of one part */
    zmq_parts_drop(&d->held, socket);
    if (!single || !d->enrol.active) return single;
    enum zmq_enrol_answer answer =
        zmq_enrol_on_message(&d->enrol, clock_monotonic_us(), zmq_msg_data(&d->held), zmq_msg_size(&d->held));
    if (answer == ENROL_DONE) use_secret(d, false);
    return answer == ENROL_REFUSED; /* the layers above handle a refusal */
}

static bool wait(struct dialler *d, uint64_t timeout_us)
{
    void *sockets[2 * LANES];
    int n = 0;
    for (int i = 0; i < LANES; i++) {
        if (!d->lanes[i].socket) continue;
        assert(d->lanes[i].monitor);
        sockets[n++] = d->lanes[i].socket;
        sockets[n++] = d->lanes[i].monitor;
    }
    return zmq_base_wait(&d->base, sockets, n, timeout_us);
}

static enum status dialler_recv(struct transport *t, uint64_t timeout_us, uint64_t *peer_p, enum wire_lane *lane_p,
                                const uint8_t **data_p, size_t *size_p)
{
    struct dialler *d = (struct dialler *)t;
    for (;;) {
        if (d->lanes[WIRE_CONTROL].monitor) read_monitor(d, WIRE_CONTROL);
        for (int lane = WIRE_CONTROL; lane <= WIRE_BULK; lane++) {
            if (!receive(d, (enum wire_lane)lane)) continue;
            *peer_p = 0;
            *lane_p = (enum wire_lane)lane;
            *data_p = zmq_msg_data(&d->held);
            *size_p = zmq_msg_size(&d->held);
            return STATUS_OK;
        }
        maintain_enrolment(d);
        maintain_lanes(d);
        if (!timeout_us || !wait(d, timeout_us)) return STATUS_AGAIN;
        timeout_us = 0; /* a monitor's event also ends the wait: the caller then calls again */
    }
}

static bool dialler_path(struct transport *t, uint64_t peer, struct transport_path *out)
{
    const struct dialler_lane *bulk = &((struct dialler *)t)->lanes[WIRE_BULK];
    return !peer && bulk->connected && zmq_path_read(bulk->fd, out);
}

static void dialler_drop(struct transport *t, uint64_t peer)
{
    struct dialler *d = (struct dialler *)t;
    if (peer) return;
    if (d->lanes[WIRE_CONTROL].connected) d->lost_us = clock_monotonic_us();
    for (int i = WIRE_CONTROL; i <= WIRE_BULK; i++)
        if (d->lanes[i].connected) lane_reopen(d, (enum wire_lane)i);
}

static void dialler_close(struct transport *t)
{
    struct dialler *d = (struct dialler *)t;
    zmq_msg_close(&d->held);
    atomic_store(&t->ending, true);
    for (int i = WIRE_CONTROL; i <= WIRE_BULK; i++) {
        struct dialler_lane *lane = &d->lanes[i];
        if (lane->monitor) read_monitor(d, (enum wire_lane)i);
        (lane->connected ? lane_close : lane_drop)(lane);
    }
    zmq_base_finish(&d->base);
    explicit_bzero(&d->address, sizeof d->address);
    explicit_bzero(&d->own, sizeof d->own);
    explicit_bzero(&d->guest, sizeof d->guest);
    mem_free(d);
}

enum status transport_zmq_resolve(const struct transport_address *address, bool *ipv6_p, struct err *err)
{
    struct endpoint e;
    struct endpoint_found found = {.loopback = false};
    TRY(endpoint_parse(&e, address->endpoint, false, err));
    enum status status = endpoint_find(&found, &e, err);
    if (status < 0) return status;
    if (status == STATUS_AGAIN && address->fail_fast) return status;
    if (status == STATUS_AGAIN) log_warn("retrying host %s: DNS does not answer", e.host);
    *ipv6_p = found.ipv6;
    return STATUS_OK;
}

static enum status dialler_open(struct dialler *d, const struct transport_worker *worker, struct err *err)
{
    uint64_t nonce;
    if (!worker && !d->address.has_secret)
        return err_set(err, STATUS_INVALID, "address %s has no secret: use the whole join line", d->address.endpoint);
    memcpy(d->guest.secret, d->address.secret, WIRE_KEY);
    if (d->address.has_secret) TRY(transport_key_complete(&d->guest, err));
    d->own = worker ? worker->key : d->guest;
    TRY(zmq_enrol_init(&d->enrol, worker, d->address.has_secret, err));
    TRY(transport_zmq_resolve(&d->address, &d->ipv6, err));
    d->opened_us = clock_monotonic_us();
    if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce)
        return err_set(err, STATUS_IO, "cannot read random numbers: %s", strerror(errno));
    for (int i = WIRE_CONTROL; i <= WIRE_BULK; i++) {
        peer_id_make(&d->lanes[i].id, (enum wire_lane)i, d->own.public_key, nonce);
        if (i == WIRE_CONTROL || !d->enrol.active) TRY(lane_open(d, (enum wire_lane)i, err));
    }
    return STATUS_OK;
}

enum status transport_zmq_dial(struct transport **t_p, const struct transport_address *address,
                               const struct transport_worker *worker, struct err *err)
{
    static const struct transport_ops ops = {
        .send = dialler_send,
        .recv = dialler_recv,
        .wake = zmq_base_wake,
        .drop = dialler_drop,
        .path = dialler_path,
        .bytes = zmq_base_bytes,
        .close = dialler_close,
    };
    struct dialler *d = mem_alloc(1, sizeof *d);
    if (!d) return err_set(err, STATUS_NOMEM, "out of memory");
    enum status status = zmq_base_init(&d->base, &ops, err);
    if (status != STATUS_OK) {
        mem_free(d);
        return status;
    }
    zmq_msg_init(&d->held);
    d->address = *address;
    status = dialler_open(d, worker, err);
    if (status == STATUS_OK)
        *t_p = &d->base.transport;
    else
        dialler_close(&d->base.transport);
    return status;
}
