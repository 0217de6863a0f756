#include "tests/lib/sim/sim_net.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/lib/sim/event_queue.h"

enum { LANES = 2, QUEUE_MESSAGES = 1000, RECONNECT_US = 200 * 1000 };

/* ---- packets: messages on the heap, in queues -------------------------------------------------------------------- */

struct sim_packet {
    struct sim_packet *next;
    uint64_t arrival_us; /* UINT64_MAX: waits for a connection */
    uint64_t peer;       /* the listener's id of the connection that carried it */
    int client;
    enum wire_lane lane;
    size_t size;
    uint8_t data[];
};

struct sim_packets {
    struct sim_packet *head, **tail;
    size_t count;
};

/* The queue must stay at this address. */
static void sim_packets_init(struct sim_packets *q)
{
    *q = (struct sim_packets){.tail = &q->head};
}

static void sim_packets_put(struct sim_packets *q, struct sim_packet *p)
{
    p->next = NULL;
    *q->tail = p;
    q->tail = &p->next;
    q->count++;
}

/* NULL if the queue is empty. */
static struct sim_packet *sim_packets_take(struct sim_packets *q)
{
    struct sim_packet *p = q->head;
    if (!p) return NULL;
    q->head = p->next;
    if (!q->head) q->tail = &q->head;
    q->count--;
    return p;
}

static void sim_packets_clear(struct sim_packets *q)
{
    for (struct sim_packet *p = sim_packets_take(q); p; p = sim_packets_take(q)) mem_free(p);
}

static struct sim_packet *sim_packet_copy(const struct sim_packet *p)
{
    struct sim_packet *copy = mem_alloc(1, sizeof(*p) + p->size);
    assert(copy);
    memcpy(copy, p, sizeof(*p) + p->size);
    return copy;
}

/* ---- the network ------------------------------------------------------------------------------------------------- */

/* One direction of one connection: packets in order of arrival. */
struct pipe {
    struct sim_packets packets;
    uint64_t busy_us, last_us; /* time at which the link is free again; arrival of the last packet */
};

struct connection {
    uint64_t peer; /* 0: never connected */
    bool open;
    struct pipe pipe[2]; /* [to_client] */
};

struct node {
    struct transport transport; /* first: the ops get a pointer to it */
    struct sim_net *net;
    int client;
    bool up;
    struct sim_packets inbox;
    struct sim_packet *lent; /* returned by the last recv */
    uint64_t bytes_sent, bytes_received;
};

struct sim_net {
    uint64_t seed, drawn, last_peer;
    struct event_queue own, *events; /* own, unless the network shares the clock of another */
    int n_clients;
    struct node nodes[SIM_NET_CLIENTS_MAX + 1]; /* the listener is the last one */
    struct connection connections[SIM_NET_CLIENTS_MAX][LANES];
    struct sim_net_link links[SIM_NET_CLIENTS_MAX];
    bool cut[SIM_NET_CLIENTS_MAX];
    struct sim_packets orphans; /* delivered in order, one event each */
    sim_net_ready_fn ready;
    sim_net_tap_fn tap;
    void *ctx;
    struct sim_net_counts counts;
};

/* ---- clock and draws --------------------------------------------------------------------------------------------- */

uint64_t sim_net_now(const struct sim_net *net)
{
    return net->events->now_us;
}

uint64_t sim_net_draw(struct sim_net *net, uint64_t below)
{
    return below ? rng_u64(net->seed, RNG_TEST, net->drawn++) % below : 0;
}

static double sim_net_chance(struct sim_net *net)
{
    return rng_uniform(net->seed, RNG_TEST, net->drawn++);
}

void sim_net_at(struct sim_net *net, uint64_t at_us, event_fn fn, void *ctx, uint64_t arg)
{
    event_queue_at(net->events, at_us, fn, ctx, arg);
}

bool sim_net_step(struct sim_net *net, uint64_t until_us)
{
    return event_queue_step(net->events, until_us);
}

/* ---- links ------------------------------------------------------------------------------------------------------- */

static struct node *net_node(struct sim_net *net, int client)
{
    assert(client >= SIM_NET_LISTENER && client < net->n_clients);
    return &net->nodes[client == SIM_NET_LISTENER ? SIM_NET_CLIENTS_MAX : client];
}

static int net_tap(struct sim_net *net, enum sim_net_moment moment, const struct sim_packet *p, bool to_client)
{
    if (!net->tap) return 1;
    struct msg m;
    struct err err = {0};
    enum status status = msg_decode(&m, p->data, p->size, &err);
    if (status != STATUS_OK) fprintf(stderr, "sim_net: a sent message does not decode: %s\n", err.msg);
    assert(status == STATUS_OK);
    return net->tap(net->ctx, moment, p->client, to_client, &m);
}

static void packet_deliver(struct sim_net *net, struct sim_packet *p, bool to_client)
{
    struct node *to = net_node(net, to_client ? p->client : SIM_NET_LISTENER);
    if (!to->up) {
        mem_free(p);
        return;
    }
    net->counts.delivered++;
    to->bytes_received += p->size;
    (void)net_tap(net, SIM_NET_ARRIVED, p, to_client);
    sim_packets_put(&to->inbox, p);
    if (net->ready) net->ready(net->ctx, to->client);
}

static void pipe_arrive(void *ctx, uint64_t arg)
{
    struct sim_net *net = ctx;
    int client = (int)(arg >> 2);
    bool to_client = arg & 1;
    struct pipe *pipe = &net->connections[client][arg >> 1 & 1].pipe[to_client];
    while (pipe->packets.head && pipe->packets.head->arrival_us <= net->events->now_us && !net->cut[client])
        packet_deliver(net, sim_packets_take(&pipe->packets), to_client);
}

/* Delivers the packets that a killed dialler had passed to its kernel, under the old peer id. */
static void orphan_arrive(void *ctx, uint64_t arg)
{
    struct sim_net *net = ctx;
    struct sim_packet *p = sim_packets_take(&net->orphans);
    (void)arg;
    if (net->cut[p->client]) {
        mem_free(p);
    } else {
        packet_deliver(net, p, false);
    }
}

/* Sets the arrival of p: after the packets before it, at the link's rate, with latency and jitter. */
static void pipe_schedule(struct sim_net *net, struct pipe *pipe, struct sim_packet *p, bool to_client)
{
    const struct sim_net_link *link = &net->links[p->client];
    uint64_t start = pipe->busy_us > net->events->now_us ? pipe->busy_us : net->events->now_us;
    pipe->busy_us = start + (link->rate ? p->size * UINT64_C(1000000) / link->rate : 0);
    p->arrival_us = pipe->busy_us + link->latency_us + sim_net_draw(net, link->jitter_us);
    if (p->arrival_us < pipe->last_us) p->arrival_us = pipe->last_us;
    pipe->last_us = p->arrival_us;
    sim_net_at(net, p->arrival_us, pipe_arrive, net, (uint64_t)p->client << 2 | (uint64_t)p->lane << 1 | to_client);
}

static void pipe_reset(struct sim_net *net, struct pipe *pipe)
{
    pipe->busy_us = pipe->last_us = net->events->now_us;
}

/* Sends every packet of the pipe again from now on, in order. */
static void pipe_restart(struct sim_net *net, struct pipe *pipe, bool to_client, uint64_t peer)
{
    pipe_reset(net, pipe);
    for (struct sim_packet *p = pipe->packets.head; p; p = p->next) {
        p->peer = peer;
        pipe_schedule(net, pipe, p, to_client);
    }
}

static void connection_open(void *ctx, uint64_t arg)
{
    struct sim_net *net = ctx;
    int client = (int)(arg >> 1);
    struct connection *c = &net->connections[client][arg & 1];
    if (c->open || net->cut[client] || !net_node(net, client)->up || !net_node(net, SIM_NET_LISTENER)->up) return;
    if (c->peer == 0 || sim_net_chance(net) >= net->links[client].same_peer) c->peer = ++net->last_peer;
    c->open = true;
    pipe_reset(net, &c->pipe[1]);
    sim_packets_clear(&c->pipe[1].packets);
    pipe_restart(net, &c->pipe[0], false, c->peer);
}

static void connection_dial(struct sim_net *net, int client)
{
    for (int lane = 0; lane < LANES; lane++) {
        uint64_t delay = net->links[client].latency_us + sim_net_draw(net, RECONNECT_US);
        sim_net_at(net, net->events->now_us + delay, connection_open, net, (uint64_t)client << 1 | (uint64_t)lane);
    }
}

/* Ends the connection. The packets in a direction are kept (in a socket's buffer, or queued for the next connection)
 * or lost. */
static void connection_close(struct sim_net *net, int client, bool keep_up, bool keep_down, bool forget_peer)
{
    for (int lane = 0; lane < LANES; lane++) {
        struct connection *c = &net->connections[client][lane];
        c->open = false;
        if (forget_peer) c->peer = 0;
        if (!keep_up) sim_packets_clear(&c->pipe[0].packets);
        if (!keep_down) sim_packets_clear(&c->pipe[1].packets);
    }
}

static void connection_orphan(struct sim_net *net, int client, int lane)
{
    struct sim_packets *q = &net->connections[client][lane].pipe[0].packets;
    while (net->connections[client][lane].open && q->head) {
        sim_packets_put(&net->orphans, sim_packets_take(q));
        sim_net_at(net, net->events->now_us + net->links[client].latency_us, orphan_arrive, net, 0);
    }
}

/* ---- transport --------------------------------------------------------------------------------------------------- */

static bool pipe_full(const struct sim_net *net, const struct pipe *pipe, const struct sim_net_link *link)
{
    if (pipe->packets.count >= QUEUE_MESSAGES) return true;
    return link->queue_us && pipe->busy_us > net->events->now_us + link->queue_us;
}

static enum status node_send(struct transport *t, uint64_t peer, enum wire_lane lane, const uint8_t *data, size_t size)
{
    struct node *from = (struct node *)t;
    struct sim_net *net = from->net;
    bool to_client = from->client == SIM_NET_LISTENER;
    int client = to_client ? sim_net_peer_client(net, peer) : from->client;
    if (!from->up || client < 0) return STATUS_CLOSED;
    struct connection *c = &net->connections[client][lane];
    if (to_client && c->peer != peer) return STATUS_CLOSED;
    /* A listener detects a closed connection late: until then its messages are lost. */
    if (to_client && !c->open) return sim_net_chance(net) < 0.5 ? STATUS_CLOSED : STATUS_OK;
    struct pipe *pipe = &c->pipe[to_client];
    if (pipe_full(net, pipe, &net->links[client])) {
        net->counts.refused++;
        return STATUS_AGAIN;
    }
    struct sim_packet *p = mem_alloc(1, sizeof(*p) + size);
    assert(p);
    *p = (struct sim_packet){.arrival_us = UINT64_MAX, .peer = c->peer, .client = client, .lane = lane, .size = size};
    memcpy(p->data, data, size);
    net->counts.sent++;
    from->bytes_sent += size;
    int copies = net_tap(net, SIM_NET_SENT, p, to_client);
    if (copies == 1 && sim_net_chance(net) < net->links[client].loss) copies = 0;
    if (copies == 1 && sim_net_chance(net) < net->links[client].duplicate) copies = 2;
    net->counts.lost += copies == 0;
    net->counts.duplicated += copies > 1;
    for (int i = 0; i < copies; i++) {
        struct sim_packet *copy = sim_packet_copy(p);
        sim_packets_put(&pipe->packets, copy);
        if (c->open) pipe_schedule(net, pipe, copy, to_client);
    }
    mem_free(p);
    return STATUS_OK;
}

static enum status node_recv(struct transport *t, uint64_t timeout_us, uint64_t *peer_p, enum wire_lane *lane_p,
                             const uint8_t **data_p, size_t *size_p)
{
    struct node *node = (struct node *)t;
    (void)timeout_us;
    mem_free(node->lent);
    node->lent = sim_packets_take(&node->inbox);
    if (!node->lent) return STATUS_AGAIN;
    *peer_p = node->client == SIM_NET_LISTENER ? node->lent->peer : 0;
    *lane_p = node->lent->lane;
    *data_p = node->lent->data;
    *size_p = node->lent->size;
    return STATUS_OK;
}

static void node_wake(struct transport *t)
{
    (void)t;
}

static void node_bytes(const struct transport *t, uint64_t *sent_p, uint64_t *received_p)
{
    const struct node *node = (const struct node *)t;
    *sent_p = node->bytes_sent;
    *received_p = node->bytes_received;
}

/* Closes both lanes: the simulation has no half-open client. */
static void node_drop(struct transport *t, uint64_t peer)
{
    struct node *node = (struct node *)t;
    struct sim_net *net = node->net;
    int client = node->client == SIM_NET_LISTENER ? sim_net_peer_client(net, peer) : node->client;
    if (client < 0) return;
    connection_close(net, client, false, false, true);
    connection_dial(net, client);
}

static const struct transport_ops node_ops = {
    .send = node_send,
    .recv = node_recv,
    .wake = node_wake,
    .drop = node_drop,
    .bytes = node_bytes,
    .close = node_wake,
};

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

enum status sim_net_create(struct sim_net **net_p, uint64_t seed, int n_clients)
{
    if (n_clients < 0 || n_clients > SIM_NET_CLIENTS_MAX) return STATUS_INVALID;
    struct sim_net *net = mem_alloc(1, sizeof(*net));
    if (!net) return STATUS_NOMEM;
    net->seed = seed;
    net->events = &net->own;
    sim_packets_init(&net->orphans);
    net->n_clients = n_clients;
    for (int i = 0; i <= SIM_NET_CLIENTS_MAX; i++) {
        struct node *node = &net->nodes[i];
        *node = (struct node){
            {.ops = &node_ops}, net, i == SIM_NET_CLIENTS_MAX ? SIM_NET_LISTENER : i, false, {0}, NULL, 0, 0};
        sim_packets_init(&node->inbox);
    }
    for (int i = 0; i < SIM_NET_CLIENTS_MAX; i++)
        for (int j = 0; j < 2 * LANES; j++) sim_packets_init(&net->connections[i][j / 2].pipe[j % 2].packets);
    *net_p = net;
    return STATUS_OK;
}

void sim_net_share_clock(struct sim_net *net, struct sim_net *other)
{
    net->events = other->events;
}

void sim_net_destroy(struct sim_net *net)
{
    if (!net) return;
    for (int i = 0; i <= SIM_NET_CLIENTS_MAX; i++) {
        sim_packets_clear(&net->nodes[i].inbox);
        mem_free(net->nodes[i].lent);
    }
    for (int i = 0; i < SIM_NET_CLIENTS_MAX; i++)
        for (int j = 0; j < 2 * LANES; j++) sim_packets_clear(&net->connections[i][j / 2].pipe[j % 2].packets);
    sim_packets_clear(&net->orphans);
    event_queue_finish(&net->own);
    mem_free(net);
}

void sim_net_hooks(struct sim_net *net, sim_net_ready_fn ready, sim_net_tap_fn tap, void *ctx)
{
    net->ready = ready;
    net->tap = tap;
    net->ctx = ctx;
}

struct sim_net_link *sim_net_link(struct sim_net *net, int client)
{
    assert(client >= 0 && client < net->n_clients);
    return &net->links[client];
}

struct transport *sim_net_up(struct sim_net *net, int client)
{
    struct node *node = net_node(net, client);
    node->up = true;
    for (int i = 0; i < net->n_clients; i++)
        if (client == SIM_NET_LISTENER || client == i) connection_dial(net, i);
    return &node->transport;
}

void sim_net_kill(struct sim_net *net, int client)
{
    struct node *node = net_node(net, client);
    if (!node->up) return;
    node->up = false;
    sim_packets_clear(&node->inbox);
    for (int i = 0; i < net->n_clients; i++) {
        if (client == SIM_NET_LISTENER) {
            connection_close(net, i, sim_net_draw(net, 2), sim_net_draw(net, 2), true);
        } else if (client == i) {
            for (int lane = 0; lane < LANES && sim_net_draw(net, 2); lane++) connection_orphan(net, i, lane);
            connection_close(net, i, false, false, true);
        }
    }
}

void sim_net_partition(struct sim_net *net, int client, bool cut)
{
    assert(client >= 0 && client < net->n_clients);
    if (net->cut[client] == cut) return;
    net->cut[client] = cut;
    if (cut) return;
    bool stall = sim_net_draw(net, 2);
    if (!stall) connection_close(net, client, sim_net_draw(net, 2), false, false);
    for (int lane = 0; lane < LANES; lane++) {
        struct connection *c = &net->connections[client][lane];
        if (!c->open) continue;
        pipe_restart(net, &c->pipe[0], false, c->peer);
        pipe_restart(net, &c->pipe[1], true, c->peer);
    }
    connection_dial(net, client); /* open connections stay open */
}

int sim_net_peer_client(const struct sim_net *net, uint64_t peer)
{
    for (int i = 0; i < net->n_clients && peer; i++)
        if (net->connections[i][0].peer == peer || net->connections[i][1].peer == peer) return i;
    return -1;
}

struct sim_net_counts sim_net_counts(const struct sim_net *net)
{
    return net->counts;
}
