/* ctest: labels=threads
 * The link thread over a scripted transport, and its ring.
 * - Heartbeats continue while the compute thread is busy.
 * - Messages keep their order and queues are bounded.
 * - Closing sends the queued messages. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/rng.h"
#include "tests/lib/test.h"
#include "worker/link/link.h"
#include "worker/link/ring.h"

/* ---- ring ---------------------------------------------------------------------------------------------------------
 */

TEST(test_ring_keeps_order_and_bounds)
{
    struct ring r;
    uint64_t put = 0, got = 0;
    assert_int_equal(ring_init(&r, 4096), STATUS_OK);
    assert_true(ring_empty(&r));
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t draw = rng_u64(1, RNG_TEST, i);
        size_t size = 8 + draw % 1500;
        if (draw >> 40 & 1) {
            uint8_t *room = ring_reserve(&r, size);
            if (!room) {
                assert_false(ring_empty(&r)); /* an empty ring always accepts a record of half its size */
                continue;
            }
            assert_true(room >= r.data && room + size <= r.data + r.cap);
            memset(room, (int)put, size);
            memcpy(room, &put, sizeof put);
            ring_commit(&r, (uint32_t)size, size);
            put++;
        } else {
            uint32_t tag;
            size_t n;
            const uint8_t *data = ring_peek(&r, &tag, &n);
            assert_int_equal(data == NULL, put == got);
            if (!data) continue;
            assert_int_equal(tag, n);
            assert_memory_equal(data, &got, sizeof got);
            for (size_t k = sizeof got; k < n; k++) assert_int_equal(data[k], (uint8_t)got);
            ring_drop(&r);
            got++;
        }
    }
    assert_true(got > 3000);
    ring_finish(&r);
}

TEST(test_ring_refuses_too_large_record)
{
    struct ring r;
    assert_int_equal(ring_init(&r, 256), STATUS_OK);
    assert_null(ring_reserve(&r, 256));
    assert_null(ring_reserve(&r, SIZE_MAX - 100));
    assert_non_null(ring_reserve(&r, 200));
    ring_finish(&r);
}

/* ---- a transport in memory ----------------------------------------------------------------------------------------
 */

enum { BOX = 512, BOX_BYTES = 16384, PATIENCE_US = 20000000 };

struct fake {
    struct transport transport;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool woken, closed, full; /* full: send returns AGAIN */
    struct {
        enum wire_lane lane;
        uint8_t data[BOX_BYTES];
        size_t size;
    } sent[BOX], incoming[BOX];
    int n_sent, n_incoming, n_taken;
    atomic_int looks; /* at the path */
    uint8_t held[BOX_BYTES];
};

static struct fake *fake;

static enum status fake_send(struct transport *t, uint64_t peer, enum wire_lane lane, const uint8_t *data, size_t size)
{
    struct fake *f = (struct fake *)t;
    (void)peer;
    pthread_mutex_lock(&f->lock);
    enum status status = f->full || f->n_sent == BOX ? STATUS_AGAIN : STATUS_OK;
    if (status == STATUS_OK) {
        f->sent[f->n_sent].lane = lane;
        f->sent[f->n_sent].size = size;
        memcpy(f->sent[f->n_sent++].data, data, size < BOX_BYTES ? size : BOX_BYTES);
    }
    pthread_mutex_unlock(&f->lock);
    return status;
}

static enum status fake_recv(struct transport *t, uint64_t timeout_us, uint64_t *peer, enum wire_lane *lane,
                             const uint8_t **data, size_t *size)
{
    struct fake *f = (struct fake *)t;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + timeout_us * 1000;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&f->lock);
    while (f->n_taken == f->n_incoming && !f->woken && timeout_us)
        if (pthread_cond_timedwait(&f->changed, &f->lock, &until)) break;
    if (timeout_us) f->woken = false;
    enum status status = STATUS_AGAIN;
    if (f->n_taken < f->n_incoming) {
        *peer = 0;
        *lane = f->incoming[f->n_taken].lane;
        *size = f->incoming[f->n_taken].size;
        memcpy(f->held, f->incoming[f->n_taken++].data, *size);
        *data = f->held;
        status = STATUS_OK;
    }
    pthread_mutex_unlock(&f->lock);
    return status;
}

static void fake_wake(struct transport *t)
{
    struct fake *f = (struct fake *)t;
    pthread_mutex_lock(&f->lock);
    f->woken = true;
    pthread_cond_signal(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

static void fake_bytes(const struct transport *t, uint64_t *sent, uint64_t *received)
{
    (void)t;
    *sent = 11;
    *received = 22;
}

static bool fake_path(struct transport *t, uint64_t peer, struct transport_path *out)
{
    (void)peer;
    *out = (struct transport_path){0};
    atomic_fetch_add(&((struct fake *)t)->looks, 1);
    return true;
}

static void fake_close(struct transport *t)
{
    ((struct fake *)t)->closed = true;
}

static const struct transport_ops fake_ops = {.send = fake_send,
                                              .recv = fake_recv,
                                              .wake = fake_wake,
                                              .path = fake_path,
                                              .bytes = fake_bytes,
                                              .close = fake_close};

static void arrive(enum wire_lane lane, const struct msg *m)
{
    pthread_mutex_lock(&fake->lock);
    assert_true(fake->n_incoming < BOX);
    size_t size = 0;
    assert_int_equal(msg_encode(m, fake->incoming[fake->n_incoming].data, BOX_BYTES, &size), STATUS_OK);
    fake->incoming[fake->n_incoming].lane = lane;
    fake->incoming[fake->n_incoming++].size = size;
    pthread_cond_signal(&fake->changed);
    pthread_mutex_unlock(&fake->lock);
}

static int count_sent(enum msg_type type)
{
    int n = 0;
    pthread_mutex_lock(&fake->lock);
    for (int i = 0; i < fake->n_sent; i++) n += fake->sent[i].data[5] == type;
    pthread_mutex_unlock(&fake->lock);
    return n;
}

static void set_full(bool full)
{
    pthread_mutex_lock(&fake->lock);
    fake->full = full;
    pthread_mutex_unlock(&fake->lock);
}

static bool eventually(enum msg_type type, int n)
{
    for (int i = 0; i < PATIENCE_US / 1000 && count_sent(type) < n; i++) usleep(1000);
    return count_sent(type) >= n;
}

static struct link *work_link;
static struct heartbeat heartbeat;

static int up(void **state)
{
    (void)state;
    fake = calloc(1, sizeof *fake);
    fake->transport.ops = &fake_ops;
    pthread_mutex_init(&fake->lock, NULL);
    pthread_cond_init(&fake->changed, NULL);
    heartbeat_init(&heartbeat);
    return link_open(&work_link, &fake->transport, &heartbeat, NULL) == STATUS_OK ? 0 : -1;
}

static int down(void **state)
{
    (void)state;
    if (work_link) link_close(work_link, 1000000);
    work_link = NULL;
    bool closed = fake->closed;
    heartbeat_finish(&heartbeat);
    free(fake);
    return closed ? 0 : -1;
}

/* ---- link ---------------------------------------------------------------------------------------------------------
 */

TEST_WITH(test_heartbeats_continue_during_compute, up, down)
{
    uint64_t versions[1] = {3};
    usleep(50000);
    assert_int_equal(count_sent(MSG_HEARTBEAT), 0); /* no session, no heartbeat */
    heartbeat_set_state(&heartbeat, WORKER_TRAINING, 4, 30, 0, 1, versions);
    heartbeat_join(&heartbeat, 99, 20);
    uint64_t until = clock_monotonic_us() + PATIENCE_US;
    while (clock_monotonic_us() < until && count_sent(MSG_HEARTBEAT) < 6) heartbeat_set_step(&heartbeat, 1, 500);
    assert_true(count_sent(MSG_HEARTBEAT) >= 6);
    struct msg m;
    assert_int_equal(msg_decode(&m, fake->sent[0].data, fake->sent[0].size, NULL), STATUS_OK);
    assert_int_equal(m.heartbeat.session, 99);
    assert_int_equal(m.heartbeat.state, WORKER_TRAINING);
    assert_int_equal(m.heartbeat.versions[0], 3);
    heartbeat_leave(&heartbeat);
    struct msg bind = {.type = MSG_BIND, .bind = {.session = 1}};
    assert_int_equal(link_send(work_link, WIRE_BULK, &bind), STATUS_OK);
    assert_true(eventually(MSG_BIND, 1)); /* sent after a heartbeat that was due earlier */
    int n = count_sent(MSG_HEARTBEAT);
    usleep(100000);
    assert_int_equal(count_sent(MSG_HEARTBEAT), n);
}

TEST_WITH(test_state_change_is_sent_at_once, up, down)
{
    uint64_t versions[1] = {3};
    heartbeat_set_state(&heartbeat, WORKER_READY, 0, 0, 0, 1, versions);
    heartbeat_join(&heartbeat, 99, 3600000);
    assert_true(eventually(MSG_HEARTBEAT, 1));
    heartbeat_set_state(&heartbeat, WORKER_READY, 0, 0, 0, 1, versions); /* no change */
    struct msg m = {.type = MSG_BIND, .bind = {.session = 1}};
    assert_int_equal(link_send(work_link, WIRE_BULK, &m), STATUS_OK);
    assert_true(eventually(MSG_BIND, 1));
    assert_int_equal(count_sent(MSG_HEARTBEAT), 1);
    versions[0] = 4;
    heartbeat_set_state(&heartbeat, WORKER_READY, 0, 0, 0, 1, versions);
    assert_int_equal(link_send(work_link, WIRE_BULK, &m), STATUS_OK); /* wakes it */
    assert_true(eventually(MSG_HEARTBEAT, 2));
}

TEST_WITH(test_messages_keep_order_both_ways, up, down)
{
    struct msg m;
    enum wire_lane lane;
    for (uint64_t i = 0; i < 100; i++) {
        m = (struct msg){.type = MSG_GET, .get = {.kind = OBJECT_UPDATE, .version = i, .length = 1}};
        assert_int_equal(link_send(work_link, WIRE_CONTROL, &m), STATUS_OK);
        m = (struct msg){.type = MSG_CREDIT, .credit = {.round = i}};
        arrive(WIRE_CONTROL, &m);
    }
    assert_true(eventually(MSG_GET, 100));
    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(msg_decode(&m, fake->sent[i].data, fake->sent[i].size, NULL), STATUS_OK);
        assert_int_equal(m.get.version, i);
        assert_int_equal(link_recv(work_link, PATIENCE_US, &lane, &m), STATUS_OK);
        assert_int_equal(m.credit.round, i);
        assert_int_equal(lane, WIRE_CONTROL);
    }
    assert_int_equal(link_recv(work_link, 0, &lane, &m), STATUS_AGAIN);
    uint64_t sent, received;
    link_bytes(work_link, &sent, &received);
    assert_int_equal(sent, 11);
    assert_int_equal(received, 22);
}

TEST_WITH(test_link_consumes_heartbeat_answers, up, down)
{
    struct msg m = {.type = MSG_HEARTBEAT_ACK,
                    .heartbeat_ack = {.sent_us = clock_monotonic_us() - 5000, .waiting_for = "worker-7"}};
    enum wire_lane lane;
    char text[WIRE_TEXT_MAX];
    arrive(WIRE_CONTROL, &m);
    m = (struct msg){.type = MSG_CREDIT};
    arrive(WIRE_CONTROL, &m);
    assert_int_equal(link_recv(work_link, PATIENCE_US, &lane, &m), STATUS_OK);
    assert_int_equal(m.type, MSG_CREDIT);
    assert_true(heartbeat_rtt_us(&heartbeat) >= 5000);
    assert_true(heartbeat_heard_us(&heartbeat) > 0);
    heartbeat_waiting_for(&heartbeat, clock_monotonic_us(), text);
    assert_string_equal(text, "worker-7");
    heartbeat_waiting_for(&heartbeat, clock_monotonic_us() + HEARTBEAT_SILENT_US, text); /* not for an old answer */
    assert_string_equal(text, "");
}

/* During long work the coordinator names no heartbeat in its answers: it reads nothing, so bytes of a delta may stand
 * still. Heartbeats from before wait for its work, and measure no path. */
TEST_WITH(test_answers_of_a_busy_coordinator_measure_nothing, up, down)
{
    struct msg busy = {.type = MSG_HEARTBEAT_ACK},
               late = {.type = MSG_HEARTBEAT_ACK, .heartbeat_ack.sent_us = clock_monotonic_us()},
               mark = {.type = MSG_CREDIT};
    enum wire_lane lane;
    arrive(WIRE_CONTROL, &busy);
    arrive(WIRE_CONTROL, &mark);
    assert_int_equal(link_recv(work_link, PATIENCE_US, &lane, &mark), STATUS_OK);
    assert_int_equal(atomic_load(&fake->looks), 0);
    arrive(WIRE_CONTROL, &late);
    arrive(WIRE_CONTROL, &mark);
    assert_int_equal(link_recv(work_link, PATIENCE_US, &lane, &mark), STATUS_OK);
    assert_int_equal(atomic_load(&fake->looks), 1);
    assert_int_equal(heartbeat_rtt_us(&heartbeat), 0);
    assert_int_equal(heartbeat_acked_us(&heartbeat), late.heartbeat_ack.sent_us);
    late.heartbeat_ack.sent_us = clock_monotonic_us();
    arrive(WIRE_CONTROL, &late);
    arrive(WIRE_CONTROL, &mark);
    assert_int_equal(link_recv(work_link, PATIENCE_US, &lane, &mark), STATUS_OK);
    assert_true(heartbeat_rtt_us(&heartbeat) > 0);
}

TEST_WITH(test_invalid_message_is_reported_not_fatal, up, down)
{
    struct msg m = {.type = MSG_CREDIT};
    enum wire_lane lane;
    arrive(WIRE_CONTROL, &m);
    arrive(WIRE_CONTROL, &m);
    pthread_mutex_lock(&fake->lock);
    if (fake->n_taken < 1) fake->incoming[0].data[20] ^= 1;
    bool spoiled = fake->n_taken < 1;
    pthread_mutex_unlock(&fake->lock);
    enum status first = link_recv(work_link, PATIENCE_US, &lane, &m);
    if (spoiled) assert_int_equal(first, STATUS_CORRUPT);
    assert_int_equal(link_recv(work_link, PATIENCE_US, &lane, &m), STATUS_OK);
}

TEST_WITH(test_full_queue_returns_again, up, down)
{
    static uint8_t bytes[8000];
    struct msg m = {.type = MSG_CHUNK, .chunk = {.kind = OBJECT_DELTA, .total = 8000, .data = bytes, .size = 8000}};
    m.chunk.crc = crc32c(0, bytes, sizeof bytes);
    set_full(true);
    int n = 0;
    while (n < 10000 && link_send(work_link, WIRE_BULK, &m) == STATUS_OK) n++;
    assert_in_range(n, 100, 1000); /* bounded */
    struct msg control = {.type = MSG_BIND, .bind = {.session = 1}};
    assert_int_equal(link_send(work_link, WIRE_CONTROL, &control), STATUS_OK); /* the other lane continues */
    set_full(false);
    for (int i = 0; i < PATIENCE_US / 1000 && count_sent(MSG_CHUNK) < n; i++) usleep(1000);
    assert_int_equal(count_sent(MSG_CHUNK), n);
    assert_int_equal(link_send(work_link, WIRE_BULK, &m), STATUS_OK);
}

TEST_WITH(test_unread_inbox_is_bounded, up, down)
{
    static struct msg m;
    enum wire_lane lane;
    int got = 0;
    for (int i = 0; i < BOX; i++) {
        m = (struct msg){.type = MSG_REFUSE, .refuse = {.code = REFUSE_MALFORMED}};
        memset(m.refuse.text, 'x', WIRE_TEXT_MAX - 1);
        arrive(WIRE_CONTROL, &m);
    }
    for (int i = 0; i < PATIENCE_US / 1000; i++) {
        pthread_mutex_lock(&fake->lock);
        bool all = fake->n_taken == BOX;
        pthread_mutex_unlock(&fake->lock);
        if (all) break;
        usleep(1000);
    }
    usleep(20000);
    while (link_recv(work_link, 10000, &lane, &m) == STATUS_OK) got++;
    assert_in_range(got, 300, BOX - 1); /* 512 KiB of them; the others are dropped */
    m = (struct msg){.type = MSG_CREDIT};
    pthread_mutex_lock(&fake->lock);
    fake->n_incoming = fake->n_taken = 0;
    pthread_mutex_unlock(&fake->lock);
    arrive(WIRE_CONTROL, &m);
    assert_int_equal(link_recv(work_link, PATIENCE_US, &lane, &m), STATUS_OK);
}

TEST_WITH(test_close_sends_queued_messages, up, down)
{
    struct msg m = {.type = MSG_LEAVE, .leave = {.session = 4, .finished = true}};
    for (int i = 0; i < 50; i++) assert_int_equal(link_send(work_link, WIRE_CONTROL, &m), STATUS_OK);
    link_close(work_link, PATIENCE_US);
    work_link = NULL;
    assert_int_equal(count_sent(MSG_LEAVE), 50);
}

TEST_WITH(test_close_has_timeout, up, down)
{
    struct msg m = {.type = MSG_LEAVE, .leave = {.session = 4, .finished = true}};
    set_full(true);
    assert_int_equal(link_send(work_link, WIRE_CONTROL, &m), STATUS_OK);
    uint64_t started = clock_monotonic_us();
    link_close(work_link, 100000);
    work_link = NULL;
    assert_true(clock_monotonic_us() - started < PATIENCE_US);
}

/* Without an answer the connection is closed: after 20 s, or 8 round trips, then after twice as long each time. */
TEST(test_silence_ends_the_connection)
{
    const uint64_t second = 1000000;
    struct heartbeat h;
    struct msg ack = {.type = MSG_HEARTBEAT_ACK};
    heartbeat_init(&h);
    uint64_t now = 100 * second;
    assert_int_equal(heartbeat_lost_us(&h, now), 0);
    heartbeat_on_message(&h, NULL, now);
    heartbeat_join(&h, 1, 1000);
    assert_int_equal(heartbeat_lost_us(&h, now + 20 * second - 1), 0);
    heartbeat_on_message(&h, NULL, now + 19 * second); /* not the answer to a heartbeat */
    assert_int_equal(heartbeat_lost_us(&h, now + 20 * second), 20 * second);
    assert_int_equal(heartbeat_lost_us(&h, now + 20 * second), 0);
    now += 20 * second;
    for (uint64_t limit = 40; limit <= 320; limit *= 2) {
        uint64_t wait = (limit < 120 ? limit : 120) * second;
        assert_int_equal(heartbeat_lost_us(&h, now + wait - 1), 0);
        assert_int_equal(heartbeat_lost_us(&h, now += wait), wait);
    }
    ack.heartbeat_ack.sent_us = now - 5 * second; /* a slow link: a round trip of 5 s */
    heartbeat_on_message(&h, &ack, now);
    assert_int_equal(heartbeat_lost_us(&h, now + 40 * second - 1), 0);
    assert_true(heartbeat_lost_us(&h, now + 41 * second) > 0);
    heartbeat_finish(&h);
}

TEST_MAIN(NULL, NULL)
