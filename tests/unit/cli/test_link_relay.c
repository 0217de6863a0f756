/* The emulated link: it loses no bytes, shares its rate, and follows its commands. Rate and delay are measured by
 * tests/e2e/link/test_e2e_probe.sh; their arithmetic is in test_link_line. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "cli/link/link_relay.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/lib/test.h"

enum { MEGA = 1000 * 1000 };

struct setup {
    struct relay *link;
    int server, commands[2];
    uint16_t port;
    pthread_t thread;
};

static uint8_t data[2 * MEGA], got[2 * MEGA];

static int socket_with_patience(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval patience = {.tv_sec = 20};
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    return fd;
}

static int connect_to(uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket_with_patience();
    if (!connect(fd, (struct sockaddr *)&a, sizeof a)) return fd;
    close(fd);
    return -1;
}

static void *run_link(void *arg)
{
    struct setup *s = arg;
    return relay_run(s->link, NULL) == STATUS_OK ? NULL : s;
}

static struct setup *start(const char *spec)
{
    static struct setup s;
    struct err err;
    char to[32], address[RELAY_ADDRESS_MAX];
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof a;
    static bool filled;
    for (size_t i = 0; i < sizeof data && !filled; i += 8) {
        uint64_t v = rng_u64(1, RNG_TEST, i);
        memcpy(data + i, &v, sizeof v);
    }
    filled = true;
    s.server = socket_with_patience();
    assert_int_equal(bind(s.server, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s.server, 8), 0);
    assert_int_equal(getsockname(s.server, (struct sockaddr *)&a, &size), 0);
    assert_int_equal(pipe(s.commands), 0);
    snprintf(to, sizeof to, "127.0.0.1:%u", ntohs(a.sin_port));
    struct relay_options o = {.listen = "127.0.0.1:0", .to = to, .control_fd = s.commands[0]};
    assert_int_equal(link_spec_parse(&o.spec, spec, &err), STATUS_OK);
    assert_int_equal(relay_create(&s.link, &o, address, NULL), STATUS_OK);
    s.port = (uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10);
    assert_int_equal(pthread_create(&s.thread, NULL, run_link, &s), 0);
    return &s;
}

static void command(struct setup *s, const char *line)
{
    assert_int_equal(write(s->commands[1], line, strlen(line)), strlen(line));
}

static struct relay_totals stop(struct setup *s)
{
    void *failed;
    command(s, "quit\n");
    pthread_join(s->thread, &failed);
    assert_null(failed);
    struct relay_totals totals = relay_totals(s->link);
    relay_destroy(s->link);
    close(s->server);
    close(s->commands[0]);
    close(s->commands[1]);
    assert_int_equal(mem_live_bytes(), 0);
    return totals;
}

static void pair(struct setup *s, int fds[2])
{
    fds[0] = connect_to(s->port);
    fds[1] = accept(s->server, NULL, NULL);
    assert_true(fds[0] >= 0 && fds[1] >= 0);
    struct timeval patience = {.tv_sec = 20};
    assert_int_equal(setsockopt(fds[1], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
}

static size_t read_whole(int fd, uint8_t *out, size_t n)
{
    size_t have = 0;
    for (ssize_t k; have < n && (k = recv(fd, out + have, n - have, 0)) > 0;) have += (size_t)k;
    return have;
}

struct job {
    int fd;
    size_t size;
};

static void *send_whole(void *arg)
{
    struct job *job = arg;
    for (size_t sent = 0; sent < job->size;) {
        ssize_t n = send(job->fd, data + sent, job->size - sent, MSG_NOSIGNAL);
        if (n <= 0) return job;
        sent += (size_t)n;
    }
    shutdown(job->fd, SHUT_WR);
    return NULL;
}

/* Sends data[n] through the link; returns the seconds until all bytes and the end have arrived. */
static double transfer(int from, int to, size_t n)
{
    struct job job = {from, n};
    pthread_t thread;
    uint64_t start_us = clock_monotonic_us();
    assert_int_equal(pthread_create(&thread, NULL, send_whole, &job), 0);
    assert_int_equal(read_whole(to, got, sizeof got < n + 1 ? n : n + 1), n);
    double seconds = (double)(clock_monotonic_us() - start_us) / 1e6;
    void *failed;
    pthread_join(thread, &failed);
    assert_null(failed);
    assert_memory_equal(got, data, n);
    return seconds;
}

static void close_pair(int fds[2])
{
    close(fds[0]);
    close(fds[1]);
}

TEST(test_link_carries_all_bytes_both_ways)
{
    struct setup *s = start("jitter=2ms");
    int a[2], b[2];
    pair(s, a);
    pair(s, b);
    transfer(a[0], a[1], sizeof data);
    transfer(a[1], a[0], sizeof data); /* half closed: the other direction still works */
    transfer(b[1], b[0], 1000);
    transfer(b[0], b[1], 0);
    close_pair(a);
    close_pair(b);
    struct relay_totals totals = stop(s);
    assert_int_equal(totals.connections, 2);
    assert_int_equal(totals.up, sizeof data);
    assert_int_equal(totals.down, sizeof data + 1000);
}

/* A lower bound is physics and holds for each trial. A busy machine can delay any trial, so one of TRIALS within the
 * upper bound is enough. */
enum { TRIALS = 20 };

static double round_trip(const int fds[2])
{
    uint64_t start_us = clock_monotonic_us();
    assert_int_equal(send(fds[0], "x", 1, 0), 1);
    assert_int_equal(read_whole(fds[1], got, 1), 1);
    assert_int_equal(send(fds[1], "y", 1, 0), 1);
    assert_int_equal(read_whole(fds[0], got, 1), 1);
    return (double)(clock_monotonic_us() - start_us) / 1e6;
}

/* Returns the seconds that a small message takes beside a large transfer on another connection. */
static double beside_large_transfer(struct setup *s)
{
    int a[2], b[2];
    pair(s, a);
    pair(s, b);
    struct job job = {a[0], MEGA};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, send_whole, &job), 0);
    usleep(100 * 1000);
    uint64_t start_us = clock_monotonic_us();
    assert_int_equal(send(b[0], "urgent", 6, 0), 6);
    assert_int_equal(read_whole(b[1], got, 6), 6);
    double t = (double)(clock_monotonic_us() - start_us) / 1e6;
    assert_int_equal(read_whole(a[1], got, MEGA), MEGA);
    pthread_join(thread, NULL);
    close_pair(a);
    close_pair(b);
    return t;
}

/* Two connections share the link; the small message does not wait for the whole large transfer of 400 ms. */
TEST(test_connections_share_link)
{
    struct setup *s = start("20mbit");
    double t = beside_large_transfer(s);
    for (int i = 1; i < TRIALS && t > 0.2; i++) t = beside_large_transfer(s);
    if (t > 0.2) fail_msg("a small message waited %.3f s behind a large transfer", t);
    stop(s);
}

/* Returns whether no byte arrives for 300 ms. If one does, the link had not read the command yet, and gets it again. */
static bool stalls(struct setup *s, const int fds[2], int trial)
{
    struct timeval soon = {.tv_usec = 300 * 1000}, later = {.tv_sec = 20};
    command(s, "stall\n");
    usleep((useconds_t)(50 * (trial + 1)) * 1000);
    assert_int_equal(send(fds[1], "z", 1, 0), 1);
    assert_int_equal(setsockopt(fds[0], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon), 0);
    bool still = recv(fds[0], got, 1, 0) == -1;
    command(s, "go\n");
    assert_int_equal(setsockopt(fds[0], SOL_SOCKET, SO_RCVTIMEO, &later, sizeof later), 0);
    if (still) assert_int_equal(read_whole(fds[0], got, 1), 1);
    return still;
}

TEST(test_stall_delays_all_bytes)
{
    struct setup *s = start("none");
    int a[2];
    double t = 0;
    for (int i = 0; i < TRIALS && (t < 0.2 || t > 3); i++) {
        pair(s, a);
        command(s, "stall 0.3\n");
        usleep(50 * 1000);
        t = transfer(a[0], a[1], 1000);
        close_pair(a);
    }
    if (t < 0.2 || t > 3) fail_msg("a stall of 0.3 s took %.3f s", t);
    pair(s, a);
    bool still = false;
    for (int i = 0; i < TRIALS && !still; i++) still = stalls(s, a, i);
    assert_true(still);
    close_pair(a);
    stop(s);
}

/* Outages count from the start of the relay. The link carries bytes before and after them. */
TEST(test_outage_stops_all_bytes)
{
    bool stopped = false;
    for (int i = 0; i < TRIALS && !stopped; i++) {
        uint64_t before_us = clock_monotonic_us();
        struct setup *s = start("rtt=2ms,outage=300ms+400ms");
        int a[2];
        pair(s, a);
        double early = round_trip(a);
        uint64_t passed_us = clock_monotonic_us() - before_us;
        if (passed_us < 250 * 1000) { /* otherwise this machine is too busy to tell */
            assert_true(early < 0.25);
            usleep((useconds_t)(350 * 1000 - passed_us));
            double during = round_trip(a);
            stopped = during > 0.2 && during < 2;
            /* The outage ends 700 ms after the start of the relay, which is after before_us. */
            assert_true(!stopped || clock_monotonic_us() - before_us >= 700 * 1000);
        }
        close_pair(a);
        stop(s);
    }
    assert_true(stopped);
}

/* Closing a socket with unread bytes resets the connection; the sent bytes arrive before the reset. */
TEST(test_bytes_arrive_before_reset)
{
    struct setup *s = start("rtt=100ms");
    int a[2];
    pair(s, a);
    assert_int_equal(send(a[1], "unread", 6, 0), 6);
    assert_int_equal(recv(a[0], got, 1, MSG_PEEK), 1); /* the byte has arrived */
    assert_int_equal(send(a[0], "farewell", 8, 0), 8);
    close(a[0]);
    assert_int_equal(read_whole(a[1], got, 8), 8);
    assert_memory_equal(got, "farewell", 8);
    assert_int_equal(recv(a[1], got, 1, 0), -1);
    close(a[1]);
    stop(s);
}

TEST(test_cut_resets_and_down_refuses)
{
    struct setup *s = start("none");
    int a[2], b[2];
    pair(s, a);
    assert_int_equal(send(a[0], "x", 1, 0), 1);
    assert_int_equal(read_whole(a[1], got, 1), 1);
    command(s, "cut\n");
    assert_int_equal(recv(a[0], got, 1, 0), -1); /* reset, not closed */
    assert_int_equal(recv(a[1], got, 1, 0), -1);
    pair(s, b);
    assert_true(transfer(b[0], b[1], 1000) < 5);
    command(s, "down\n");
    assert_int_equal(recv(b[0], got, 1, 0), -1);
    assert_int_equal(connect_to(s->port), -1);
    close_pair(b);
    command(s, "nonsense\nup\n");
    for (int i = 0, fd = -1; i < 10 * TRIALS && fd < 0; i++) { /* until the link has read the command */
        usleep(100 * 1000);
        fd = connect_to(s->port);
        if (fd >= 0) close(fd), close(accept(s->server, NULL, NULL));
    }
    pair(s, b);
    transfer(b[0], b[1], 1000);
    close(s->server); /* the far end is closed: the link closes new connections */
    s->server = socket_with_patience();
    int fd = connect_to(s->port);
    assert_true(fd < 0 || recv(fd, got, 1, 0) <= 0);
    if (fd >= 0) close(fd);
    close_pair(a);
    close_pair(b);
    stop(s);
}

int main(int argc, char **argv)
{
    log_set_level(LOG_ERROR);
    return test_run(argc, argv, NULL, NULL);
}
