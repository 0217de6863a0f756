/* A worker that floods its coordinator, for tests/bench/flood: the program atoll-worker, with link_open replaced at
 * link time. It enrols and joins like any worker, so it needs no knowledge of addresses and keys. Then it sends no
 * heartbeats and gets no work, but sends the messages that FLOOD names, as fast as it can:
 *
 *   status  metrics  offer  join  join-leave  heartbeat  get  chunk  malformed
 *   none    the same work without the socket: the control of the measurement */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "worker/link/link.h"

enum { BURST = 64, TURN_US = 20000, TYPE_AT = 5, SINK = 4 << 20 };

struct flood {
    struct transport transport; /* first */
    struct transport *inner;
    char kind[16];
    uint8_t *join; /* the JOIN that the worker sent */
    size_t join_size;
    uint64_t session;
    uint8_t *bytes, *sink; /* one encoded message; the control's target */
    size_t at, size;
    uint64_t sent, blocked, count;
};

enum status __wrap_link_open(struct link **link_p, struct transport *transport, struct heartbeat *heartbeat,
                             struct err *err);
enum status __real_link_open(struct link **link_p, struct transport *transport, struct heartbeat *heartbeat,
                             struct err *err);

/* --- messages ----------------------------------------------------------------------------------------------------- */

static bool is(const struct flood *f, const char *kind)
{
    return !strcmp(f->kind, kind);
}

static void metrics_message(struct flood *f, struct msg *m)
{
    *m = (struct msg){.type = MSG_METRICS, .metrics = {.session = f->session, .n_steps = WIRE_METRICS_MAX}};
    for (uint32_t i = 0; i < WIRE_METRICS_MAX; i++)
        m->metrics.steps[i] = (struct metrics_step){.step = i % 5, .position = i % 5, .tokens = 8, .loss = 1};
}

/* Encodes the next message; returns its lane. */
static enum wire_lane encode(struct flood *f)
{
    static struct msg m;
    static const uint8_t data[1024];
    f->count++;
    bool join = is(f, "join") || (is(f, "join-leave") && f->count % 2);
    if (join && f->join) {
        memcpy(f->bytes, f->join, f->size = f->join_size);
        return WIRE_CONTROL;
    }
    if (is(f, "status"))
        m = (struct msg){.type = MSG_STATUS};
    else if (is(f, "offer"))
        m = (struct msg){.type = MSG_OFFER, .offer = {.session = f->session, .round = f->count % 100, .bytes = 100}};
    else if (is(f, "join-leave"))
        m = (struct msg){.type = MSG_LEAVE, .leave.session = f->session};
    else if (is(f, "heartbeat"))
        m = (struct msg){.type = MSG_HEARTBEAT, .heartbeat.session = f->session};
    else if (is(f, "get"))
        m = (struct msg){.type = MSG_GET,
                         .get = {.session = f->session, .kind = OBJECT_SNAPSHOT, .version = 0, .length = 1 << 20}};
    else if (is(f, "chunk"))
        m = (struct msg){
            .type = MSG_CHUNK,
            .chunk = {.total = sizeof data, .crc = crc32c(0, data, sizeof data), .data = data, .size = sizeof data}};
    else
        metrics_message(f, &m);
    if (msg_encode(&m, f->bytes, WIRE_HEADER + WIRE_BODY_MAX, &f->size) != STATUS_OK) abort();
    if (is(f, "malformed")) f->bytes[f->size - 1] ^= 1;
    return m.type == MSG_CHUNK ? WIRE_BULK : WIRE_CONTROL;
}

static void send_burst(struct flood *f)
{
    for (int i = 0; i < BURST; i++) {
        enum wire_lane lane = encode(f);
        if (is(f, "none")) {
            if (f->at + f->size > SINK) f->at = 0;
            memcpy(f->sink + f->at, f->bytes, f->size);
            f->at += f->size;
        } else if (f->inner->ops->send(f->inner, 0, lane, f->bytes, f->size) != STATUS_OK) {
            f->blocked++;
            return;
        }
        f->sent++;
    }
}

/* --- the transport ------------------------------------------------------------------------------------------------ */

static enum status flood_send(struct transport *t, uint64_t peer, enum wire_lane lane, const uint8_t *data, size_t size)
{
    struct flood *f = (struct flood *)t;
    uint8_t type = size > TYPE_AT ? data[TYPE_AT] : 0;
    struct msg m;
    if (type == MSG_JOIN && !f->join) {
        f->join = mem_alloc(1, size);
        assert(f->join);
        memcpy(f->join, data, f->join_size = size);
    }
    if (type != MSG_HEARTBEAT) return f->session ? STATUS_OK : f->inner->ops->send(f->inner, peer, lane, data, size);
    if (!f->session && msg_decode(&m, data, size, NULL) == STATUS_OK) {
        f->session = m.heartbeat.session;
        fprintf(stderr, "flood: begins, %s\n", f->kind);
    }
    return STATUS_OK;
}

static enum status flood_recv(struct transport *t, uint64_t timeout_us, uint64_t *peer_p, enum wire_lane *lane_p,
                              const uint8_t **data_p, size_t *size_p)
{
    static struct msg m;
    struct flood *f = (struct flood *)t;
    const struct transport_ops *ops = f->inner->ops;
    if (!f->session) return ops->recv(f->inner, timeout_us, peer_p, lane_p, data_p, size_p);
    for (uint64_t end = clock_monotonic_us() + TURN_US; clock_monotonic_us() < end;) {
        send_burst(f);
        while (!is(f, "status") && ops->recv(f->inner, 0, peer_p, lane_p, data_p, size_p) == STATUS_OK)
            if (msg_decode(&m, *data_p, *size_p, NULL) == STATUS_OK && m.type == MSG_WELCOME)
                f->session = m.welcome.session;
    }
    return STATUS_AGAIN; /* the worker hears nothing more */
}

static void flood_wake(struct transport *t)
{
    struct flood *f = (struct flood *)t;
    f->inner->ops->wake(f->inner);
}

static void flood_drop(struct transport *t, uint64_t peer)
{
    (void)t, (void)peer;
}

static void flood_bytes(const struct transport *t, uint64_t *sent_p, uint64_t *received_p)
{
    const struct flood *f = (const struct flood *)t;
    f->inner->ops->bytes(f->inner, sent_p, received_p);
}

static void flood_close(struct transport *t)
{
    struct flood *f = (struct flood *)t;
    fprintf(stderr, "flood: sent %llu messages, %llu times blocked\n", (unsigned long long)f->sent,
            (unsigned long long)f->blocked);
    f->inner->ops->close(f->inner);
    mem_free(f->join);
    mem_free(f->bytes);
    mem_free(f->sink);
    mem_free(f);
}

enum status __wrap_link_open(struct link **link_p, struct transport *transport, struct heartbeat *heartbeat,
                             struct err *err)
{
    static const struct transport_ops ops = {.send = flood_send,
                                             .recv = flood_recv,
                                             .wake = flood_wake,
                                             .drop = flood_drop,
                                             .bytes = flood_bytes,
                                             .close = flood_close};
    struct flood *f = mem_alloc(1, sizeof *f);
    const char *kind = getenv("FLOOD");
    assert(f);
    f->transport.ops = &ops;
    f->inner = transport;
    f->bytes = mem_alloc(1, WIRE_HEADER + WIRE_BODY_MAX);
    f->sink = mem_alloc(1, SINK);
    assert(f->bytes && f->sink);
    snprintf(f->kind, sizeof f->kind, "%s", kind ? kind : "none");
    return __real_link_open(link_p, &f->transport, heartbeat, err);
}
