/* ctest: labels=threads waits=1
 * transport_ops.drop: a listener closes one connection, a dialler opens its lanes again. */
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/lib/net/test_access.h"
#include "tests/lib/test.h"
#include "wire/transport.h"

enum { SECOND = 1000 * 1000, PATIENCE = 20 * SECOND, DIALLERS = 2 };

static struct transport *listener, *diallers[DIALLERS];
static uint64_t peers[DIALLERS][2];

struct arrival {
    uint64_t peer;
    enum wire_lane lane;
    const uint8_t *data;
    size_t size;
};

static enum status recv_for(struct transport *t, uint64_t timeout_us, struct arrival *a)
{
    return t->ops->recv(t, timeout_us, &a->peer, &a->lane, &a->data, &a->size);
}

static struct arrival expect(struct transport *t, const char *text)
{
    struct arrival a = {0};
    enum status status = STATUS_AGAIN;
    for (uint64_t end = clock_monotonic_us() + PATIENCE; status == STATUS_AGAIN && clock_monotonic_us() < end;)
        status = recv_for(t, SECOND / 10, &a);
    assert_int_equal(status, STATUS_OK);
    assert_int_equal(a.size, strlen(text));
    assert_memory_equal(a.data, text, a.size);
    return a;
}

static enum status say(struct transport *t, uint64_t peer, enum wire_lane lane, const char *text)
{
    return t->ops->send(t, peer, lane, (const uint8_t *)text, strlen(text));
}

static void greet(int i)
{
    for (int lane = WIRE_CONTROL; lane <= WIRE_BULK; lane++) {
        assert_int_equal(say(diallers[i], 0, (enum wire_lane)lane, "hello"), STATUS_OK);
        struct arrival a = expect(listener, "hello");
        assert_int_equal(a.lane, lane);
        peers[i][lane] = a.peer;
    }
    struct arrival none;
    assert_int_equal(recv_for(diallers[i], 0, &none), STATUS_AGAIN); /* counts the connection */
}

static int begin(void **state)
{
    (void)state;
    static struct test_access access;
    char bound[128];
    test_access_make(&access);
    assert_int_equal(transport_zmq_listen(&listener, "tcp://127.0.0.1:*", &access.access, bound, sizeof bound, NULL),
                     STATUS_OK);
    struct transport_address address = test_access_address(&access, bound);
    for (int i = 0; i < DIALLERS; i++) {
        struct transport_worker self = test_access_worker(i);
        assert_int_equal(transport_zmq_dial(&diallers[i], &address, &self, NULL), STATUS_OK);
        greet(i);
    }
    return 0;
}

static int end(void **state)
{
    (void)state;
    for (int i = 0; i < DIALLERS; i++) diallers[i]->ops->close(diallers[i]);
    listener->ops->close(listener);
    assert_int_equal(mem_live_bytes(), 0);
    return 0;
}

static uint64_t arrived(uint64_t peer)
{
    struct transport_path path;
    return listener->ops->path(listener, peer, &path) ? path.received : 0;
}

/* The connection is closed and its unread messages are lost. The other lane and the other worker go on. */
TEST_WITH(test_dropped_peer_comes_back_as_a_new_one, begin, end)
{
    uint64_t gone = peers[0][WIRE_CONTROL], before = arrived(gone), until = clock_monotonic_us() + PATIENCE;
    struct arrival a;
    assert_true(before > 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(say(diallers[i == 1], 0, WIRE_CONTROL, i == 1 ? "other" : "unread"), STATUS_OK);
    while (arrived(gone) < before + 2 * transport_wire_bytes(strlen("unread"))) {
        assert_true(clock_monotonic_us() < until); /* a message that has not left would come over the next connection */
        usleep(1000);
    }
    usleep(SECOND / 5); /* the listener reads all three */
    assert_int_equal(recv_for(listener, PATIENCE, &a), STATUS_OK);
    bool other = a.peer != gone;
    listener->ops->drop(listener, gone);
    listener->ops->drop(listener, gone); /* unknown by now */
    assert_int_equal(say(listener, gone, WIRE_CONTROL, "x"), STATUS_CLOSED);
    if (!other) expect(listener, "other");
    assert_int_equal(recv_for(listener, 0, &a), STATUS_AGAIN);
    for (until = clock_monotonic_us() + PATIENCE; atomic_load(&diallers[0]->connected) == 1;) {
        assert_true(clock_monotonic_us() < until);
        assert_int_equal(recv_for(diallers[0], SECOND / 10, &a), STATUS_AGAIN);
    }
    assert_int_equal(say(diallers[0], 0, WIRE_CONTROL, "back"), STATUS_OK);
    uint64_t again = expect(listener, "back").peer;
    assert_true(again != gone);
    assert_int_equal(say(listener, again, WIRE_CONTROL, "welcome"), STATUS_OK);
    expect(diallers[0], "welcome");
    assert_int_equal(say(listener, peers[0][WIRE_BULK], WIRE_BULK, "bulk"), STATUS_OK);
    expect(diallers[0], "bulk");
    assert_int_equal(say(listener, peers[1][WIRE_CONTROL], WIRE_CONTROL, "unharmed"), STATUS_OK);
    expect(diallers[1], "unharmed");
}

TEST_WITH(test_dialler_opens_both_lanes_again, begin, end)
{
    diallers[0]->ops->drop(diallers[0], 0);
    greet(0);
    assert_int_equal(say(listener, peers[0][WIRE_CONTROL], WIRE_CONTROL, "again"), STATUS_OK);
    expect(diallers[0], "again");
    assert_int_equal(atomic_load(&diallers[0]->connected), 2);
}

TEST_MAIN(NULL, NULL)
