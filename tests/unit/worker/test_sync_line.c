/* The worker's protocol machine and the coordinator's request list at the two ends of a slow line: compares sent
 * with needed bytes. And what a reconnect after a long outage sends at once. */

#include "coordinator/round/download.h"
#include "coordinator/round/upload.h"
#include "tests/lib/rigs/sync_rig.h"
#include "tests/lib/test.h"

enum { S = 1000000, TICK_US = 10000, LATENCY_US = 50000, LINE_MAX = 1 << 12, QUEUE_MAX = 64 };

struct packet {
    uint64_t at, version, offset, size;
};

/* Down: chunks, one after the other; up: GETs, which are small. */
static struct line {
    uint64_t rate, free_us, sent; /* bytes per second; time when it is free again; total bytes */
    struct download download;
    struct packet down[LINE_MAX];
    struct msg_get up[LINE_MAX];
    uint64_t up_at[LINE_MAX];
    size_t down_first, down_n, up_first, up_n;
} line;

static size_t queued(void)
{
    size_t n = 0;
    while (n < line.down_n && line.down[line.down_n - 1 - n].at > sync_rig.now) n++;
    return n;
}

static void coordinator(uint64_t published, uint64_t bytes)
{
    struct download_item item;
    uint64_t size;
    for (; line.up_first < line.up_n && line.up_at[line.up_first] <= sync_rig.now; line.up_first++) {
        const struct msg_get *get = &line.up[line.up_first];
        download_add(&line.download, get, get->version <= published ? bytes : 0);
    }
    while (queued() < QUEUE_MAX && download_next(&line.download, &item, &size)) {
        if (line.free_us < sync_rig.now) line.free_us = sync_rig.now;
        line.free_us += size * S / line.rate;
        line.sent += size;
        assert_true(line.down_n < LINE_MAX);
        line.down[line.down_n++] = (struct packet){line.free_us + LATENCY_US, item.version, item.at, size};
        download_sent(&line.download, &item, size);
    }
}

/* Reads all arrived chunks, then sends every message that is due. */
static void worker_reads(uint64_t bytes)
{
    struct sync_action a;
    uint32_t f;
    for (; line.down_first < line.down_n && line.down[line.down_first].at <= sync_rig.now; line.down_first++) {
        const struct packet *p = &line.down[line.down_first];
        sync_on_chunk(&sync_rig.s, p->size, p->version <= sync_rig.s.f[0].version, sync_rig.now);
        bool wanted = sync_expects(&sync_rig.s, OBJECT_UPDATE, 0, p->version) && p->offset <= sync_rig.s.f[0].have;
        if (!wanted || p->offset + p->size <= sync_rig.s.f[0].have) continue;
        sync_on_progress(&sync_rig.s, 0, p->offset + p->size, bytes, sync_rig.now);
        while (sync_apply(&sync_rig.s, &f)) sync_applied(&sync_rig.s, 0, p->version, SYNC_NO_ROUND, sync_rig.now);
    }
    while (sync_rig_poll_one(&a)) {
        if (a.type != SYNC_SEND_GET) continue;
        assert_true(line.up_n < LINE_MAX);
        line.up_at[line.up_n] = sync_rig.now + LATENCY_US;
        line.up[line.up_n++] =
            (struct msg_get){.kind = a.kind, .version = a.version, .offset = a.offset, .length = a.length};
    }
}

/* An asynchronous worker trains and sometimes pauses for half a minute, while updates of `bytes` are published every
 * `every` microseconds. No byte is sent twice, except those requested before the size of an update is known. */
static void check_copies(uint64_t rate, uint64_t step_us, uint64_t bytes, uint64_t every_us, uint64_t spare)
{
    uint64_t looks = 0, next = 0, published = 0;
    line = (struct line){.rate = rate};
    sync_rig_start(true, 1, 0);
    sync_rejoin(&sync_rig.s, sync_rig.now += 2 * S); /* its first GET loads the line, too */
    sync_rig_join_again(8, true, 0, 0);
    sync_rig_give(0, 0);
    sync_train_begin(&sync_rig.s, sync_rig.now);
    for (uint64_t begun = sync_rig.now; sync_rig.now < begun + 1800ull * S; sync_rig.now += TICK_US) {
        if (sync_rig.now >= begun + (published + 1) * every_us) download_wake(&line.download, 0, ++published, bytes);
        coordinator(published, bytes);
        if (sync_rig.now < next) continue;
        next = sync_rig.now + (++looks % 20 ? step_us : 30 * S);
        worker_reads(bytes);
    }
    assert_true(sync_rig.s.f[0].version + 1 >= published);
    assert_true(line.sent <= (sync_rig.s.f[0].version + 1) * bytes + spare);
}

TEST(test_slow_line_carries_no_byte_twice)
{
    check_copies(125000, 500000, 1 << 20, 20ull * S, SYNC_WINDOW_LEAST);
    check_copies(125000, 1000000, 4 << 20, 60ull * S, SYNC_WINDOW_LEAST);
    check_copies(125000, 2000000, 8 << 20, 90ull * S, SYNC_WINDOW_LEAST);
    check_copies(125000, 10000000, 8 << 20, 90ull * S, SYNC_WINDOW_LEAST);
}

/* Updates of one chunk at 100 kbit/s and at 400 kbit/s: none gives a sample of the rate. */
TEST(test_slow_line_carries_single_chunks_once)
{
    check_copies(12500, 500000, 200000, 40ull * S, 4 * 200000);
    check_copies(50000, 500000, 200000, 20ull * S, 4 * 200000);
}

/* The coordinator's part of six uploads: it takes what has arrived in order, and answers with credit. */
static void coordinator_reads(struct upload *uploads, struct upload_pool *pool)
{
    for (; line.down_first < line.down_n && line.down[line.down_first].at <= sync_rig.now; line.down_first++) {
        const struct packet *p = &line.down[line.down_first];
        struct upload *u = &uploads[p->version];
        if (p->offset != u->have) continue;
        u->have += p->size;
        pool->granted -= p->size;
        if (upload_extend(u, pool) || upload_complete(u))
            sync_rig_credit(0, (uint32_t)p->version, u->have, upload_complete(u) ? u->have : u->upto);
    }
}

/* Six deltas of `bytes` over a line of `rate`; at `lost_us` all that is under way is lost, and the connection stays.
 * Returns the seconds until all have arrived. */
static uint64_t upload_six(uint64_t rate, uint64_t bytes, uint64_t lost_us)
{
    enum { N = 6 };
    struct upload uploads[N] = {{0}};
    struct upload_pool pool = {0};
    uint64_t begun, arrived = 0;
    line = (struct line){.rate = rate};
    sync_rig_start(false, N, 0);
    sync_rig_train(0, 0, bytes);
    for (begun = sync_rig.now; arrived < N * bytes; sync_rig.now += TICK_US) {
        struct sync_action a;
        assert_true(sync_rig.now < begun + 6 * N * bytes * S / rate + 600ull * S);
        if (lost_us && sync_rig.now >= begun + lost_us) {
            while (line.down_n > line.down_first && line.down[line.down_n - 1].at > sync_rig.now) line.down_n--;
            line.free_us = sync_rig.now;
            lost_us = 0;
        }
        coordinator_reads(uploads, &pool);
        while (sync_rig_poll_one(&a)) {
            if (a.type == SYNC_SEND_OFFER) {
                upload_start(&uploads[a.fragment], &pool, &(struct msg_offer){.bytes = bytes}, a.fragment);
                sync_rig_credit(0, a.fragment, uploads[a.fragment].have, uploads[a.fragment].upto);
            }
            if (a.type != SYNC_SEND_CHUNK) continue;
            assert_true(line.down_n < LINE_MAX);
            if (line.free_us < sync_rig.now) line.free_us = sync_rig.now;
            line.free_us += a.length * S / rate;
            line.sent += a.length;
            line.down[line.down_n++] = (struct packet){line.free_us + LATENCY_US, a.fragment, a.offset, a.length};
        }
        arrived = 0;
        for (int i = 0; i < N; i++) arrived += uploads[i].have;
    }
    return (sync_rig.now - begun) / S;
}

/* Credit for one fragment comes behind the windows of the others: silence of minutes is no loss. */
TEST(test_slow_uploads_carry_no_byte_twice)
{
    for (uint64_t rate = 25000; rate <= 12500000; rate *= 2) {
        upload_six(rate, 6 << 20, 0);
        assert_int_equal(line.sent, 6 * (6 << 20));
    }
}

/* What is lost without a new connection is sent again, although delivered deltas are offered meanwhile. */
TEST(test_lost_uploads_are_sent_again)
{
    uint64_t whole = upload_six(125000, 6 << 20, 0);
    assert_true(upload_six(125000, 6 << 20, 60ull * S) <= 6 * whole);
}

/* After a long outage the next retry is half a minute away. A new connection does not wait for it. */
TEST(test_reconnect_resends_at_once)
{
    sync_rig_start(false, 1, 3);
    sync_rig_train(4, 3, 1000);
    for (int i = 0; i < 12; i++) { /* nothing answers: OFFER, BIND and GET back off */
        sync_rig_sleep_until_due();
        sync_rig_drain_all();
    }
    uint64_t next = sync_deadline_us(&sync_rig.s);
    assert_true(next > sync_rig.now + 5000000);
    sync_rig_expect_none();
    sync_reconnected(&sync_rig.s, sync_rig.now);
    int counts[9] = {0};
    sync_rig_drain(counts);
    assert_true(counts[SYNC_SEND_BIND] >= 1);
    assert_int_equal(counts[SYNC_SEND_OFFER], 1);
    assert_int_equal(counts[SYNC_SEND_GET], 1);
    sync_rig_credit(4, 0, 500, 1000);
    sync_rig_drain_all();
    sync_reconnected(&sync_rig.s, sync_rig.now); /* the OFFER has an answer, the GET has none */
    memset(counts, 0, sizeof counts);
    sync_rig_drain(counts);
    assert_int_equal(counts[SYNC_SEND_OFFER], 0);
    assert_int_equal(counts[SYNC_SEND_GET], 1);
    sync_rejoin(&sync_rig.s, sync_rig.now);
    for (int i = 0; i < 12; i++) {
        sync_rig_sleep_until_due();
        sync_rig_drain_all();
    }
    assert_true(sync_deadline_us(&sync_rig.s) > sync_rig.now + 5000000);
    sync_reconnected(&sync_rig.s, sync_rig.now);
    sync_rig_expect(SYNC_SEND_HELLO);
}

TEST_MAIN(NULL, NULL)
