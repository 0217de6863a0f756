/* ctest: waits=1
 * A worker dies while the coordinator does not read its messages for a while (a suspended machine, a slow disk).
 * libzmq up to 4.3.5 can end the process then (zeromq/libzmq issue 4841). A full queue keeps the broken connection
 * from being read, and the ping of that connection falls due. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/lib/net/test_access.h"
#include "tests/lib/test.h"
#include "wire/transport.h"

enum { SECOND = 1000 * 1000, MESSAGES = 500, STALL = 11 * SECOND };

/* A worker that sends more than the listener accepts, reports it, and then sleeps. */
static _Noreturn void worker(int address, int sent)
{
    char endpoint[512] = "";
    struct transport_worker self = test_access_worker(0);
    struct transport_address parsed;
    struct transport *t;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (read(address, endpoint, sizeof endpoint - 1) <= 0 || transport_address_parse(&parsed, endpoint, NULL) ||
        transport_zmq_dial(&t, &parsed, &self, NULL))
        _exit(1);
    for (int i = 0; i < MESSAGES; i++)
        while (t->ops->send(t, 0, WIRE_CONTROL, (const uint8_t *)"message", 7) == STATUS_AGAIN) usleep(1000);
    if (write(sent, "", 1) != 1) _exit(1);
    for (;;) pause();
}

TEST(test_stalled_listener_survives_reset_of_worker)
{
    int address[2], sent[2];
    assert_int_equal(pipe(address), 0);
    assert_int_equal(pipe(sent), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) worker(address[0], sent[1]);
    char bound[128], byte;
    struct transport *t;
    struct test_access access;
    test_access_make(&access);
    assert_int_equal(transport_zmq_listen(&t, "tcp://127.0.0.1:*", &access.access, bound, sizeof bound, NULL),
                     STATUS_OK);
    const char *line = test_access_line(&access, bound);
    assert_int_equal(write(address[1], line, strlen(line)), strlen(line));
    uint64_t peer;
    enum wire_lane lane;
    const uint8_t *data;
    size_t size;
    assert_int_equal(t->ops->recv(t, 20 * SECOND, &peer, &lane, &data, &size), STATUS_OK);
    assert_int_equal(read(sent[0], &byte, 1), 1);
    /* It dies with unread bytes, so that the connection ends with a reset. */
    assert_int_equal(kill(child, SIGSTOP), 0);
    assert_int_equal(t->ops->send(t, peer, WIRE_CONTROL, (const uint8_t *)"answer", 6), STATUS_OK);
    usleep(SECOND / 5);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    usleep(STALL);
    assert_int_equal(t->ops->recv(t, 20 * SECOND, &peer, &lane, &data, &size), STATUS_OK);
    while (t->ops->recv(t, SECOND, &peer, &lane, &data, &size) == STATUS_OK) continue;
    struct transport_address parsed = test_access_address(&access, bound);
    struct transport_worker self = test_access_worker(1);
    struct transport *next;
    assert_int_equal(transport_zmq_dial(&next, &parsed, &self, NULL), STATUS_OK);
    assert_int_equal(next->ops->send(next, 0, WIRE_BULK, (const uint8_t *)"next", 4), STATUS_OK);
    assert_int_equal(t->ops->recv(t, 20 * SECOND, &peer, &lane, &data, &size), STATUS_OK);
    assert_int_equal(size, 4);
    next->ops->close(next);
    t->ops->close(t);
    for (int i = 0; i < 2; i++) {
        close(address[i]);
        close(sent[i]);
    }
    assert_int_equal(mem_live_bytes(), 0);
}

int main(int argc, char **argv)
{
    log_set_level(LOG_ERROR);
    return test_run(argc, argv, NULL, NULL);
}
