/* ctest: labels=threads waits=1
 * A path with a long round trip behind a relay, which accepts connections at once: the limit of the handshake grows
 * until it fits, and a lost connection opens again with the time that it took. */
#include <unistd.h>

#include "cli/link/link_relay.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "tests/lib/net/transport_rig.h"
#include "tests/lib/test.h"

static void *run_relay(void *arg)
{
    return relay_run(arg, NULL) == STATUS_OK ? NULL : arg;
}

/* Sends on the lane until the listener hears it. */
static void expect_lane(struct endpoints *p, enum wire_lane lane)
{
    struct arrival a;
    for (uint64_t end = clock_monotonic_us() + PATIENCE;;) {
        assert_true(clock_monotonic_us() < end);
        (void)send_to(p->diallers[0], 0, lane, "now?", 4);
        recv_for(p->diallers[0], SECOND / 20, &a);
        if (recv_for(p->listener, SECOND / 20, &a) == STATUS_OK && a.lane == lane) return;
    }
}

TEST(test_limit_grows_until_the_handshake_fits)
{
    struct endpoints p = {0};
    struct relay *relay;
    char relayed[RELAY_ADDRESS_MAX];
    int commands[2];
    pthread_t thread;
    void *failed;
    struct transport_path path;
    listen_at(&p, "tcp://127.0.0.1:*");
    assert_int_equal(pipe(commands), 0);
    struct relay_options o = {.listen = "127.0.0.1:0",
                              .to = p.bound + strlen("tcp://"),
                              .spec = {.delay_ms = 450},
                              .control_fd = commands[0]};
    assert_int_equal(relay_create(&relay, &o, relayed, NULL), STATUS_OK);
    assert_int_equal(thread_start(&thread, run_relay, relay), 0);
    snprintf(p.address.endpoint, sizeof p.address.endpoint, "tcp://%s", relayed);
    forget_warnings();
    log_set_level(LOG_WARN);
    log_set_sink(keep_warning, NULL);
    dial(&p, 0);
    for (int lane = WIRE_CONTROL; lane <= WIRE_BULK; lane++) expect_lane(&p, (enum wire_lane)lane);
    assert_true(warned("the handshake takes longer than 3 s (round trip "));
    assert_true(warned("; trying with 6 s"));
    assert_false(warned("; trying with 12 s"));
    assert_true(atomic_load(&p.diallers[0]->rtt_us) > 0);
    assert_true(p.diallers[0]->ops->path(p.diallers[0], 0, &path) && path.acked > 0 && path.received > 0);
    forget_warnings();
    assert_int_equal(write(commands[1], "cut\n", 4), 4);
    unsigned before = atomic_load(&p.diallers[0]->connected);
    for (uint64_t end = clock_monotonic_us() + PATIENCE; atomic_load(&p.diallers[0]->connected) == before;) {
        struct arrival a;
        assert_true(clock_monotonic_us() < end);
        recv_for(p.diallers[0], SECOND / 20, &a);
    }
    assert_false(warned("takes longer"));
    log_set_sink(NULL, NULL);
    log_set_level(LOG_ERROR);
    assert_int_equal(write(commands[1], "quit\n", 5), 5);
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    relay_destroy(relay);
    close(commands[0]);
    close(commands[1]);
    close_all(&p);
}

int main(int argc, char **argv)
{
    log_set_level(LOG_ERROR);
    return test_run(argc, argv, NULL, NULL);
}
