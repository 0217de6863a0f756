/* Windows of transfers: from rate and round trip, shared by the objects that arrive. The worker's protocol machine
 * downloads from the coordinator's request list over a long line. */

#include <math.h>

#include "coordinator/round/download.h"
#include "tests/lib/rigs/sync_rig.h"
#include "tests/lib/test.h"

enum { S = 1000000, MIB = 1 << 20, FRAGMENTS = 8, PACKETS = 4096, TICK_US = 1000 };

struct packet {
    uint64_t at, from, to;
    uint32_t fragment;
};

/* Chunks come down one after the other, at `rate` bytes per second and half a round trip later. Requests go up. */
static struct line {
    uint64_t rate, rtt_us, free_us;
    uint64_t most, again;          /* bytes in flight at most, and those that came twice */
    uint64_t bytes[FRAGMENTS];     /* size of the update of each fragment */
    uint64_t exists_us[FRAGMENTS]; /* when it is published */
    struct download download;
    struct packet down[PACKETS];
    struct msg_get up[PACKETS];
    uint64_t up_at[PACKETS];
    size_t down_first, down_n, up_first, up_n;
} line;

static void coordinator(void)
{
    struct download_item item;
    uint64_t size, now = sync_rig.now;
    for (; line.up_first < line.up_n && line.up_at[line.up_first] <= now; line.up_first++) {
        const struct msg_get *get = &line.up[line.up_first];
        bool exists = get->version == 7 && line.exists_us[get->fragment] <= now;
        download_add(&line.download, get, exists ? line.bytes[get->fragment] : 0);
    }
    for (uint32_t f = 0; f < sync_rig.s.n_fragments; f++)
        if (line.exists_us[f] <= now) download_wake(&line.download, f, 7, line.bytes[f]);
    while (download_next(&line.download, &item, &size)) {
        line.free_us = (line.free_us < now ? now : line.free_us) + size * S / line.rate;
        assert_true(line.down_n < PACKETS);
        line.down[line.down_n++] =
            (struct packet){line.free_us + line.rtt_us / 2, item.at, item.at + size, item.fragment};
        download_sent(&line.download, &item, size);
    }
    uint64_t in_flight = 0;
    for (size_t i = line.down_first; i < line.down_n; i++) in_flight += line.down[i].to - line.down[i].from;
    if (in_flight > line.most) line.most = in_flight;
}

static void worker(void)
{
    struct sync_action a;
    uint32_t applied;
    for (; line.down_first < line.down_n && line.down[line.down_first].at <= sync_rig.now; line.down_first++) {
        const struct packet *p = &line.down[line.down_first];
        bool again = sync_rig.s.f[p->fragment].version == 7 || p->to <= sync_rig.s.f[p->fragment].have;
        sync_on_chunk(&sync_rig.s, p->to - p->from, again, sync_rig.now);
        line.again += again ? p->to - p->from : 0;
        if (again) continue;
        assert_int_equal(sync_rig.s.f[p->fragment].have, p->from);
        sync_on_progress(&sync_rig.s, p->fragment, p->to, line.bytes[p->fragment], sync_rig.now);
        while (sync_apply(&sync_rig.s, &applied)) sync_applied(&sync_rig.s, applied, 0, SYNC_NO_ROUND, sync_rig.now);
    }
    while (sync_rig_poll_one(&a)) {
        if (a.type != SYNC_SEND_GET) continue;
        assert_true(line.up_n < PACKETS);
        line.up_at[line.up_n] = sync_rig.now + line.rtt_us / 2;
        line.up[line.up_n++] = (struct msg_get){
            .kind = a.kind, .fragment = a.fragment, .version = a.version, .offset = a.offset, .length = a.length};
    }
}

/* Begins an asynchronous run whose requests wait for the next updates. */
static void begin(uint32_t n, uint64_t rate, uint64_t rtt_us)
{
    line = (struct line){.rate = rate, .rtt_us = rtt_us};
    sync_rig_start(true, n, 6);
    sync_set_rtt(&sync_rig.s, rtt_us);
    for (uint32_t f = 0; f < n; f++) line.exists_us[f] = UINT64_MAX;
    sync_rejoin(&sync_rig.s, sync_rig.now += 2 * S);
    sync_rig_join_again(8, true, 6, 6);
}

/* Publishes these updates and returns the seconds until all have been applied. */
static double seconds_to_load(uint32_t n, const uint64_t *bytes)
{
    for (uint64_t end = sync_rig.now + line.rtt_us; sync_rig.now < end; sync_rig.now += TICK_US) {
        worker();
        coordinator();
    }
    for (uint32_t f = 0; f < n; f++) {
        line.bytes[f] = bytes[f];
        if (bytes[f]) line.exists_us[f] = sync_rig.now;
    }
    uint64_t begun = sync_rig.now;
    for (bool all = false; !all; sync_rig.now += TICK_US) {
        coordinator();
        worker();
        all = true;
        for (uint32_t f = 0; f < n; f++) all = all && (!bytes[f] || sync_rig.s.f[f].version == 7);
        assert_true(sync_rig.now < begun + 3600ull * S);
    }
    return (double)(sync_rig.now - begun) / S;
}

static struct sync_rate rate_of(double per_s)
{
    return (struct sync_rate){.best = per_s};
}

TEST(test_window_is_twice_rate_times_round_trip)
{
    struct sync_rate none = rate_of(0), slow = rate_of(125000), fast = rate_of(50e6), local = rate_of(1e9);
    assert_int_equal(sync_window(&none, 400000), SYNC_WINDOW_LEAST);
    assert_int_equal(sync_window(&slow, 2000000), SYNC_WINDOW_LEAST);
    assert_int_equal(sync_window(&fast, 200000), 20000000);
    assert_int_equal(sync_window(&fast, 0), SYNC_WINDOW_LEAST);
    assert_int_equal(sync_window(&local, 400000), SYNC_WINDOW_MOST);
}

/* The rate of the window rises with each larger sample and survives a few small ones; queued bytes that are read at
 * once count as if a tenth of a second had passed. */
TEST(test_window_rate_rises_at_once)
{
    struct sync_rate r;
    sync_rate_init(&r, 0);
    sync_rate_add(&r, 1);
    sync_rate_sample(&r, true, S);
    sync_rate_add(&r, 10 * MIB);
    sync_rate_sample(&r, true, S + 200000);
    assert_true(fabs(r.best - 50 * MIB) < 1);
    sync_rate_add(&r, MIB);
    sync_rate_sample(&r, true, 2 * S + 200000);
    assert_true(r.best > 40 * MIB && r.best < 45 * MIB);
    sync_rate_add(&r, 10 * MIB);
    sync_rate_sample(&r, false, 2 * S + 200001);
    assert_true(fabs(r.best - 100 * MIB) < 1);
}

/* The window that limits a transfer grows until the link limits it: a snapshot or a large update over a long link. */
TEST(test_window_grows_until_link_limits)
{
    static const uint64_t rtts_ms[] = {20, 100, 200, 400};
    for (size_t i = 0; i < sizeof rtts_ms / sizeof *rtts_ms; i++) {
        const uint64_t bytes = 200 * MIB, rate = 12500000;
        begin(1, rate, rtts_ms[i] * 1000);
        double ideal_s = (double)bytes / (double)rate + 1e-3 * (double)rtts_ms[i];
        assert_true(seconds_to_load(1, &bytes) < 1.05 * ideal_s);
    }
}

/* One large fragment among small ones takes the time of equal fragments and a round trip. When sizes and rate are
 * known, no request delays it. */
TEST(test_large_fragment_is_as_fast_as_equal_ones)
{
    uint64_t equal[FRAGMENTS], uneven[FRAGMENTS];
    for (int f = 0; f < FRAGMENTS; f++) {
        equal[f] = 2 * MIB;
        uneven[f] = f == 5 ? 16 * MIB - 7 * (MIB / 4) : MIB / 4;
    }
    begin(FRAGMENTS, 50000000, 200000);
    double equal_s = seconds_to_load(FRAGMENTS, equal);
    begin(FRAGMENTS, 50000000, 200000);
    double uneven_s = seconds_to_load(FRAGMENTS, uneven);
    assert_true(uneven_s < equal_s + 0.2);
    begin(FRAGMENTS, 50000000, 200000);
    for (int f = 0; f < FRAGMENTS; f++) sync_rig.s.f[f].usual = uneven[f];
    sync_rig.s.down.best = 80e6;
    assert_true(seconds_to_load(FRAGMENTS, uneven) < 0.1 + 16.0 * MIB / 50e6 + 0.02);
}

/* Requests that wait for updates leave the window to an update that arrives. */
TEST(test_waiting_requests_take_no_window)
{
    const uint64_t alone = 30 * MIB, among[FRAGMENTS] = {0, 0, 30 * MIB};
    begin(1, 12500000, 200000);
    double alone_s = seconds_to_load(1, &alone);
    begin(FRAGMENTS, 12500000, 200000);
    assert_true(seconds_to_load(FRAGMENTS, among) < 1.1 * alone_s);
}

/* A slow link holds the least window, and no link more than the inbox has room for. */
TEST(test_bytes_in_flight_are_bounded)
{
    uint64_t bytes[FRAGMENTS];
    for (int f = 0; f < FRAGMENTS; f++) bytes[f] = 12 * MIB;
    begin(FRAGMENTS, 500000, 400000);
    seconds_to_load(FRAGMENTS, bytes);
    assert_true(line.most <= 2 * SYNC_WINDOW_LEAST && !line.again);
    begin(FRAGMENTS, 250000000, 400000);
    seconds_to_load(FRAGMENTS, bytes);
    assert_in_range(line.most, SYNC_WINDOW_MOST / 2, SYNC_ARRIVING_MOST);
}

TEST_MAIN(NULL, NULL)
