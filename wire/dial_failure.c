#include "wire/dial_failure.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/units.h"
#include "wire/endpoint.h"

/* SIGNATURE: first bytes of a ZMTP greeting: ff, 8 bytes, 7f. RTTS: the greeting follows the connection after one round
 * trip, and later if a packet was lost. */
enum { SIGNATURE = 10, RTTS = 6 };

/* Wait until the descriptor is ready. False: timeout or signal. */
static bool wait_for(int fd, short events, uint64_t until_us)
{
    struct pollfd p = {.fd = fd, .events = events};
    uint64_t now = clock_monotonic_us();
    return now < until_us && poll(&p, 1, (int)((until_us - now) / 1000 + 1)) == 1;
}

/* Returns a connected socket, or -1 with errno. */
static int dial(const struct endpoint_found *found, const char *port, uint64_t until_us)
{
    char host[sizeof found->numeric];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV}, *list = NULL;
    bool bracket = found->numeric[0] == '[';
    snprintf(host, sizeof host, "%.*s", (int)strcspn(found->numeric + bracket, "]"), found->numeric + bracket);
    errno = EINVAL;
    if (getaddrinfo(host, port, &hints, &list)) return -1;
    int fd = socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), code = 0;
    socklen_t size = sizeof code;
    if (fd >= 0 && connect(fd, list->ai_addr, list->ai_addrlen)) {
        code = errno;
        if (code == EINPROGRESS) {
            code = ETIMEDOUT;
            if (wait_for(fd, POLLOUT, until_us)) getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size);
        }
    }
    freeaddrinfo(list);
    if (fd >= 0 && code) {
        close(fd);
        fd = -1;
        errno = code;
    }
    return fd;
}

static enum status explain_no_connection(const char *where, int code, struct err *err)
{
    if (code == ECONNREFUSED)
        return err_set(err, STATUS_CLOSED, "%s refused the connection: no coordinator listens there; start it", where);
    if (code == EHOSTUNREACH || code == ENETUNREACH || code == EACCES || code == EPERM)
        return err_set(err, STATUS_CLOSED, "no route to %s (%s): check the address, the network and the firewalls",
                       where, strerror(code));
    return err_set(err, STATUS_CLOSED,
                   "nothing answers at %s: check that the coordinator runs and that the firewall opens its port",
                   where);
}

/* What the other side has said. */
struct heard {
    uint8_t bytes[SIGNATURE];
    size_t n;
    bool closed; /* it closed the connection */
};

static void listen_until(struct heard *h, int fd, uint64_t until_us)
{
    while (h->n < SIGNATURE && !h->closed && wait_for(fd, POLLIN, until_us)) {
        ssize_t n = recv(fd, h->bytes + h->n, SIGNATURE - h->n, 0);
        h->closed = !n || (n < 0 && errno != EAGAIN && errno != EINTR);
        if (n > 0) h->n += (size_t)n;
    }
}

/* A coordinator speaks first. Many other programs wait for a line, and answer this one. */
static void listen_and_ask(struct heard *h, int fd, uint64_t until_us)
{
    static const char question[] = "GET / HTTP/1.0\r\n\r\n";
    uint64_t now = clock_monotonic_us();
    listen_until(h, fd, now < until_us ? now + (until_us - now) / 2 : until_us);
    if (!h->n && !h->closed && send(fd, question, sizeof question - 1, MSG_NOSIGNAL) < 0) return;
    listen_until(h, fd, until_us);
}

static enum status explain_greeting(int fd, const char *where, enum dial_failure seen, uint64_t rtt_us,
                                    uint64_t until_us, struct err *err)
{
    struct heard h = {0};
    uint64_t began = clock_monotonic_us();
    if (until_us < began + RTTS * rtt_us) until_us = began + RTTS * rtt_us;
    listen_and_ask(&h, fd, until_us);
    if (!h.n && h.closed)
        return err_set(err, STATUS_CLOSED, "%s closes every connection at once: check that the coordinator runs",
                       where);
    if (!h.n)
        return err_set(err, STATUS_CLOSED,
                       "%s accepts connections, but says nothing for %s (round trip %s): the coordinator hangs, or "
                       "another program has the port",
                       where, units_duration((double)(clock_monotonic_us() - began) / 1e6).text,
                       units_duration((double)rtt_us / 1e6).text);
    if (h.n < SIGNATURE || h.bytes[0] != 0xff || h.bytes[SIGNATURE - 1] != 0x7f)
        return err_set(err, STATUS_INVALID, "%s is not a coordinator: another program answers there; check the port",
                       where);
    if (seen == DIAL_CLOSED)
        return err_set(
            err, STATUS_INVALID,
            "%s does not accept the server key of this join line: use the present join line of the coordinator "
            "(RUN/address)",
            where);
    return STATUS_OK;
}

enum status dial_failure_explain(const struct transport_address *address, enum dial_failure seen, uint64_t timeout_us,
                                 struct err *err)
{
    struct endpoint e;
    struct endpoint_found found;
    uint64_t began = clock_monotonic_us(), until_us = began + timeout_us;
    const char *where = address->endpoint;
    if (seen == DIAL_REFUSED_KEY)
        return err_set(
            err, STATUS_INVALID,
            address->has_secret
                ? "%s refused the secret of this join line: use the present join line of the coordinator "
                  "(RUN/address)"
                : "%s refused the key of this worker: enrol it with atoll workers RUN --add NAME KEY, or use "
                  "the whole join line",
            where);
    TRY(endpoint_parse(&e, where, false, err));
    enum status status = endpoint_find(&found, &e, err);
    if (status == STATUS_NOTFOUND) return err->code = STATUS_INVALID;
    if (status != STATUS_OK) return status;
    began = clock_monotonic_us();
    int fd = dial(&found, e.port, until_us);
    if (fd < 0 && errno == EMFILE) return err_set(err, STATUS_CLOSED, "%s: %s", where, strerror(errno));
    if (fd < 0) return explain_no_connection(where, errno, err);
    status = explain_greeting(fd, where, seen, clock_monotonic_us() - began, until_us, err);
    close(fd);
    return status;
}
