/* The virtual network: order, delay, rate, loss, duplication, queues, cuts and killed nodes. */

#include "tests/lib/sim/sim_net.h"
#include "tests/lib/test.h"

static struct sim_net *net_of(int clients, struct transport **listener, struct transport *dialler[])
{
    struct sim_net *net;
    assert_int_equal(sim_net_create(&net, 1, clients), STATUS_OK);
    *listener = sim_net_up(net, SIM_NET_LISTENER);
    for (int i = 0; i < clients; i++) dialler[i] = sim_net_up(net, i);
    while (sim_net_step(net, 1000000)) continue; /* connect */
    return net;
}

static void send_number(struct transport *t, uint64_t peer, enum wire_lane lane, uint32_t n, size_t size)
{
    uint8_t data[4096] = {0};
    memcpy(data, &n, sizeof(n));
    assert_int_equal(t->ops->send(t, peer, lane, data, size), STATUS_OK);
}

/* Returns the next number at t, or -1. */
static int64_t recv_number(struct transport *t, uint64_t *peer, enum wire_lane *lane)
{
    const uint8_t *data;
    size_t size;
    uint32_t n;
    if (t->ops->recv(t, 0, peer, lane, &data, &size) != STATUS_OK) return -1;
    memcpy(&n, data, sizeof(n));
    return n;
}

TEST(test_messages_arrive_in_order_after_delay)
{
    struct transport *listener, *d[2];
    struct sim_net *net = net_of(2, &listener, d);
    *sim_net_link(net, 0) = (struct sim_net_link){.latency_us = 1000, .jitter_us = 5000};
    sim_net_link(net, 1)->latency_us = 100;
    uint64_t start = sim_net_now(net), peer;
    enum wire_lane lane;
    for (uint32_t i = 0; i < 50; i++) send_number(d[0], 0, WIRE_BULK, i, 10);
    send_number(d[1], 0, WIRE_CONTROL, 99, 10);
    assert_int_equal(recv_number(listener, &peer, &lane), -1);
    sim_net_step(net, start + 1000);
    assert_int_equal(sim_net_now(net), start + 100);
    assert_int_equal(recv_number(listener, &peer, &lane), 99);
    assert_int_equal(sim_net_peer_client(net, peer), 1);
    assert_int_equal(lane, WIRE_CONTROL);
    while (sim_net_step(net, start + 10000)) continue;
    for (uint32_t i = 0; i < 50; i++) assert_int_equal(recv_number(listener, &peer, &lane), i);
    send_number(listener, peer, WIRE_BULK, 7, 10);
    assert_int_equal(listener->ops->send(listener, peer, WIRE_CONTROL, (const uint8_t *)"x", 1), STATUS_CLOSED);
    while (sim_net_step(net, start + 20000)) continue;
    assert_int_equal(recv_number(d[0], &peer, &lane), 7);
    sim_net_destroy(net);
}

TEST(test_rate_limits_each_lane_and_queue_is_bounded)
{
    struct transport *listener, *d[1];
    struct sim_net *net = net_of(1, &listener, d);
    *sim_net_link(net, 0) = (struct sim_net_link){.rate = 1000000, .queue_us = 2500};
    uint64_t start = sim_net_now(net), peer;
    enum wire_lane lane;
    for (uint32_t i = 0; i < 3; i++) send_number(d[0], 0, WIRE_BULK, i, 1000);
    uint8_t more[1000] = {0};
    assert_int_equal(d[0]->ops->send(d[0], 0, WIRE_BULK, more, 1000), STATUS_AGAIN);
    send_number(d[0], 0, WIRE_CONTROL, 9, 10); /* a full bulk lane does not delay control */
    for (int i = 1; i <= 4; i++) sim_net_step(net, start + 10000);
    assert_int_equal(sim_net_now(net), start + 3000);
    assert_int_equal(recv_number(listener, &peer, &lane), 9);
    assert_int_equal(sim_net_counts(net).refused, 1);
    sim_net_destroy(net);
}

TEST(test_loss_and_duplication_keep_order)
{
    struct transport *listener, *d[1];
    struct sim_net *net = net_of(1, &listener, d);
    *sim_net_link(net, 0) = (struct sim_net_link){.loss = 0.3, .duplicate = 0.3};
    for (uint32_t i = 0; i < 900; i++) send_number(d[0], 0, WIRE_CONTROL, i, 10);
    while (sim_net_step(net, 10000000)) continue;
    uint64_t peer;
    enum wire_lane lane;
    int64_t last = -1;
    uint64_t got = 0;
    for (int64_t n = recv_number(listener, &peer, &lane); n >= 0; n = recv_number(listener, &peer, &lane)) {
        assert_true(n >= last); /* the order holds */
        last = n;
        got++;
    }
    struct sim_net_counts counts = sim_net_counts(net);
    assert_in_range(counts.lost, 200, 340);
    assert_in_range(counts.duplicated, 130, 250);
    assert_int_equal(got, 900 - counts.lost + counts.duplicated);
    sim_net_destroy(net);
}

TEST(test_cut_link_delivers_again_after_heal)
{
    int lost = 0, kept = 0;
    for (int i = 0; i < 20; i++) {
        struct transport *listener, *d[1];
        struct sim_net *net = net_of(1, &listener, d);
        for (int j = 0; j < i; j++) (void)sim_net_draw(net, 2);
        sim_net_link(net, 0)->latency_us = 1000;
        send_number(d[0], 0, WIRE_CONTROL, 1, 10);
        sim_net_partition(net, 0, true);
        send_number(d[0], 0, WIRE_CONTROL, 2, 10);
        while (sim_net_step(net, sim_net_now(net) + 1000000)) continue;
        uint64_t peer;
        enum wire_lane lane;
        assert_int_equal(recv_number(listener, &peer, &lane), -1);
        sim_net_partition(net, 0, false);
        while (sim_net_step(net, sim_net_now(net) + 1000000)) continue;
        int64_t first = recv_number(listener, &peer, &lane);
        lost += first < 0;
        kept += first == 1;
        send_number(d[0], 0, WIRE_CONTROL, 3, 10); /* both directions work again */
        while (sim_net_step(net, sim_net_now(net) + 1000000)) continue;
        int64_t last = first;
        for (int64_t n = first; n >= 0; n = recv_number(listener, &peer, &lane)) last = n;
        if (first < 0) last = recv_number(listener, &peer, &lane);
        assert_int_equal(last, 3);
        sim_net_destroy(net);
    }
    assert_true(lost > 0 && kept > 0);
}

TEST(test_killed_node_loses_its_messages)
{
    struct transport *listener, *d[1];
    struct sim_net *net = net_of(1, &listener, d);
    uint64_t old, peer;
    enum wire_lane lane;
    send_number(d[0], 0, WIRE_CONTROL, 1, 10);
    while (sim_net_step(net, sim_net_now(net) + 1000)) continue;
    assert_int_equal(recv_number(listener, &old, &lane), 1);
    send_number(listener, old, WIRE_CONTROL, 2, 10);
    sim_net_kill(net, 0);
    assert_int_equal(d[0]->ops->send(d[0], 0, WIRE_CONTROL, (const uint8_t *)"x", 1), STATUS_CLOSED);
    while (sim_net_step(net, sim_net_now(net) + 1000)) continue;
    sim_net_up(net, 0);
    while (sim_net_step(net, sim_net_now(net) + 1000000)) continue;
    assert_int_equal(recv_number(d[0], &peer, &lane), -1); /* messages to the killed node are lost */
    assert_int_equal(listener->ops->send(listener, old, WIRE_CONTROL, (const uint8_t *)"x", 1), STATUS_CLOSED);
    send_number(d[0], 0, WIRE_CONTROL, 3, 10);
    while (sim_net_step(net, sim_net_now(net) + 1000)) continue;
    assert_int_equal(recv_number(listener, &peer, &lane), 3);
    assert_int_not_equal(peer, old);

    sim_net_kill(net, SIM_NET_LISTENER); /* a dialler's socket queues until the listener is back */
    send_number(d[0], 0, WIRE_CONTROL, 4, 10);
    while (sim_net_step(net, sim_net_now(net) + 1000000)) continue;
    sim_net_up(net, SIM_NET_LISTENER);
    while (sim_net_step(net, sim_net_now(net) + 1000000)) continue;
    assert_int_equal(recv_number(listener, &peer, &lane), 4);
    sim_net_destroy(net);
}

static uint64_t order_log;

static void order_event(void *ctx, uint64_t arg)
{
    (void)ctx;
    order_log = order_log * 10 + arg;
}

TEST(test_events_run_in_order)
{
    struct sim_net *net;
    assert_int_equal(sim_net_create(&net, 1, 0), STATUS_OK);
    order_log = 0;
    sim_net_at(net, 30, order_event, NULL, 5);
    sim_net_at(net, 10, order_event, NULL, 1);
    sim_net_at(net, 20, order_event, NULL, 3);
    sim_net_at(net, 10, order_event, NULL, 2);
    sim_net_at(net, 20, order_event, NULL, 4);
    while (sim_net_step(net, 25)) continue;
    assert_int_equal(order_log, 1234);
    assert_int_equal(sim_net_now(net), 25);
    assert_true(sim_net_step(net, 30));
    assert_int_equal(order_log, 12345);
    sim_net_destroy(net);
}

TEST_MAIN(NULL, NULL)
