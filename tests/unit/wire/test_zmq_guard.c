/* ctest: labels=threads waits=1
 * The guard of a listener: silent connections are closed, workers are not, and strangers are logged once a minute. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/lib/net/test_access.h"
#include "tests/lib/test.h"
#include "wire/transport.h"
#include "wire/zmq/zmq_guard.h"

enum { SECOND = 1000 * 1000, PATIENCE = 20 * SECOND, STRANGERS = GUARD_PENDING_MAX + 500 };

struct pair {
    struct transport *listener, *dialler;
    struct test_access access;
    struct transport_address address;
    char bound[128];
};

static char lines[8][256];
static _Atomic unsigned n_lines; /* the guard's thread writes lines, too */

static void keep_line(void *ctx, enum log_level level, const char *line)
{
    (void)ctx, (void)level;
    snprintf(lines[n_lines % 8], sizeof lines[0], "%s", line);
    n_lines++;
}

static void begin(struct pair *p)
{
    memset(p, 0, sizeof *p);
    test_access_make(&p->access);
    assert_int_equal(
        transport_zmq_listen(&p->listener, "tcp://127.0.0.1:*", &p->access.access, p->bound, sizeof p->bound, NULL),
        STATUS_OK);
    p->address = test_access_address(&p->access, p->bound);
    n_lines = 0;
    log_set_sink(keep_line, NULL);
}

static void end(struct pair *p)
{
    if (p->dialler) p->dialler->ops->close(p->dialler);
    p->listener->ops->close(p->listener);
    log_set_sink(NULL, NULL);
    assert_int_equal(mem_live_bytes(), 0);
}

static void dial(struct pair *p)
{
    struct transport_worker self = test_access_worker(0);
    assert_int_equal(transport_zmq_dial(&p->dialler, &p->address, &self, NULL), STATUS_OK);
}

/* Sends a message on both lanes and waits for it. */
static void talk(struct pair *p)
{
    for (int lane = WIRE_CONTROL; lane <= WIRE_BULK; lane++) {
        assert_int_equal(p->dialler->ops->send(p->dialler, 0, (enum wire_lane)lane, (const uint8_t *)"x", 1),
                         STATUS_OK);
        uint64_t peer, end = clock_monotonic_us() + PATIENCE;
        enum wire_lane got;
        const uint8_t *data;
        size_t size;
        enum status status;
        do {
            (void)p->dialler->ops->recv(p->dialler, 0, &peer, &got, &data, &size);
            status = p->listener->ops->recv(p->listener, SECOND / 100, &peer, &got, &data, &size);
        } while (status == STATUS_AGAIN && clock_monotonic_us() < end);
        assert_int_equal(status, STATUS_OK);
        assert_int_equal(got, lane);
    }
}

static int connect_stranger(const struct pair *p)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    to.sin_port = htons((uint16_t)atoi(strrchr(p->bound, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static bool closed(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, ms) == 1;
}

TEST(test_flood_closes_strangers_only)
{
    static int fds[STRANGERS];
    struct pair p;
    begin(&p);
    dial(&p);
    talk(&p);
    for (int i = 0; i < STRANGERS; i++) {
        fds[i] = connect_stranger(&p);
        if (i % 50 == 0) usleep(5000);
    }
    assert_true(closed(fds[0], PATIENCE / 1000)); /* the oldest one, before the handshake's time is over */
    assert_false(closed(fds[STRANGERS - 1], 0));
    talk(&p);
    assert_int_equal(atomic_load(&p.dialler->connected), 1); /* both lanes are the first connections still */
    p.dialler->ops->close(p.dialler);
    dial(&p); /* a worker gets in beside them */
    talk(&p);
    /* Late handshakes: a few may be slow. */
    assert_true(closed(fds[STRANGERS - GUARD_LATE_MAX - 1], PATIENCE / 1000));
    for (int i = STRANGERS - GUARD_LATE_MAX; i < STRANGERS; i++) assert_false(closed(fds[i], 0));
    for (int i = 0; i < STRANGERS; i++) close(fds[i]);
    assert_int_equal(n_lines, 1);
    assert_non_null(strstr(lines[0], "refused a connection from 127.0.0.1: it did not finish the handshake"));
    end(&p);
}

/* One stranger may be a worker behind a slow relay: it keeps its connection for longer than GUARD_LATE_US. */
TEST(test_single_late_handshake_stays)
{
    struct pair p;
    begin(&p);
    int fd = connect_stranger(&p);
    assert_false(closed(fd, GUARD_LATE_US / 1000 + 2000));
    close(fd);
    end(&p);
}

TEST(test_refused_key_is_logged)
{
    struct pair p;
    begin(&p);
    p.access.strict = true; /* the worker's key is not enrolled, and it has no secret */
    p.address.has_secret = false;
    dial(&p);
    /* Until both lines are there; they come once, however often the dialler tries. */
    for (uint64_t start = clock_monotonic_us(), now = start;
         now - start < 3 * SECOND || (n_lines < 2 && now - start < PATIENCE); now = clock_monotonic_us()) {
        uint64_t peer;
        enum wire_lane lane;
        const uint8_t *data;
        size_t size;
        assert_int_equal(p.dialler->ops->recv(p.dialler, SECOND / 10, &peer, &lane, &data, &size), STATUS_AGAIN);
    }
    unsigned refused = 0;
    for (unsigned i = 0; i < n_lines; i++)
        refused += strstr(lines[i], "refused a connection from 127.0.0.1: its key is not enrolled") != NULL;
    assert_int_equal(refused, 1);
    assert_int_equal(n_lines, 2); /* the other line is the dialler's */
    end(&p);
}

TEST(test_strangers_are_logged_once_a_minute)
{
    struct strangers s = {.reason = "why"};
    const uint64_t start = 5 * SECOND, minute = 60 * SECOND;
    n_lines = 0;
    log_set_sink(keep_line, NULL);
    strangers_log(&s, start);
    assert_int_equal(n_lines, 0);
    strangers_add(&s, "10.0.0.1", start);
    assert_string_equal(lines[0], "refused a connection from 10.0.0.1: why");
    for (uint64_t i = 1; i < 1000; i++) strangers_add(&s, i < 999 ? "10.0.0.2" : "10.0.0.3", start + i);
    strangers_log(&s, start + minute - 1);
    assert_int_equal(n_lines, 1);
    strangers_log(&s, start + minute);
    assert_int_equal(n_lines, 2);
    assert_string_equal(lines[1], "refused 999 connections within a minute, the last one from 10.0.0.3: why");
    strangers_log(&s, start + 2 * minute);
    assert_int_equal(n_lines, 2);
    log_set_sink(NULL, NULL);
}

int main(int argc, char **argv)
{
    struct rlimit limit;
    if (!getrlimit(RLIMIT_NOFILE, &limit)) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_max < 2 * STRANGERS + 100) return 77;
    return test_run(argc, argv, NULL, NULL);
}
