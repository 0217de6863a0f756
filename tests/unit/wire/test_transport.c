/* ctest: labels=threads waits=1
 * The contract of a transport, tested with ZeroMQ over loopback: order, both lanes, full queues, reconnects, keys. */
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/lib/net/transport_rig.h"
#include "tests/lib/test.h"
#include "wire/msg.h"
#include "wire/transport.h"

enum { BIG = WIRE_HEADER + WIRE_BODY_MAX, BOX = 33 /* of CURVE */ };

static uint8_t big[BIG];

TEST(test_both_lanes_deliver_in_both_directions)
{
    struct endpoints p = {0};
    uint64_t peers[2][2];
    listen_at(&p, "tcp://127.0.0.1:*");
    for (int i = 0; i < 2; i++) {
        dial(&p, i);
        greet(&p, i, peers[i]);
        say(p.listener, peers[i][WIRE_BULK], WIRE_BULK, i ? "b1" : "b0");
        expect_text(p.diallers[i], WIRE_BULK, i ? "b1" : "b0", NULL);
        say(p.listener, peers[i][WIRE_CONTROL], WIRE_CONTROL, i ? "c1" : "c0");
        expect_text(p.diallers[i], WIRE_CONTROL, i ? "c1" : "c0", NULL);
    }
    assert_true(peers[0][0] != peers[0][1] && peers[0][0] != peers[1][0] && peers[0][1] != peers[1][1]);
    assert_int_equal(send_to(p.listener, peers[0][WIRE_BULK], WIRE_CONTROL, "x", 1), STATUS_INVALID);
    assert_int_equal(send_to(p.listener, 0, WIRE_CONTROL, "x", 1), STATUS_CLOSED);
    assert_int_equal(send_to(p.listener, peers[0][0] + (1 << 20), WIRE_CONTROL, "x", 1), STATUS_CLOSED);
    assert_int_equal(send_to(p.diallers[0], 1, WIRE_CONTROL, "x", 1), STATUS_CLOSED);
    struct arrival a;
    assert_int_equal(recv_for(p.listener, 0, &a), STATUS_AGAIN);
    close_all(&p);
}

/* Sends `n` numbered messages from one end while the other end reads; each lane keeps its order. */
static void stream(struct transport *from, const uint64_t peers[2], struct transport *to, uint32_t n)
{
    uint32_t sent[2] = {0}, received[2] = {0};
    uint64_t end = clock_monotonic_us() + PATIENCE;
    while (received[0] < n || received[1] < n) {
        assert_true(clock_monotonic_us() < end);
        for (int lane = 0; lane < 2; lane++) {
            uint32_t size = lane == WIRE_BULK ? 50000 : 100;
            memcpy(big, &sent[lane], sizeof sent[lane]);
            enum status status =
                sent[lane] < n ? send_to(from, peers[lane], (enum wire_lane)lane, big, size) : STATUS_AGAIN;
            assert_true(status == STATUS_OK || status == STATUS_AGAIN);
            sent[lane] += status == STATUS_OK;
        }
        struct arrival a;
        while (recv_for(to, sent[0] == n && sent[1] == n ? SECOND : 0, &a) == STATUS_OK) {
            uint32_t number;
            memcpy(&number, a.data, sizeof number);
            assert_int_equal(number, received[a.lane]);
            assert_int_equal(a.size, a.lane == WIRE_BULK ? 50000 : 100);
            if (++received[a.lane] == n) break;
        }
    }
}

TEST(test_each_lane_keeps_order)
{
    struct endpoints p = {0};
    uint64_t peers[2], dialled[2] = {0};
    listen_at(&p, "tcp://127.0.0.1:*");
    dial(&p, 0);
    greet(&p, 0, peers);
    stream(p.diallers[0], dialled, p.listener, 1000);
    stream(p.listener, peers, p.diallers[0], 1000);
    close_all(&p);
}

TEST(test_large_messages_are_counted)
{
    struct endpoints p = {0};
    uint64_t peers[2], sent[2], received[2];
    listen_at(&p, "tcp://127.0.0.1:*");
    dial(&p, 0);
    greet(&p, 0, peers);
    for (size_t i = 0; i < BIG; i++) big[i] = (uint8_t)(i * 2654435761u >> 24);
    for (int up = 0; up < 2; up++) {
        struct transport *from = up ? p.diallers[0] : p.listener, *to = up ? p.listener : p.diallers[0];
        for (int lane = 0; lane < 2; lane++) {
            assert_int_equal(send_to(from, up ? 0 : peers[lane], (enum wire_lane)lane, big, BIG), STATUS_OK);
            struct arrival a = expect(to);
            assert_int_equal(a.lane, lane);
            assert_int_equal(a.size, BIG);
            assert_memory_equal(a.data, big, BIG);
        }
    }
    p.diallers[0]->ops->bytes(p.diallers[0], &sent[0], &received[0]);
    p.listener->ops->bytes(p.listener, &sent[1], &received[1]);
    assert_int_equal(sent[0], 2 * (5 + BOX + 2) +
                                  2 * (BIG + BOX + 9)); /* ZMTP: two bytes before a short frame, nine before a long */
    assert_int_equal(received[1], sent[0]);
    assert_int_equal(sent[1], 2 * (BIG + BOX + 9));
    assert_int_equal(received[0], sent[1]);
    close_all(&p);
}

/* A queue without a reader fills up, returns AGAIN, and works again once it is emptied. */
TEST(test_full_queue_returns_again)
{
    struct endpoints p = {0};
    uint64_t peers[2];
    listen_at(&p, "tcp://127.0.0.1:*");
    dial(&p, 0);
    greet(&p, 0, peers);
    for (int up = 0; up < 2; up++) {
        struct transport *from = up ? p.diallers[0] : p.listener, *to = up ? p.listener : p.diallers[0];
        uint64_t peer = up ? 0 : peers[WIRE_BULK];
        int sent = 0;
        /* The queue stays full after the kernel has taken its part. */
        for (int quiet = 0; quiet < 20;) {
            enum status status = send_to(from, peer, WIRE_BULK, big, WIRE_CHUNK_MAX);
            assert_true(status == STATUS_OK || status == STATUS_AGAIN);
            sent += status == STATUS_OK;
            quiet = status == STATUS_OK ? 0 : quiet + 1;
            if (quiet) usleep(5000);
            assert_true(sent < 300);
        }
        for (int i = 0; i < sent; i++) assert_int_equal(expect(to).size, WIRE_CHUNK_MAX);
        for (int i = 0; send_to(from, peer, WIRE_BULK, "x", 1) != STATUS_OK; i++) {
            assert_true(i < 1000);
            usleep(5000);
        }
        expect_text(to, WIRE_BULK, "x", NULL);
    }
    close_all(&p);
    snprintf(p.address.endpoint, sizeof p.address.endpoint, "tcp://127.0.0.1:1"); /* no listener: bounded, too */
    dial(&p, 0);
    int sent = 0;
    while (send_to(p.diallers[0], 0, WIRE_BULK, big, WIRE_CHUNK_MAX) == STATUS_OK) assert_true(++sent < 20);
    close_all(&p);
}

/* Receives from `t` until `n` control messages have arrived; returns the number of others before the last of those. */
static int others_before(struct transport *t, int n)
{
    int others = 0;
    for (int control = 0; control < n;) {
        if (expect(t).lane == WIRE_CONTROL)
            control++;
        else
            others++;
    }
    return others;
}

/* Sends control messages while the bulk queues of three workers are full, and gives them `ms` to arrive. */
static int passed_up(struct endpoints *p, unsigned ms)
{
    for (int i = 0; i < 3; i++)
        for (int quiet = 0; quiet < 5; quiet++)
            while (send_to(p->diallers[i], 0, WIRE_BULK, big, WIRE_CHUNK_MAX) == STATUS_OK) usleep(1000);
    struct arrival a;
    for (int i = 0; i < 3; i++) assert_int_equal(expect(p->listener).lane, WIRE_BULK); /* the listener has read ahead */
    for (int i = 0; i < 3; i++) say(p->diallers[i], 0, WIRE_CONTROL, "urgent");
    usleep(ms * 1000);
    int others = others_before(p->listener, 3);
    while (recv_for(p->listener, SECOND / 5, &a) == STATUS_OK) continue;
    return others;
}

static int passed_down(struct endpoints *p, const uint64_t peers[2], unsigned ms)
{
    for (int i = 0; i < 6; i++)
        assert_int_equal(send_to(p->listener, peers[WIRE_BULK], WIRE_BULK, big, 100000), STATUS_OK);
    say(p->listener, peers[WIRE_CONTROL], WIRE_CONTROL, "urgent");
    usleep(ms * 1000);
    int others = others_before(p->diallers[0], 1);
    for (int i = others; i < 6; i++) assert_int_equal(expect(p->diallers[0]).lane, WIRE_BULK);
    return others;
}

/* With all bulk queues full in both directions, control messages come first. On a busy machine they may arrive after
 * the queues are read, so the test tries several times. */
TEST(test_control_overtakes_bulk)
{
    struct endpoints p = {0};
    uint64_t peers[3][2];
    listen_at(&p, "tcp://127.0.0.1:*");
    for (int i = 0; i < 3; i++) {
        dial(&p, i);
        greet(&p, i, peers[i]);
    }
    int others = 10;
    for (unsigned ms = 200; others > 9 && ms < 4000; ms *= 2) others = passed_up(&p, ms);
    if (others > 9) fail_msg("control messages arrived after %d others", others);
    others = 1;
    for (unsigned ms = 200; others && ms < 4000; ms *= 2) others = passed_down(&p, peers[0], ms);
    if (others) fail_msg("a control message arrived after %d others", others);
    close_all(&p);
}

TEST(test_queued_messages_survive_reconnect)
{
    struct endpoints p = {0};
    uint64_t before[2], after[2];
    listen_at(&p, "tcp://127.0.0.1:*");
    dial(&p, 0);
    greet(&p, 0, before);
    p.listener->ops->close(p.listener);
    struct transport *old = p.diallers[0];
    struct arrival a;
    assert_int_equal(recv_for(old, SECOND / 10, &a), STATUS_AGAIN);
    listen_at(&p, p.bound);
    greet(&p, 0, after); /* sent without a listener, or later: the message arrives */
    say(p.listener, after[WIRE_CONTROL], WIRE_CONTROL, "again");
    expect_text(old, WIRE_CONTROL, "again", NULL);
    old->ops->close(old); /* the listener detects a closed dialler when it sends to it */
    p.diallers[0] = NULL;
    enum status status = STATUS_OK;
    for (int i = 0; i < 2000 && status != STATUS_CLOSED; i++) {
        status = send_to(p.listener, after[WIRE_CONTROL], WIRE_CONTROL, "x", 1);
        usleep(5000);
    }
    assert_int_equal(status, STATUS_CLOSED);
    dial(&p, 0); /* same uuid, new process: other numbers */
    greet(&p, 0, before);
    assert_true(before[0] != after[0] && before[1] != after[1]);
    close_all(&p);
}

static void *wake_later(void *arg)
{
    struct transport *t = arg;
    usleep(100 * 1000);
    t->ops->wake(t);
    return NULL;
}

TEST(test_wake_ends_recv_once)
{
    struct endpoints p = {0};
    listen_at(&p, "tcp://127.0.0.1:*");
    dial(&p, 0);
    struct transport *ends[] = {p.listener, p.diallers[0]};
    uint64_t peers[2];
    greet(&p, 0, peers); /* the connection is established and reported */
    for (int i = 0; i < 2; i++) {
        struct arrival a;
        recv_for(ends[i], 1, &a); /* the dialler's connection event */
        uint64_t start = clock_monotonic_us();
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, wake_later, ends[i]), 0);
        assert_int_equal(recv_for(ends[i], PATIENCE, &a), STATUS_AGAIN);
        uint64_t waited = clock_monotonic_us() - start;
        pthread_join(thread, NULL);
        assert_true(waited > SECOND / 50 && waited < PATIENCE / 2);
        ends[i]->ops->wake(ends[i]); /* wake before recv is not lost */
        start = clock_monotonic_us();
        assert_int_equal(recv_for(ends[i], PATIENCE, &a), STATUS_AGAIN);
        assert_true(clock_monotonic_us() - start < PATIENCE / 2);
        start = clock_monotonic_us();
        assert_int_equal(recv_for(ends[i], SECOND / 20, &a), STATUS_AGAIN); /* and acts once */
        assert_true(clock_monotonic_us() - start >= SECOND / 20);
    }
    close_all(&p);
}

/* A closed coordinator gives a warning, unless the worker is ending. */
TEST(test_lost_coordinator_is_reported_unless_ending)
{
    struct endpoints p = {0};
    uint64_t peers[2];
    struct arrival a;
    listen_at(&p, "tcp://127.0.0.1:*");
    for (int i = 0; i < 2; i++) {
        dial(&p, i);
        greet(&p, i, peers);
        assert_int_equal(recv_for(p.diallers[i], SECOND / 10, &a), STATUS_AGAIN); /* establishes the connection */
    }
    atomic_store(&p.diallers[1]->ending, true);
    p.listener->ops->close(p.listener);
    p.listener = NULL;
    forget_warnings();
    log_set_level(LOG_WARN);
    log_set_sink(keep_warning, NULL);
    for (int i = 0; i < 10; i++) assert_int_equal(recv_for(p.diallers[1], SECOND / 10, &a), STATUS_AGAIN);
    assert_false(warned(""));
    for (uint64_t end = clock_monotonic_us() + PATIENCE; !warned("lost the connection to tcp://127.0.0.1:");) {
        assert_true(clock_monotonic_us() < end);
        assert_int_equal(recv_for(p.diallers[0], SECOND / 10, &a), STATUS_AGAIN);
    }
    log_set_sink(NULL, NULL);
    log_set_level(LOG_ERROR);
    close_all(&p);
}

/* Without a listener, or behind a firewall, the warning names what to check. */
TEST(test_missing_coordinator_is_reported)
{
    struct endpoints p = {0};
    struct arrival a;
    listen_at(&p, "tcp://127.0.0.1:*");
    p.listener->ops->close(p.listener);
    p.listener = NULL;
    dial(&p, 0);
    forget_warnings();
    log_set_level(LOG_WARN);
    log_set_sink(keep_warning, NULL);
    for (uint64_t end = clock_monotonic_us() + PATIENCE; !warned("retrying") && clock_monotonic_us() < end;)
        assert_int_equal(recv_for(p.diallers[0], SECOND / 10, &a), STATUS_AGAIN);
    log_set_sink(NULL, NULL);
    log_set_level(LOG_ERROR);
    assert_true(warned("retrying tcp://127.0.0.1:"));
    assert_true(warned("no answer; check that the coordinator runs and that the firewall opens its port"));
    close_all(&p);
}

/* ZeroMQ gives up a connection after a failed handshake; the dialler must not. */
TEST(test_dialler_retries_after_failed_handshake)
{
    struct endpoints p = {0};
    struct transport_worker self = test_access_worker(0);
    listen_at(&p, "tcp://127.0.0.1:*");
    p.access.strict = true;
    p.address.has_secret = false;
    dial(&p, 0);
    struct arrival a;
    for (int i = 0; i < 10; i++) assert_int_equal(recv_for(p.diallers[0], SECOND / 20, &a), STATUS_AGAIN);
    p.listener->ops->close(p.listener);
    p.access.admitted = &self.key; /* now the worker is enrolled */
    listen_at(&p, p.bound);
    expect_healed(&p);
    close_all(&p);
}

/* A port forwarder accepts connections and closes them while the coordinator is away. The dialler queues messages
 * meanwhile, such as heartbeats. */
TEST(test_dialler_retries_behind_port_forwarder)
{
    struct endpoints p = {0};
    struct arrival a;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int forwarder = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), yes = 1;
    /* otherwise its connections keep the port for a minute (TIME_WAIT) */
    assert_int_equal(setsockopt(forwarder, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
    assert_int_equal(bind(forwarder, (struct sockaddr *)&at, size), 0);
    assert_int_equal(listen(forwarder, 8), 0);
    assert_int_equal(getsockname(forwarder, (struct sockaddr *)&at, &size), 0);
    snprintf(p.bound, sizeof p.bound, "tcp://127.0.0.1:%u", (unsigned)ntohs(at.sin_port));
    test_access_make(&p.access);
    p.address = test_access_address(&p.access, p.bound);
    dial(&p, 0);
    uint64_t start = clock_monotonic_us();
    for (int hung_up = 0; clock_monotonic_us() - start < 3 * SECOND / 2 || hung_up < 12;) {
        assert_true(clock_monotonic_us() - start < PATIENCE);
        assert_true(send_to(p.diallers[0], 0, WIRE_CONTROL, "beat", 4) >= STATUS_OK);
        int connection = accept(forwarder, NULL, NULL);
        if (connection >= 0) hung_up += close(connection) == 0;
        assert_int_equal(recv_for(p.diallers[0], SECOND / 50, &a), STATUS_AGAIN);
    }
    close(forwarder);
    listen_at(&p, p.address.endpoint);
    expect_healed(&p);
    close_all(&p);
}

int main(int argc, char **argv)
{
    log_set_level(LOG_ERROR);
    return test_run(argc, argv, NULL, NULL);
}
