/* ctest: labels=threads waits=1
 * Every reason why a coordinator cannot be reached has its line, and tells whether a retry can help. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "tests/lib/net/test_access.h"
#include "tests/lib/test.h"
#include "wire/dial_failure.h"

/* ANSWER: of a server on a busy machine. Half of it passes before the question to one that waits for a line. */
enum { SECOND = 1000 * 1000, ANSWER = 4 * SECOND, SILENCE = SECOND / 2, PATIENCE = 20 * SECOND };

/* A server that accepts one connection and sends `text`; NULL: closes at once; "": says nothing. */
struct server {
    int fd, connection;
    const char *text;
    bool asked; /* sends it after an empty line, as HTTP servers do */
    pthread_t thread;
    struct transport_address address;
};

static void *serve(void *arg)
{
    struct server *s = arg;
    s->connection = accept(s->fd, NULL, NULL);
    char line[64] = "";
    for (size_t n = 0; s->asked && !strstr(line, "\r\n\r\n") && n + 1 < sizeof line;) {
        ssize_t got = recv(s->connection, line + n, sizeof line - 1 - n, 0);
        if (got <= 0) return s;
        n += (size_t)got;
    }
    if (s->text && send(s->connection, s->text, strlen(s->text), MSG_NOSIGNAL) < 0) return s;
    if (!s->text) shutdown(s->connection, SHUT_RDWR);
    return NULL;
}

static void begin(struct server *s, const char *text, bool asked)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof a;
    *s = (struct server){
        .fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .connection = -1, .text = text, .asked = asked};
    assert_int_equal(bind(s->fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s->fd, 4), 0);
    assert_int_equal(getsockname(s->fd, (struct sockaddr *)&a, &size), 0);
    snprintf(s->address.endpoint, sizeof s->address.endpoint, "tcp://127.0.0.1:%u", ntohs(a.sin_port));
    assert_int_equal(thread_start(&s->thread, serve, s), 0);
}

static void end(struct server *s)
{
    assert_int_equal(pthread_join(s->thread, NULL), 0);
    close(s->connection);
    close(s->fd);
}

static void explains_within(uint64_t timeout_us, const struct transport_address *a, enum dial_failure seen,
                            enum status expected, const char *text)
{
    struct err err = {0};
    uint64_t began = clock_monotonic_us();
    enum status status = dial_failure_explain(a, seen, timeout_us, &err);
    if (status != expected || !strstr(err.msg, text)) fail_msg("status %d: %s", (int)status, err.msg);
    assert_true(clock_monotonic_us() - began < timeout_us + PATIENCE);
}

static void explains(const struct transport_address *a, enum dial_failure seen, enum status expected, const char *text)
{
    explains_within(ANSWER, a, seen, expected, text);
}

TEST(test_each_reason_has_its_line)
{
    struct server s;
    begin(&s, "SSH-2.0-OpenSSH_9.2p1\r\n", false);
    explains(&s.address, DIAL_NO_CONNECTION, STATUS_INVALID, "is not a coordinator");
    end(&s);
    begin(&s, "HTTP/1.0 200 OK\r\n", true);
    explains(&s.address, DIAL_NO_CONNECTION, STATUS_INVALID, "is not a coordinator");
    end(&s);
    explains(&s.address, DIAL_NO_CONNECTION, STATUS_CLOSED, "refused the connection"); /* it is gone */
    begin(&s, "", false);
    explains_within(SILENCE, &s.address, DIAL_NO_CONNECTION, STATUS_CLOSED, "says nothing for ");
    end(&s);
    begin(&s, NULL, false);
    explains(&s.address, DIAL_CLOSED, STATUS_CLOSED, "closes every connection at once");
    end(&s);
    struct transport_address wrong = {.endpoint = "tcp://host..name:29600"};
    explains(&wrong, DIAL_NO_CONNECTION, STATUS_INVALID, "not found (check the spelling)");
}

static struct transport *listener;
static struct test_access keys;
static char bound[128];

/* Dials until the dialler saw `expected`. */
static void dial_until(struct transport_address a, enum dial_failure expected)
{
    struct transport *t;
    struct transport_worker worker = test_access_worker(1);
    a.quiet = true;
    assert_int_equal(transport_zmq_dial(&t, &a, &worker, NULL), STATUS_OK);
    for (uint64_t until = clock_monotonic_us() + PATIENCE; atomic_load(&t->failure) != expected;) {
        uint64_t peer;
        enum wire_lane lane;
        const uint8_t *data;
        size_t size;
        if (clock_monotonic_us() > until) fail_msg("the dialler saw %u", atomic_load(&t->failure));
        assert_int_equal(t->ops->recv(t, SECOND / 10, &peer, &lane, &data, &size), STATUS_AGAIN);
    }
    t->ops->close(t);
}

static unsigned lines;

static void count_line(void *ctx, enum log_level level, const char *line)
{
    (void)ctx, (void)level;
    lines += !strstr(line, "refused a connection"); /* by the listener */
}

TEST(test_wrong_keys_are_told_apart)
{
    struct transport_worker stranger = test_access_worker(2);
    test_access_make(&keys);
    keys.strict = true;
    assert_int_equal(transport_zmq_listen(&listener, "tcp://127.0.0.1:*", &keys.access, bound, sizeof bound, NULL),
                     STATUS_OK);
    log_set_sink(count_line, NULL);
    struct transport_address good = test_access_address(&keys, bound), a = good;
    memcpy(a.secret, stranger.key.secret, WIRE_KEY);
    dial_until(a, DIAL_REFUSED_KEY);
    explains(&a, DIAL_REFUSED_KEY, STATUS_INVALID, "refused the secret of this join line");
    a.has_secret = false;
    dial_until(a, DIAL_REFUSED_KEY);
    explains(&a, DIAL_REFUSED_KEY, STATUS_INVALID, "refused the key of this worker");
    a = good;
    memcpy(a.server_key, stranger.key.public_key, WIRE_KEY); /* another coordinator */
    dial_until(a, DIAL_CLOSED);
    explains(&a, DIAL_CLOSED, STATUS_INVALID, "does not accept the server key");
    struct err err = {0};
    assert_int_equal(dial_failure_explain(&a, DIAL_NO_CONNECTION, ANSWER, &err), STATUS_OK); /* a coordinator */
    listener->ops->close(listener);
    dial_until(good, DIAL_NO_CONNECTION);
    struct server silent;
    begin(&silent, "", false);
    a = good;
    memcpy(a.endpoint, silent.address.endpoint, sizeof a.endpoint);
    dial_until(a, DIAL_SLOW);
    end(&silent);
    log_set_sink(NULL, NULL);
    assert_int_equal(lines, 0); /* quiet */
    assert_int_equal(mem_live_bytes(), 0);
}

TEST_MAIN(NULL, NULL)
