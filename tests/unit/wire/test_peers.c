/* Routing ids and peer numbers. Foreign clients cost little and disturb no worker. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <zmq.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "tests/lib/net/test_access.h"
#include "tests/lib/test.h"
#include "wire/transport.h"
#include "wire/zmq/peers.h"

static struct peers peers;
static const uint8_t key[WIRE_KEY] = {1}, other_key[WIRE_KEY] = {2};

static struct peer_id id_of(uint32_t n, enum wire_lane lane)
{
    struct peer_id id;
    uint8_t uuid[WIRE_UUID] = {(uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16)};
    peer_id_make(&id, lane, uuid, 77);
    return id;
}

static uint64_t hear(uint32_t n, enum wire_lane lane)
{
    struct peer_id id = id_of(n, lane);
    struct peer *p = peers_hear(&peers, id.bytes, sizeof id.bytes, key);
    assert_non_null(p);
    assert_int_equal(p->lane, lane);
    return p->number;
}

TEST(test_peer_keeps_its_number)
{
    peers_init(&peers);
    uint64_t control = hear(5, WIRE_CONTROL), bulk = hear(5, WIRE_BULK);
    assert_true(control && bulk && control != bulk);
    assert_int_equal(hear(5, WIRE_CONTROL), control); /* same number again */
    struct peer_id id = id_of(5, WIRE_BULK);
    assert_memory_equal(peers_find(&peers, bulk)->id.bytes, id.bytes, sizeof id.bytes);
    peers_forget(&peers, peers_find(&peers, control));
    assert_null(peers_find(&peers, control));
    assert_non_null(peers_find(&peers, bulk));
    uint64_t again = hear(5, WIRE_CONTROL);
    assert_true(again != control); /* a number is never reused */
    assert_null(peers_find(&peers, control));
    assert_null(peers_find(&peers, 0));
    assert_null(peers_find(&peers, UINT64_MAX));
}

TEST(test_invalid_ids_are_refused)
{
    peers_init(&peers);
    struct peer_id id = id_of(1, WIRE_CONTROL);
    assert_null(peers_hear(&peers, id.bytes, sizeof id.bytes - 1, key));
    assert_null(peers_hear(&peers, (const uint8_t *)"", 0, key));
    id.bytes[4] = 2; /* no such lane */
    assert_null(peers_hear(&peers, id.bytes, sizeof id.bytes, key));
    id = id_of(1, WIRE_CONTROL);
    id.bytes[0] ^= 1;
    assert_null(peers_hear(&peers, id.bytes, sizeof id.bytes, key));
}

/* A routing id belongs to one key: another key with the same id is another peer, and gets none of its messages. */
TEST(test_id_with_another_key_is_another_peer)
{
    peers_init(&peers);
    struct peer_id id = id_of(5, WIRE_CONTROL);
    uint64_t mine = hear(5, WIRE_CONTROL);
    const struct peer *other = peers_hear(&peers, id.bytes, sizeof id.bytes, other_key);
    assert_true(other->number != mine);
    assert_memory_equal(other->key, other_key, WIRE_KEY);
    assert_null(peers_find(&peers, mine));
    assert_memory_equal(peers_find(&peers, hear(5, WIRE_CONTROL))->key, key, WIRE_KEY);
}

/* A flood of ids: a peer that sends now and then keeps its number, and the table keeps its size. */
TEST(test_flood_of_ids_keeps_active_peer)
{
    peers_init(&peers);
    uint64_t mine = hear(0, WIRE_CONTROL), first_stranger = 0;
    for (uint32_t i = 1; i < 5 * PEERS_MAX; i++) {
        uint64_t stranger = hear(i, WIRE_BULK);
        if (i == 1) first_stranger = stranger;
        if (i % 1000 == 0) assert_int_equal(hear(0, WIRE_CONTROL), mine);
    }
    assert_non_null(peers_find(&peers, mine));
    assert_null(peers_find(&peers, first_stranger));
    int known = 0;
    for (uint32_t i = 1; i < 5 * PEERS_MAX; i++) {
        struct peer_id id = id_of(i, WIRE_BULK);
        for (const struct peer *p = peers.table; p < peers.table + PEERS_MAX; p += 64)
            known += p->number && !memcmp(p->id.bytes, id.bytes, sizeof id.bytes);
    }
    assert_int_equal(known, PEERS_MAX / 64 - 1); /* entry 0 is mine */
}

/* Compares random hear and forget calls with a simple model. */
TEST(test_table_matches_simple_model)
{
    enum { IDS = 300 };
    static uint64_t numbers[IDS];
    peers_init(&peers);
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t r = rng_u64(3, RNG_TEST, i);
        uint32_t n = (uint32_t)(r % IDS);
        if (r >> 32 & 1) {
            uint64_t number = hear(n, WIRE_CONTROL);
            if (numbers[n]) assert_int_equal(number, numbers[n]);
            numbers[n] = number;
        } else if (numbers[n]) {
            peers_forget(&peers, peers_find(&peers, numbers[n]));
            numbers[n] = 0;
        }
        if (numbers[n]) assert_non_null(peers_find(&peers, numbers[n]));
    }
}

static uint16_t port_of(const char *bound)
{
    return (uint16_t)atoi(strrchr(bound, ':') + 1);
}

/* Sends bytes that are not ZMTP, truncated ZMTP, or no bytes. */
static void send_garbage(uint16_t port, uint64_t seed)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    uint8_t junk[300] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1, 'N', 'U', 'L', 'L'};
    for (size_t i = seed % 3 == 0 ? 0 : seed % 3 == 1 ? 16 : 64; i < sizeof junk; i++)
        junk[i] = (uint8_t)rng_u64(seed, RNG_TEST, i);
    ssize_t n = send(fd, junk, seed % sizeof junk, MSG_NOSIGNAL);
    assert_true(n >= 0);
    close(fd);
}

/* Connects ZeroMQ clients with good keys that are not workers: no id, a foreign id, several parts. */
static void connect_foreign_clients(void *context, const char *bound, const struct test_access *access)
{
    struct peer_id mine = id_of(9, WIRE_CONTROL);
    for (int kind = 0; kind < 3; kind++) {
        void *s = zmq_socket(context, ZMQ_DEALER);
        int linger = 200;
        assert_int_equal(zmq_setsockopt(s, ZMQ_LINGER, &linger, sizeof linger), 0);
        assert_int_equal(zmq_setsockopt(s, ZMQ_CURVE_SERVERKEY, access->server.public_key, WIRE_KEY), 0);
        assert_int_equal(zmq_setsockopt(s, ZMQ_CURVE_PUBLICKEY, access->enrol.public_key, WIRE_KEY), 0);
        assert_int_equal(zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, access->enrol.secret, WIRE_KEY), 0);
        if (kind == 1) assert_int_equal(zmq_setsockopt(s, ZMQ_ROUTING_ID, "stranger", 8), 0);
        if (kind == 2) assert_int_equal(zmq_setsockopt(s, ZMQ_ROUTING_ID, mine.bytes, sizeof mine.bytes), 0);
        assert_int_equal(zmq_connect(s, bound), 0);
        for (int i = 0; i < 20; i++) {
            assert_true(zmq_send(s, "part", 4, ZMQ_SNDMORE) >= 0);
            assert_true(zmq_send(s, "part", 4, kind == 2 ? 0 : ZMQ_SNDMORE) >= 0);
            if (kind < 2) assert_true(zmq_send(s, "", 0, 0) >= 0);
        }
        zmq_close(s);
    }
}

TEST(test_foreign_clients_disturb_no_worker)
{
    struct transport *listener, *worker;
    struct transport_worker self = test_access_worker(0);
    struct test_access access;
    char bound[128];
    uint64_t peer;
    enum wire_lane lane;
    const uint8_t *data;
    size_t size;
    test_access_make(&access);
    assert_int_equal(transport_zmq_listen(&listener, "tcp://127.0.0.1:*", &access.access, bound, sizeof bound, NULL),
                     STATUS_OK);
    struct transport_address address = test_access_address(&access, bound);
    assert_int_equal(transport_zmq_dial(&worker, &address, &self, NULL), STATUS_OK);
    for (uint64_t i = 0; i < 60; i++) send_garbage(port_of(bound), i);
    void *context = zmq_ctx_new();
    connect_foreign_clients(context, bound, &access);
    assert_int_equal(worker->ops->send(worker, 0, WIRE_CONTROL, (const uint8_t *)"mine", 4), STATUS_OK);
    uint64_t end = clock_monotonic_us() + 20000000;
    int heard = 0;
    while (!heard && clock_monotonic_us() < end) {
        if (listener->ops->recv(listener, 100000, &peer, &lane, &data, &size) != STATUS_OK) continue;
        heard++;
        assert_int_equal(size, 4);
        assert_memory_equal(data, "mine", 4); /* no message of a foreign client is delivered */
    }
    assert_int_equal(heard, 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(listener->ops->recv(listener, 50000, &peer, &lane, &data, &size), STATUS_AGAIN);
    zmq_ctx_term(context);
    worker->ops->close(worker);
    listener->ops->close(listener);
}

TEST_MAIN(NULL, NULL)
