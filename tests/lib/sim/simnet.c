#include "tests/lib/sim/simnet.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/lib/sim/simevents.h"
#include "tests/lib/sim/simpackets.h"

enum { LANES = 2, QUEUE_MESSAGES = 1000, RECONNECT_US = 200 * 1000 };

/* One direction of one connection: packets in order of arrival. */
struct pipe {
    struct simpackets packets;
    uint64_t busy_us, last_us; /* when the link is free again; arrival of the last packet */
};

struct connection {
    uint64_t peer; /* 0: never connected */
    bool open;
    struct pipe pipe[2]; /* [to_client] */
};

struct node {
    struct transport transport; /* first: the ops get a pointer to it */
    struct simnet *net;
    int client;
    bool up;
    struct simpackets inbox;
    struct simpacket *lent; /* handed out by the last recv */
    uint64_t bytes_sent, bytes_received;
};

struct simnet {
    uint64_t seed, drawn, last_peer;
    struct simevents events;
    int n_clients;
    struct node nodes[SIMNET_CLIENTS_MAX + 1]; /* the listener is the last one */
    struct connection connections[SIMNET_CLIENTS_MAX][LANES];
    struct simnet_link links[SIMNET_CLIENTS_MAX];
    bool cut[SIMNET_CLIENTS_MAX];
    struct simpackets orphans; /* arrive in order, one event each */
    simnet_ready_fn ready;
    simnet_tap_fn tap;
    void *ctx;
    struct simnet_counts counts;
};

/* ---- clock and draws --------------------------------------------------------------------------------------------- */

uint64_t simnet_now(const struct simnet *net)
{
    return net->events.now_us;
}

uint64_t simnet_draw(struct simnet *net, uint64_t below)
{
    return below ? rng_u64(net->seed, RNG_TEST, net->drawn++) % below : 0;
}

double simnet_chance(struct simnet *net)
{
    return rng_uniform(net->seed, RNG_TEST, net->drawn++);
}

void simnet_at(struct simnet *net, uint64_t at_us, simevents_fn fn, void *ctx, uint64_t arg)
{
    simevents_at(&net->events, at_us, fn, ctx, arg);
}

bool simnet_step(struct simnet *net, uint64_t until_us)
{
    return simevents_step(&net->events, until_us);
}

/* ---- links ------------------------------------------------------------------------------------------------------- */

static struct node *net_node(struct simnet *net, int client)
{
    assert(client >= SIMNET_LISTENER && client < net->n_clients);
    return &net->nodes[client == SIMNET_LISTENER ? SIMNET_CLIENTS_MAX : client];
}

static int net_tap(struct simnet *net, enum simnet_moment moment, const struct simpacket *p, bool to_client)
{
    if (!net->tap) return 1;
    struct msg m;
    struct err err = {0};
    enum status status = msg_decode(&m, p->data, p->size, &err);
    if (status != STATUS_OK) fprintf(stderr, "simnet: a sent message does not decode: %s\n", err.msg);
    assert(status == STATUS_OK);
    return net->tap(net->ctx, moment, p->client, to_client, &m);
}

static void packet_deliver(struct simnet *net, struct simpacket *p, bool to_client)
{
    struct node *to = net_node(net, to_client ? p->client : SIMNET_LISTENER);
    if (!to->up) {
        mem_free(p);
        return;
    }
    net->counts.delivered++;
    to->bytes_received += p->size;
    (void)net_tap(net, SIMNET_ARRIVED, p, to_client);
    simpackets_put(&to->inbox, p);
    if (net->ready) net->ready(net->ctx, to->client);
}

static void pipe_arrive(void *ctx, uint64_t arg)
{
    struct simnet *net = ctx;
    int client = (int)(arg >> 2);
    bool to_client = arg & 1;
    struct pipe *pipe = &net->connections[client][arg >> 1 & 1].pipe[to_client];
    while (pipe->packets.head && pipe->packets.head->arrival_us <= net->events.now_us && !net->cut[client])
        packet_deliver(net, simpackets_take(&pipe->packets), to_client);
}

/* What a killed dialler had already handed to its kernel still arrives, under the old peer id. */
static void orphan_arrive(void *ctx, uint64_t arg)
{
    struct simnet *net = ctx;
    struct simpacket *p = simpackets_take(&net->orphans);
    (void)arg;
    if (net->cut[p->client]) {
        mem_free(p);
    } else {
        packet_deliver(net, p, false);
    }
}

/* Give p its arrival: after what is before it in the pipe, at the link's rate, with latency and jitter. */
static void pipe_schedule(struct simnet *net, struct pipe *pipe, struct simpacket *p, bool to_client)
{
    const struct simnet_link *link = &net->links[p->client];
    uint64_t start = pipe->busy_us > net->events.now_us ? pipe->busy_us : net->events.now_us;
    pipe->busy_us = start + (link->rate ? p->size * UINT64_C(1000000) / link->rate : 0);
    p->arrival_us = pipe->busy_us + link->latency_us + simnet_draw(net, link->jitter_us);
    if (p->arrival_us < pipe->last_us) p->arrival_us = pipe->last_us;
    pipe->last_us = p->arrival_us;
    simnet_at(net, p->arrival_us, pipe_arrive, net, (uint64_t)p->client << 2 | (uint64_t)p->lane << 1 | to_client);
}

static void pipe_reset(struct simnet *net, struct pipe *pipe)
{
    pipe->busy_us = pipe->last_us = net->events.now_us;
}

/* Everything still in the pipe travels again from now on, in order. */
static void pipe_restart(struct simnet *net, struct pipe *pipe, bool to_client, uint64_t peer)
{
    pipe_reset(net, pipe);
    for (struct simpacket *p = pipe->packets.head; p; p = p->next) {
        p->peer = peer;
        pipe_schedule(net, pipe, p, to_client);
    }
}

static void connection_open(void *ctx, uint64_t arg)
{
    struct simnet *net = ctx;
    int client = (int)(arg >> 1);
    struct connection *c = &net->connections[client][arg & 1];
    if (c->open || net->cut[client] || !net_node(net, client)->up || !net_node(net, SIMNET_LISTENER)->up) return;
    if (c->peer == 0 || simnet_chance(net) >= net->links[client].same_peer) c->peer = ++net->last_peer;
    c->open = true;
    pipe_reset(net, &c->pipe[1]);
    simpackets_clear(&c->pipe[1].packets);
    pipe_restart(net, &c->pipe[0], false, c->peer);
}

static void connection_dial(struct simnet *net, int client)
{
    for (int lane = 0; lane < LANES; lane++) {
        uint64_t delay = net->links[client].latency_us + simnet_draw(net, RECONNECT_US);
        simnet_at(net, net->events.now_us + delay, connection_open, net, (uint64_t)client << 1 | (uint64_t)lane);
    }
}

/* The connection ends: what was under way in a direction is kept (already in a socket's buffer, or queued again on the
 * next connection) or lost. */
static void connection_close(struct simnet *net, int client, bool keep_up, bool keep_down, bool forget_peer)
{
    for (int lane = 0; lane < LANES; lane++) {
        struct connection *c = &net->connections[client][lane];
        c->open = false;
        if (forget_peer) c->peer = 0;
        if (!keep_up) simpackets_clear(&c->pipe[0].packets);
        if (!keep_down) simpackets_clear(&c->pipe[1].packets);
    }
}

static void connection_orphan(struct simnet *net, int client, int lane)
{
    struct simpackets *q = &net->connections[client][lane].pipe[0].packets;
    while (net->connections[client][lane].open && q->head) {
        simpackets_put(&net->orphans, simpackets_take(q));
        simnet_at(net, net->events.now_us + net->links[client].latency_us, orphan_arrive, net, 0);
    }
}

/* ---- transport --------------------------------------------------------------------------------------------------- */

static bool pipe_full(const struct simnet *net, const struct pipe *pipe, const struct simnet_link *link)
{
    if (pipe->packets.count >= QUEUE_MESSAGES) return true;
    return link->queue_us && pipe->busy_us > net->events.now_us + link->queue_us;
}

static enum status node_send(struct transport *t, uint64_t peer, enum wire_lane lane, const uint8_t *data, size_t size)
{
    struct node *from = (struct node *)t;
    struct simnet *net = from->net;
    bool to_client = from->client == SIMNET_LISTENER;
    int client = to_client ? simnet_peer_client(net, peer) : from->client;
    if (!from->up || client < 0) return STATUS_CLOSED;
    struct connection *c = &net->connections[client][lane];
    if (to_client && c->peer != peer) return STATUS_CLOSED;
    /* A listener learns late that a dialler has gone: until then its messages vanish. */
    if (to_client && !c->open) return simnet_chance(net) < 0.5 ? STATUS_CLOSED : STATUS_OK;
    struct pipe *pipe = &c->pipe[to_client];
    if (pipe_full(net, pipe, &net->links[client])) {
        net->counts.refused++;
        return STATUS_AGAIN;
    }
    struct simpacket *p = mem_alloc(1, sizeof(*p) + size);
    assert(p);
    *p = (struct simpacket){.arrival_us = UINT64_MAX, .peer = c->peer, .client = client, .lane = lane, .size = size};
    memcpy(p->data, data, size);
    net->counts.sent++;
    from->bytes_sent += size;
    int copies = net_tap(net, SIMNET_SENT, p, to_client);
    if (copies == 1 && simnet_chance(net) < net->links[client].loss) copies = 0;
    if (copies == 1 && simnet_chance(net) < net->links[client].duplicate) copies = 2;
    net->counts.lost += copies == 0;
    net->counts.duplicated += copies > 1;
    for (int i = 0; i < copies; i++) {
        struct simpacket *copy = simpacket_copy(p);
        simpackets_put(&pipe->packets, copy);
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
    node->lent = simpackets_take(&node->inbox);
    if (!node->lent) return STATUS_AGAIN;
    *peer_p = node->client == SIMNET_LISTENER ? node->lent->peer : 0;
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

static const struct transport_ops node_ops = {
    .send = node_send, .recv = node_recv, .wake = node_wake, .bytes = node_bytes, .close = node_wake};

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

enum status simnet_create(struct simnet **net_p, uint64_t seed, int n_clients)
{
    if (n_clients < 0 || n_clients > SIMNET_CLIENTS_MAX) return STATUS_INVALID;
    struct simnet *net = mem_alloc(1, sizeof(*net));
    if (!net) return STATUS_NOMEM;
    net->seed = seed;
    simpackets_init(&net->orphans);
    net->n_clients = n_clients;
    for (int i = 0; i <= SIMNET_CLIENTS_MAX; i++) {
        struct node *node = &net->nodes[i];
        *node = (struct node){
            {.ops = &node_ops}, net, i == SIMNET_CLIENTS_MAX ? SIMNET_LISTENER : i, false, {0}, NULL, 0, 0};
        simpackets_init(&node->inbox);
    }
    for (int i = 0; i < SIMNET_CLIENTS_MAX; i++)
        for (int j = 0; j < 2 * LANES; j++) simpackets_init(&net->connections[i][j / 2].pipe[j % 2].packets);
    *net_p = net;
    return STATUS_OK;
}

void simnet_destroy(struct simnet *net)
{
    if (!net) return;
    for (int i = 0; i <= SIMNET_CLIENTS_MAX; i++) {
        simpackets_clear(&net->nodes[i].inbox);
        mem_free(net->nodes[i].lent);
    }
    for (int i = 0; i < SIMNET_CLIENTS_MAX; i++)
        for (int j = 0; j < 2 * LANES; j++) simpackets_clear(&net->connections[i][j / 2].pipe[j % 2].packets);
    simpackets_clear(&net->orphans);
    simevents_finish(&net->events);
    mem_free(net);
}

void simnet_hooks(struct simnet *net, simnet_ready_fn ready, simnet_tap_fn tap, void *ctx)
{
    net->ready = ready;
    net->tap = tap;
    net->ctx = ctx;
}

struct simnet_link *simnet_link(struct simnet *net, int client)
{
    assert(client >= 0 && client < net->n_clients);
    return &net->links[client];
}

struct transport *simnet_up(struct simnet *net, int client)
{
    struct node *node = net_node(net, client);
    node->up = true;
    for (int i = 0; i < net->n_clients; i++)
        if (client == SIMNET_LISTENER || client == i) connection_dial(net, i);
    return &node->transport;
}

void simnet_kill(struct simnet *net, int client)
{
    struct node *node = net_node(net, client);
    if (!node->up) return;
    node->up = false;
    simpackets_clear(&node->inbox);
    for (int i = 0; i < net->n_clients; i++) {
        if (client == SIMNET_LISTENER) {
            connection_close(net, i, simnet_draw(net, 2), simnet_draw(net, 2), true);
        } else if (client == i) {
            for (int lane = 0; lane < LANES && simnet_draw(net, 2); lane++) connection_orphan(net, i, lane);
            connection_close(net, i, false, false, true);
        }
    }
}

bool simnet_is_up(const struct simnet *net, int client)
{
    return net->nodes[client == SIMNET_LISTENER ? SIMNET_CLIENTS_MAX : client].up;
}

void simnet_partition(struct simnet *net, int client, bool cut)
{
    assert(client >= 0 && client < net->n_clients);
    if (net->cut[client] == cut) return;
    net->cut[client] = cut;
    if (cut) return;
    bool stall = simnet_draw(net, 2);
    if (!stall) connection_close(net, client, simnet_draw(net, 2), false, false);
    for (int lane = 0; lane < LANES; lane++) {
        struct connection *c = &net->connections[client][lane];
        if (!c->open) continue;
        pipe_restart(net, &c->pipe[0], false, c->peer);
        pipe_restart(net, &c->pipe[1], true, c->peer);
    }
    connection_dial(net, client); /* connections that are open stay as they are */
}

int simnet_peer_client(const struct simnet *net, uint64_t peer)
{
    for (int i = 0; i < net->n_clients && peer; i++)
        if (net->connections[i][0].peer == peer || net->connections[i][1].peer == peer) return i;
    return -1;
}

struct simnet_counts simnet_counts(const struct simnet *net)
{
    return net->counts;
}
