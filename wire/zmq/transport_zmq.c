#include "wire/zmq/transport_zmq.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* TCP's timers (unacknowledged data, keep-alive) detect a dead path on both lanes and tolerate a slow one. The worker's
 * own heartbeats detect a dead program behind a live relay (worker/link/heartbeat.h).
 *
 * There are no heartbeats of ZMTP: when a connection breaks while a full queue blocks its reading, libzmq up to 4.3.5
 * aborts the process as soon as a heartbeat falls due (zeromq/libzmq issues 4364 and 4841). */
static const struct zmq_option common_options[] = {
    {ZMQ_TCP_MAXRT, ZMQ_BASE_MAXRT_MS}, {ZMQ_TCP_KEEPALIVE, 1},     {ZMQ_TCP_KEEPALIVE_IDLE, 15},
    {ZMQ_TCP_KEEPALIVE_INTVL, 5},       {ZMQ_TCP_KEEPALIVE_CNT, 3}, {ZMQ_RECONNECT_IVL, 100},
    {ZMQ_RECONNECT_IVL_MAX, 2000},      {ZMQ_LINGER, 1000},         {0, 0},
};

enum { CURVE_BOX = 8 + 8 + 16 + 1, WAIT_MAX_MS = 3600 * 1000 };

enum status zmq_base_init(struct zmq_base *base, const struct transport_ops *ops, struct err *err)
{
    base->transport.ops = ops;
    base->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (base->wake_fd < 0) return err_set(err, STATUS_IO, "eventfd: %s", strerror(errno));
    base->context = zmq_ctx_new();
    if (base->context) return STATUS_OK;
    err_set(err, STATUS_IO, "ZeroMQ context: %s", zmq_strerror(errno));
    close(base->wake_fd);
    return STATUS_IO;
}

void zmq_base_finish(struct zmq_base *base)
{
    while (zmq_ctx_term(base->context) && errno == EINTR) continue;
    close(base->wake_fd);
}

static int set_options(void *socket, const struct zmq_option *options)
{
    for (; options->name; options++)
        if (zmq_setsockopt(socket, options->name, &options->value, sizeof options->value)) return -1;
    return 0;
}

void *zmq_base_socket(struct zmq_base *base, int type, const struct zmq_option *more, struct err *err)
{
    int64_t limit = WIRE_HEADER + WIRE_BODY_MAX + CURVE_BOX;
    void *socket = zmq_socket(base->context, type);
    if (socket && !zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &limit, sizeof limit) &&
        !set_options(socket, common_options) && !set_options(socket, more))
        return socket;
    err_set(err, STATUS_IO, "ZeroMQ socket: %s", zmq_strerror(errno));
    if (socket) zmq_close(socket);
    return NULL;
}

uint64_t transport_wire_bytes(size_t size)
{
    size += CURVE_BOX;
    return size + (size > 255 ? 9 : 2); /* flags and length, RFC 23/ZMTP */
}

bool zmq_base_wait(struct zmq_base *base, void *const *sockets, int n, uint64_t timeout_us)
{
    assert(n >= 0 && n <= ZMQ_BASE_SOCKETS);
    zmq_pollitem_t items[1 + ZMQ_BASE_SOCKETS] = {{.fd = base->wake_fd, .events = ZMQ_POLLIN}};
    for (int i = 0; i < n; i++) items[1 + i] = (zmq_pollitem_t){.socket = sockets[i], .events = ZMQ_POLLIN};
    uint64_t ms = timeout_us / 1000 + (timeout_us % 1000 != 0);
    int ready = zmq_poll(items, 1 + n, (long)(ms < WAIT_MAX_MS ? ms : WAIT_MAX_MS));
    if (ready <= 0) return false;
    uint64_t count;
    bool woken = items[0].revents && read(base->wake_fd, &count, sizeof count) == sizeof count;
    return ready > woken;
}

enum status zmq_part_recv(zmq_msg_t *part, void *socket)
{
    int n;
    do n = zmq_msg_recv(part, socket, ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n >= 0) return STATUS_OK;
    return errno == EAGAIN ? STATUS_AGAIN : STATUS_IO;
}

void zmq_parts_drop(zmq_msg_t *part, void *socket)
{
    while (zmq_msg_more(part))
        if (zmq_part_recv(part, socket) != STATUS_OK) return;
}

void zmq_base_wake(struct transport *t)
{
    uint64_t one = 1;
    int saved = errno; /* a signal handler must not change errno */
    ssize_t n = write(((struct zmq_base *)t)->wake_fd, &one, sizeof one);
    (void)n; /* a full eventfd means that a wake-up is already pending */
    errno = saved;
}

void zmq_base_bytes(const struct transport *t, uint64_t *sent_p, uint64_t *received_p)
{
    const struct zmq_base *base = (const struct zmq_base *)t;
    *sent_p = base->sent;
    *received_p = base->received;
}
