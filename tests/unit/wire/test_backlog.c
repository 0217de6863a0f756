/* ctest: labels=threads
 * A listener limits the bytes that it queues for stalled readers, and other readers continue. */
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/lib/net/test_access.h"
#include "tests/lib/test.h"
#include "wire/transport.h"
#include "wire/zmq/backlog.h"

enum { MIB = 1 << 20, STALLED = 3, READERS = STALLED + 1, SECOND = 1000 * 1000 };

static uint8_t chunk[WIRE_CHUNK_MAX];

static enum status queue(struct backlog *b, unsigned slot, size_t size, zmq_msg_t *msg)
{
    struct wire_block *block = wire_block_new(size);
    if (!block) return STATUS_NOMEM;
    block->size = size;
    enum status status = backlog_message(b, slot, block, msg);
    wire_block_drop(block);
    return status;
}

/* Queues messages for `slot` until the backlog is full; returns their number. */
static int fill(struct backlog *b, unsigned slot, size_t size, zmq_msg_t *msgs, int cap)
{
    int n = 0;
    while (n < cap && queue(b, slot, size, &msgs[n]) == STATUS_OK) n++;
    assert_true(n < cap);
    return n;
}

TEST(test_backlog_is_shared_and_bounded)
{
    static struct backlog b;
    static zmq_msg_t msgs[64][64];
    int counts[64];
    counts[0] = fill(&b, 0, MIB, msgs[0], 64);
    assert_int_equal(counts[0], 13); /* the last one is accepted at 12 MiB: (64 - 12) / 4 */
    for (unsigned i = 1; i < 64; i++) {
        counts[i] = fill(&b, i, MIB / 4, msgs[i], 64);
        assert_true(counts[i] >= 1); /* with any number of stalled readers, one more gets its share */
    }
    assert_true(atomic_load(&b.total) <= BACKLOG_BYTES + 64 * MIB / 4);
    assert_in_range(mem_live_bytes(), atomic_load(&b.total), atomic_load(&b.total) + 64 * 64 * 64);
    /* A freed message no longer counts and leaves room. */
    for (unsigned i = 0; i < 64; i++)
        while (counts[i]) zmq_msg_close(&msgs[i][--counts[i]]);
    assert_int_equal(atomic_load(&b.total), 0);
    assert_int_equal(mem_live_bytes(), 0);
    counts[1] = fill(&b, 1, MIB, msgs[1], 64);
    assert_int_equal(counts[1], 13);
    while (counts[1]) zmq_msg_close(&msgs[1][--counts[1]]);
}

/* One message is always accepted, even with more connections than the room has shares. */
TEST(test_one_message_is_always_accepted)
{
    static struct backlog b;
    static zmq_msg_t msgs[100];
    for (unsigned i = 0; i < 100; i++) assert_int_equal(queue(&b, i, MIB, &msgs[i]), STATUS_OK);
    zmq_msg_t more;
    assert_int_equal(queue(&b, 0, 1, &more), STATUS_AGAIN);
    for (unsigned i = 0; i < 100; i++) zmq_msg_close(&msgs[i]);
    for (int i = 1; i < 3; i++) {
        mem_fail_after(i);
        assert_int_equal(queue(&b, 0, 1, &more), STATUS_NOMEM);
    }
    mem_fail_after(0);
    assert_int_equal(atomic_load(&b.total), 0);
    assert_int_equal(mem_live_bytes(), 0);
}

/* Connections that send the same block share its memory; for each of them its bytes count. */
TEST(test_shared_block_counts_for_each_connection)
{
    static struct backlog b;
    zmq_msg_t msgs[8];
    struct wire_block *block = wire_block_new(MIB);
    assert_non_null(block);
    block->size = MIB;
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(backlog_message(&b, i, block, &msgs[i]), STATUS_OK);
        assert_ptr_equal(zmq_msg_data(&msgs[i]), block->data);
    }
    assert_true(!wire_block_is_own(block) && atomic_load(&b.total) == 8 * MIB && mem_live_bytes() < 2 * MIB);
    for (unsigned i = 0; i < 8; i++) zmq_msg_close(&msgs[i]);
    assert_true(wire_block_is_own(block) && !atomic_load(&b.total));
    wire_block_drop(block);
    assert_int_equal(mem_live_bytes(), 0);
}

static uint64_t hello(struct transport *listener, struct transport *dialler)
{
    uint64_t peer;
    enum wire_lane lane;
    const uint8_t *data;
    size_t size;
    assert_int_equal(dialler->ops->send(dialler, 0, WIRE_BULK, chunk, 1), STATUS_OK);
    while (listener->ops->recv(listener, SECOND, &peer, &lane, &data, &size) != STATUS_OK) continue;
    return peer;
}

/* Sends to every stalled reader until all queues are full, including the buffers of the kernel and of the readers. */
static int stall(struct transport *listener, const uint64_t *peers)
{
    int sent = 0;
    for (int quiet = 0; quiet < 20; quiet++) {
        for (int i = 0; i < STALLED; i++) {
            while (listener->ops->send(listener, peers[i], WIRE_BULK, chunk, WIRE_CHUNK_MAX) == STATUS_OK) {
                quiet = 0;
                sent++;
            }
        }
        usleep(5000);
    }
    return sent;
}

TEST(test_stalled_readers_do_not_stop_others)
{
    struct transport *listener, *diallers[READERS];
    struct test_access access;
    char bound[128];
    uint64_t peers[READERS];
    test_access_make(&access);
    assert_int_equal(transport_zmq_listen(&listener, "tcp://127.0.0.1:*", &access.access, bound, sizeof bound, NULL),
                     STATUS_OK);
    struct transport_address address = test_access_address(&access, bound);
    for (int i = 0; i < READERS; i++) {
        struct transport_worker self = test_access_worker(i);
        assert_int_equal(transport_zmq_dial(&diallers[i], &address, &self, NULL), STATUS_OK);
        peers[i] = hello(listener, diallers[i]);
    }
    size_t before = mem_live_bytes();
    int sent = stall(listener, peers);
    size_t queued = mem_live_bytes() - before;
    if (queued > BACKLOG_BYTES / 2) fail_msg("%zu bytes are queued", queued);
    assert_true(queued > STALLED * MIB);
    /* Beyond these, 64 messages lie at each reader and about 10 MiB in the buffers of both sockets (tcp_rmem,
     * tcp_wmem). */
    if (sent > 104 * STALLED) fail_msg("%d messages were sent to stalled readers", sent);

    uint64_t start = clock_monotonic_us(), peer;
    enum wire_lane lane;
    const uint8_t *data;
    size_t size;
    struct transport *reader = diallers[STALLED];
    for (int sent_now = 0, received = 0; received < 100;) {
        assert_true(clock_monotonic_us() - start < 20 * SECOND);
        if (sent_now < 100 && listener->ops->send(listener, peers[STALLED], WIRE_BULK, chunk, 256 << 10) == STATUS_OK)
            sent_now++;
        if (reader->ops->recv(reader, 0, &peer, &lane, &data, &size) == STATUS_OK) received++;
    }
    for (int i = 0; i < READERS; i++) diallers[i]->ops->close(diallers[i]);
    listener->ops->close(listener);
    assert_int_equal(mem_live_bytes(), 0);
}

int main(int argc, char **argv)
{
    log_set_level(LOG_ERROR);
    return test_run(argc, argv, NULL, NULL);
}
