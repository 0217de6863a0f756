#include "worker/link/link.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/base/units.h"
#include "wire/path_watch.h"
#include "worker/link/ring.h"
#include "worker/sync/sync.h"

enum {
    CONTROL_OUT = 3 << 20, /* JOIN carries the layout and config.json */
    BULK_OUT = 2 << 20,
    CONTROL_IN = 512 << 10,
    BULK_IN = SYNC_ARRIVING_MOST + (3 << 20), /* and one chunk lost at the end of the ring */
    SLEEP_MAX_US = 200000,                    /* longest sleep of the link thread */
    BLOCKED_US = 1000,                        /* sleep while the transport's queue is full */
    LANES = 2,
};

struct link {
    struct transport *transport;
    struct heartbeat *heartbeat;
    pthread_t thread;
    bool started;
    atomic_bool stop;
    atomic_uint_fast64_t sent, received;

    pthread_mutex_t lock;
    pthread_cond_t arrived, drained;
    struct ring in[LANES], out[LANES];
    int read_lane;    /* lane of the record that link_recv returned; -1: none */
    uint64_t dropped; /* messages that did not fit the inbox */

    struct msg beat, ack; /* of the link thread */
    unsigned connections; /* opened so far */
    struct path_watch path;
    bool path_logged;
    uint8_t *beat_bytes; /* [BEAT_BYTES] */
};

enum { BEAT_BYTES = 8192 };

/* --- the thread --------------------------------------------------------------------------------------------------- */

/* Passes queued messages to the transport. Returns false if its queue is full. */
static bool send_lane(struct link *link, enum wire_lane lane)
{
    const struct transport_ops *ops = link->transport->ops;
    for (;;) {
        uint32_t tag;
        size_t size;
        pthread_mutex_lock(&link->lock);
        const uint8_t *data = ring_peek(&link->out[lane], &tag, &size);
        pthread_mutex_unlock(&link->lock);
        if (!data) return true;
        enum status status = ops->send(link->transport, 0, lane, data, size);
        if (status == STATUS_AGAIN) return false;
        if (status != STATUS_OK) log_debug("dropped a message: %s", status_text(status));
        pthread_mutex_lock(&link->lock);
        ring_drop(&link->out[lane]);
        pthread_cond_signal(&link->drained);
        pthread_mutex_unlock(&link->lock);
    }
}

static void send_heartbeat(struct link *link)
{
    size_t size;
    if (!heartbeat_take(link->heartbeat, clock_monotonic_us(), &link->beat)) return;
    if (msg_encode(&link->beat, link->beat_bytes, BEAT_BYTES, &size) != STATUS_OK) return;
    (void)link->transport->ops->send(link->transport, 0, WIRE_CONTROL, link->beat_bytes, size);
}

/* The coordinator answered a heartbeat: the bytes of a delta must pass, too. While it reads nothing, they may not. */
static void watch_path(struct link *link)
{
    const struct transport_ops *ops = link->transport->ops;
    struct transport_path path = {0};
    bool known = ops->path && ops->path(link->transport, 0, &path);
    uint64_t now = clock_monotonic_us();
    bool stuck = known ? path_watch(&link->path, path.unacked, path.acked, now) : path_watch_unknown(&link->path, now);
    if (stuck && !link->path_logged)
        log_warn("the path to the coordinator " PATH_WATCH_TEXT ": no byte of a transfer has passed for %d s, but "
                 "heartbeats do; " PATH_WATCH_ADVICE,
                 PATH_STUCK_US / 1000000);
    link->path_logged = stuck;
}

/* Handles HEARTBEAT_ACK in this thread, queues other messages for the compute thread. */
static void receive(struct link *link, enum wire_lane lane, const uint8_t *data, size_t size)
{
    bool is_ack = size > 5 && data[5] == MSG_HEARTBEAT_ACK; /* wire/frame.h: byte 5 is the type */
    if (is_ack && msg_decode(&link->ack, data, size, NULL) == STATUS_OK) {
        heartbeat_on_message(link->heartbeat, &link->ack, clock_monotonic_us());
        if (link->ack.heartbeat_ack.sent_us) watch_path(link);
        return;
    }
    heartbeat_on_message(link->heartbeat, NULL, clock_monotonic_us());
    pthread_mutex_lock(&link->lock);
    uint8_t *room = ring_reserve(&link->in[lane], size);
    if (room) {
        memcpy(room, data, size);
        ring_commit(&link->in[lane], 0, size);
        pthread_cond_broadcast(&link->arrived);
    } else {
        link->dropped++;
    }
    pthread_mutex_unlock(&link->lock);
}

/* A program that died behind a live relay leaves its connections open. */
static void drop_if_lost(struct link *link)
{
    struct transport *t = link->transport;
    unsigned connections = atomic_load(&t->connected) + atomic_load(&t->both_connected);
    if (connections != link->connections)
        heartbeat_connected(link->heartbeat, atomic_load(&t->rtt_us), clock_monotonic_us());
    link->connections = connections;
    uint64_t silent_us = heartbeat_lost_us(link->heartbeat, clock_monotonic_us());
    if (!silent_us) return;
    log_debug("no answer for %s: closing the connection", units_duration((double)silent_us / 1e6).text);
    link->transport->ops->drop(link->transport, 0);
}

static uint64_t sleep_us(struct link *link, bool blocked)
{
    uint64_t now = clock_monotonic_us(), beat = heartbeat_deadline_us(link->heartbeat);
    uint64_t wait = blocked ? BLOCKED_US : SLEEP_MAX_US;
    if (beat <= now) return 1;
    return beat - now < wait ? beat - now : wait;
}

static void *run(void *arg)
{
    struct link *link = arg;
    const struct transport_ops *ops = link->transport->ops;
    while (!atomic_load(&link->stop)) {
        uint64_t peer, sent, received;
        enum wire_lane lane;
        const uint8_t *data;
        size_t size;
        drop_if_lost(link);
        send_heartbeat(link);
        bool sent_all = send_lane(link, WIRE_CONTROL);
        sent_all = send_lane(link, WIRE_BULK) && sent_all;
        enum status status = ops->recv(link->transport, sleep_us(link, !sent_all), &peer, &lane, &data, &size);
        for (int n = 0; status == STATUS_OK; n++) {
            receive(link, lane, data, size);
            if (n == 64) break; /* send heartbeats and queued messages between bursts */
            status = ops->recv(link->transport, 0, &peer, &lane, &data, &size);
        }
        ops->bytes(link->transport, &sent, &received);
        atomic_store(&link->sent, sent);
        atomic_store(&link->received, received);
    }
    return NULL;
}

/* --- the compute thread ------------------------------------------------------------------------------------------- */

static void link_free(struct link *link)
{
    for (int i = 0; i < LANES; i++) {
        ring_finish(&link->in[i]);
        ring_finish(&link->out[i]);
    }
    if (link->transport) link->transport->ops->close(link->transport);
    pthread_cond_destroy(&link->arrived);
    pthread_cond_destroy(&link->drained);
    pthread_mutex_destroy(&link->lock);
    mem_free(link->beat_bytes);
    mem_free(link);
}

static enum status start_thread(struct link *link)
{
    link->started = thread_start(&link->thread, run, link) == 0;
    return link->started ? STATUS_OK : STATUS_NOMEM;
}

enum status link_open(struct link **link_p, struct transport *transport, struct heartbeat *heartbeat, struct err *err)
{
    enum status status;
    pthread_condattr_t attr;
    struct link *link = mem_alloc(1, sizeof *link);
    if (!link) {
        transport->ops->close(transport);
        return err_set(err, STATUS_NOMEM, "no memory for the connection");
    }
    link->transport = transport;
    link->heartbeat = heartbeat;
    link->read_lane = -1;
    pthread_mutex_init(&link->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&link->arrived, &attr);
    pthread_cond_init(&link->drained, &attr);
    pthread_condattr_destroy(&attr);
    link->beat_bytes = mem_alloc(1, BEAT_BYTES);
    TRY_GOTO(link->beat_bytes ? STATUS_OK : STATUS_NOMEM, err_finish);
    TRY_GOTO(ring_init(&link->out[WIRE_CONTROL], CONTROL_OUT), err_finish);
    TRY_GOTO(ring_init(&link->out[WIRE_BULK], BULK_OUT), err_finish);
    TRY_GOTO(ring_init(&link->in[WIRE_CONTROL], CONTROL_IN), err_finish);
    TRY_GOTO(ring_init(&link->in[WIRE_BULK], BULK_IN), err_finish);
    TRY_GOTO(start_thread(link), err_finish);
    *link_p = link;
    return STATUS_OK;
err_finish:
    link_free(link);
    return err_set(err, status, "no memory for the connection");
}

static void deadline_after(struct timespec *at, uint64_t us)
{
    clock_gettime(CLOCK_MONOTONIC, at);
    uint64_t ns = (uint64_t)at->tv_nsec + us % 1000000 * 1000;
    at->tv_sec += (time_t)(us / 1000000 + ns / 1000000000);
    at->tv_nsec = (long)(ns % 1000000000);
}

void link_expect_end(struct link *link)
{
    atomic_store(&link->transport->ending, true);
}

void link_close(struct link *link, uint64_t flush_us)
{
    struct timespec until;
    if (!link) return;
    link_expect_end(link);
    deadline_after(&until, flush_us);
    pthread_mutex_lock(&link->lock);
    while (!ring_empty(&link->out[WIRE_CONTROL]) || !ring_empty(&link->out[WIRE_BULK]))
        if (pthread_cond_timedwait(&link->drained, &link->lock, &until) == ETIMEDOUT) break;
    pthread_mutex_unlock(&link->lock);
    atomic_store(&link->stop, true);
    link->transport->ops->wake(link->transport);
    pthread_join(link->thread, NULL);
    if (link->dropped) log_debug("dropped %llu messages: inbox full", (unsigned long long)link->dropped);
    link_free(link);
}

enum status link_send(struct link *link, enum wire_lane lane, const struct msg *m)
{
    size_t need = msg_encoded_size(m), size;
    pthread_mutex_lock(&link->lock);
    uint8_t *room = ring_reserve(&link->out[lane], need);
    enum status status = room ? msg_encode(m, room, need, &size) : STATUS_AGAIN;
    assert(status != STATUS_OK || size == need);
    if (status == STATUS_OK) ring_commit(&link->out[lane], 0, size);
    pthread_mutex_unlock(&link->lock);
    if (status == STATUS_OK) link->transport->ops->wake(link->transport);
    return status;
}

enum status link_recv(struct link *link, uint64_t timeout_us, enum wire_lane *lane_p, struct msg *m)
{
    struct timespec until;
    const uint8_t *data = NULL;
    size_t size = 0;
    uint32_t tag;
    struct err err = {0};
    deadline_after(&until, timeout_us);
    pthread_mutex_lock(&link->lock);
    assert(link->read_lane < LANES);
    if (link->read_lane >= 0) ring_drop(&link->in[link->read_lane]);
    link->read_lane = -1;
    for (;;) {
        for (int i = 0; i < LANES && link->read_lane < 0; i++) {
            data = ring_peek(&link->in[i], &tag, &size);
            if (data) link->read_lane = i;
        }
        if (link->read_lane >= 0 || !timeout_us) break;
        if (pthread_cond_timedwait(&link->arrived, &link->lock, &until) == ETIMEDOUT) break;
    }
    int lane = link->read_lane;
    pthread_mutex_unlock(&link->lock);
    if (lane < 0) return STATUS_AGAIN;
    *lane_p = (enum wire_lane)lane;
    enum status status = msg_decode(m, data, size, &err);
    if (status != STATUS_OK) log_warn("ignored a malformed message of the coordinator: %s", err.msg);
    return status;
}

void link_wait(struct link *link, uint64_t timeout_us)
{
    struct timespec until;
    deadline_after(&until, timeout_us);
    pthread_mutex_lock(&link->lock);
    while (ring_empty(&link->in[WIRE_CONTROL]) && ring_empty(&link->in[WIRE_BULK]))
        if (pthread_cond_timedwait(&link->arrived, &link->lock, &until) == ETIMEDOUT) break;
    pthread_mutex_unlock(&link->lock);
}

unsigned link_connected(const struct link *link)
{
    return atomic_load(&link->transport->connected);
}

unsigned link_failure(const struct link *link)
{
    return atomic_load(&link->transport->failure);
}

unsigned link_both_connected(const struct link *link)
{
    return atomic_load(&link->transport->both_connected);
}

void link_bytes(struct link *link, uint64_t *sent_p, uint64_t *received_p)
{
    *sent_p = atomic_load(&link->sent);
    *received_p = atomic_load(&link->received);
}
