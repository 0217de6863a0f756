/* A network and a clock in virtual time, for whole clusters in one thread.
 *
 * There is one queue of events (tests/lib/sim/sim_events.h); sim_net_step runs the earliest. The network is a
 * star: one listener and up to SIM_NET_CLIENTS_MAX diallers, each a struct transport (wire/transport.h) whose recv
 * never waits. Every dialler has two connections, one per lane, and a link of its own with latency, jitter, rate, loss,
 * duplication and a bounded queue. A link can be cut (partition), a node can be killed and revived: what a killed node
 * queued or had not read is gone, and peer ids end with their connection.
 *
 * All randomness comes from one seed; the same calls give the same run, event for event. */
#ifndef TESTS_LIB_SIM_NET_H
#define TESTS_LIB_SIM_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "tests/lib/sim/sim_events.h"
#include "wire/msg.h"
#include "wire/transport.h"

enum { SIM_NET_CLIENTS_MAX = 16, SIM_NET_LISTENER = -1 };

/* One dialler's link, the same in both directions and on both lanes. May be changed at any time. */
struct sim_net_link {
    uint64_t latency_us, jitter_us; /* one way; jitter is uniform in [0, jitter_us) */
    uint64_t rate;                  /* bytes/s of each lane and direction; 0 = unlimited */
    double loss, duplicate;         /* probability per message */
    uint64_t queue_us;              /* send answers AGAIN when the lane's backlog would take longer; 0 = unlimited */
    double same_peer;               /* probability that a reconnect keeps its peer id at the listener */
};

struct sim_net;

/* Called when node `client` (or SIM_NET_LISTENER) has something to recv and may run. */
typedef void (*sim_net_ready_fn)(void *ctx, int client);
enum sim_net_moment { SIM_NET_SENT, SIM_NET_ARRIVED };
/* Sees each message when it is sent (returns how many copies travel: 0 loses it, 1 is usual, 2 duplicates it) and when
 * it arrives (the result is ignored). */
typedef int (*sim_net_tap_fn)(void *ctx, enum sim_net_moment moment, int client, bool to_client, const struct msg *m);

enum status sim_net_create(struct sim_net **net_p, uint64_t seed, int n_clients) MUST_CHECK;
void sim_net_destroy(struct sim_net *net);
void sim_net_hooks(struct sim_net *net, sim_net_ready_fn ready, sim_net_tap_fn tap, void *ctx);

uint64_t sim_net_now(const struct sim_net *net);
/* Run fn(ctx, arg) at `at_us` (not before now). Events of one time run in the order they were asked for. */
void sim_net_at(struct sim_net *net, uint64_t at_us, sim_events_fn fn, void *ctx, uint64_t arg);
/* Run the next event; false when there is none before `until_us` (the clock then stands at until_us). */
bool sim_net_step(struct sim_net *net, uint64_t until_us);

/* Draws from the run's seed: each call gives the next number. */
uint64_t sim_net_draw(struct sim_net *net, uint64_t below);
double sim_net_chance(struct sim_net *net);

struct sim_net_link *sim_net_link(struct sim_net *net, int client);
/* Bring nodes up (all are down at first) and kill them. Returned transports stay valid as long as the net lives; on a
 * node that is down send answers CLOSED and recv AGAIN. */
struct transport *sim_net_up(struct sim_net *net, int client);
void sim_net_kill(struct sim_net *net, int client);
bool sim_net_is_up(const struct sim_net *net, int client);
/* Cut a link. Healing lets what was under way through (a stall) or drops it and connects anew (a reset). */
void sim_net_partition(struct sim_net *net, int client, bool cut);
/* Which dialler a listener's peer id belongs to; -1 when unknown. */
int sim_net_peer_client(const struct sim_net *net, uint64_t peer);

struct sim_net_counts {
    uint64_t sent, delivered, lost, duplicated, refused; /* messages; refused: send answered AGAIN */
};
struct sim_net_counts sim_net_counts(const struct sim_net *net);

#endif
