/* ctest: labels=threads waits=1
 * Connections that break in bad moments must not end the worker. libzmq up to 4.3.5 aborts the process when a
 * connection breaks while a full queue blocks its reading and a heartbeat of ZMTP falls due (zeromq/libzmq issues 4364,
 * 4841).
 *
 * - The coordinator's process dies while the worker reads no messages.
 * - A relay flips bits of encrypted connections: hundreds of them break, no message is wrong, and all connect again. */
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/link/link_relay.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/lib/net/test_access.h"
#include "tests/lib/test.h"
#include "wire/transport.h"

enum {
    SECOND = 1000 * 1000,
    PATIENCE = 20 * SECOND,
    STALL = 6 * SECOND,
    DIALLERS = 4,
    FLIP_BYTES = 100000,
    FLIPS = 200
};

static const uint8_t text[3000] = "a message of three thousand bytes";

static enum status recv_any(struct transport *t, uint64_t timeout_us, size_t *size_p, enum wire_lane *lane_p,
                            uint64_t *peer_p)
{
    const uint8_t *data;
    enum status status = t->ops->recv(t, timeout_us, peer_p, lane_p, &data, size_p);
    if (status == STATUS_OK) assert_memory_equal(data, text, *size_p); /* never a corrupted one */
    return status;
}

static struct test_access access_keys;

static struct transport *dial(const struct transport_address *address, int number)
{
    struct transport *t;
    struct transport_worker worker = test_access_worker(number);
    assert_int_equal(transport_zmq_dial(&t, address, &worker, NULL), STATUS_OK);
    return t;
}

static struct transport *listen_with_keys(struct transport_address *address)
{
    struct transport *t;
    char bound[128];
    test_access_make(&access_keys);
    if (transport_zmq_listen(&t, "tcp://127.0.0.1:*", &access_keys.access, bound, sizeof bound, NULL)) return NULL;
    *address = test_access_address(&access_keys, bound);
    return t;
}

/* A coordinator that answers a message with more than the worker's queue holds, reports it, and then sleeps. */
static _Noreturn void coordinator(int address_fd, int report)
{
    struct transport_address address;
    uint64_t peer;
    enum wire_lane lane;
    size_t size;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct transport *t = listen_with_keys(&address);
    if (!t || write(address_fd, &address, sizeof address) != sizeof address) _exit(1);
    if (recv_any(t, PATIENCE, &size, &lane, &peer) != STATUS_OK) _exit(1);
    for (int quiet = 0; quiet < 50; quiet++) {
        while (t->ops->send(t, peer, WIRE_CONTROL, text, sizeof text) == STATUS_OK) quiet = 0;
        usleep(SECOND / 100);
    }
    if (write(report, "", 1) != 1) _exit(1);
    for (;;) pause();
}

TEST(test_worker_that_reads_nothing_survives_reset)
{
    int address_fd[2], report[2];
    assert_int_equal(pipe(address_fd), 0);
    assert_int_equal(pipe(report), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) coordinator(address_fd[1], report[1]);
    struct transport_address address;
    char byte;
    assert_int_equal(read(address_fd[0], &address, sizeof address), sizeof address);
    struct transport *t = dial(&address, 1);
    assert_int_equal(t->ops->send(t, 0, WIRE_CONTROL, text, sizeof text), STATUS_OK);
    assert_int_equal(read(report[0], &byte, 1), 1);
    /* It dies with unread bytes, so that the connection ends with a reset. */
    assert_int_equal(kill(child, SIGSTOP), 0);
    assert_int_equal(t->ops->send(t, 0, WIRE_CONTROL, text, sizeof text), STATUS_OK);
    usleep(SECOND / 5);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    usleep(STALL);
    size_t size;
    enum wire_lane lane;
    uint64_t peer;
    int got = 0;
    for (uint64_t end = clock_monotonic_us() + PATIENCE; got < 200;
         got += recv_any(t, SECOND, &size, &lane, &peer) == STATUS_OK)
        assert_true(clock_monotonic_us() < end);
    while (recv_any(t, SECOND / 5, &size, &lane, &peer) == STATUS_OK) continue;
    t->ops->close(t);
    for (int i = 0; i < 2; i++) {
        close(address_fd[i]);
        close(report[i]);
    }
    assert_int_equal(mem_live_bytes(), 0);
}

static void *run_relay(void *arg)
{
    return relay_run(arg, NULL) == STATUS_OK ? NULL : arg;
}

/* Sends on both lanes in both directions, and reads what arrives. Returns the number of messages that arrived. */
static int exchange(struct transport *listener, struct transport *const *diallers, unsigned heard[DIALLERS])
{
    int n = 0;
    size_t size;
    enum wire_lane lane;
    uint64_t peer;
    for (int i = 0; i < DIALLERS; i++) {
        for (int l = WIRE_CONTROL; l <= WIRE_BULK; l++)
            (void)diallers[i]->ops->send(diallers[i], 0, (enum wire_lane)l, text, sizeof text);
        while (recv_any(diallers[i], 0, &size, &lane, &peer) == STATUS_OK) {
            heard[i] |= 1u << lane;
            n++;
        }
    }
    for (int i = 0; i < 50 && recv_any(listener, i ? 0 : 1000, &size, &lane, &peer) == STATUS_OK; i++, n++)
        (void)listener->ops->send(listener, peer, lane, text, sizeof text);
    return n;
}

TEST(test_flipped_bits_break_connections_only)
{
    struct transport_address address;
    struct transport *listener = listen_with_keys(&address), *diallers[DIALLERS];
    struct relay *relay;
    char relayed[RELAY_ADDRESS_MAX];
    int commands[2], messages = 0;
    pthread_t thread;
    assert_non_null(listener);
    assert_int_equal(pipe(commands), 0);
    struct relay_options o = {.listen = "127.0.0.1:0",
                              .to = address.endpoint + strlen("tcp://"),
                              .spec = {.up_mbit = 16, .down_mbit = 16},
                              .control_fd = commands[0]};
    assert_int_equal(relay_create(&relay, &o, relayed, NULL), STATUS_OK);
    char flip[32];
    int n = snprintf(flip, sizeof flip, "flip %d\n", FLIP_BYTES);
    assert_int_equal(write(commands[1], flip, (size_t)n), n);
    assert_int_equal(pthread_create(&thread, NULL, run_relay, relay), 0);
    snprintf(address.endpoint, sizeof address.endpoint, "tcp://%s", relayed);
    for (int i = 0; i < DIALLERS; i++) diallers[i] = dial(&address, i);
    unsigned heard[DIALLERS] = {0};
    uint64_t end = clock_monotonic_us() + 3 * (uint64_t)PATIENCE;
    while (relay_totals(relay).flips < FLIPS && clock_monotonic_us() < end)
        messages += exchange(listener, diallers, heard);
    assert_true(relay_totals(relay).flips >= FLIPS);
    assert_true(relay_totals(relay).connections > FLIPS / 3);
    assert_true(messages > 1000);
    assert_int_equal(write(commands[1], "flip 0\n", 7), 7);
    end = clock_monotonic_us() + PATIENCE;
    for (int i = 0; i < DIALLERS; i++) { /* every lane of every worker works again */
        heard[i] = 0;
        while (heard[i] != 3) {
            assert_true(clock_monotonic_us() < end);
            exchange(listener, diallers, heard);
        }
    }
    printf("%llu flipped bits, %llu connections, %d messages\n", (unsigned long long)relay_totals(relay).flips,
           (unsigned long long)relay_totals(relay).connections, messages);
    assert_int_equal(write(commands[1], "quit\n", 5), 5);
    void *failed;
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    for (int i = 0; i < DIALLERS; i++) diallers[i]->ops->close(diallers[i]);
    listener->ops->close(listener);
    relay_destroy(relay);
    close(commands[0]);
    close(commands[1]);
    assert_int_equal(mem_live_bytes(), 0);
}

int main(int argc, char **argv)
{
    log_set_level(LOG_ERROR);
    return test_run(argc, argv, NULL, NULL);
}
