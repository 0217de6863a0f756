/* A network and a clock in virtual time, for whole clusters in one thread.
 *
 * One queue of events (tests/lib/sim/event_queue.h) drives the network; sim_net_step runs the earliest event.
 * The network is a star: one listener and up to SIM_NET_CLIENTS_MAX diallers.
 * - Each node is a struct transport (wire/transport.h) whose recv never waits.
 * - Every dialler has two connections, one per lane, and its own link with latency, jitter, rate, loss, duplication
 *   and a bounded queue.
 * - A link can be cut (partition); a node can be killed and revived.
 * - A killed node loses its queued and unread messages. A peer id ends with its connection.
 *
 * All randomness comes from one seed; the same calls give the same run, event for event. */
#ifndef TESTS_LIB_SIM_NET_H
#define TESTS_LIB_SIM_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "tests/lib/sim/event_queue.h"
#include "wire/msg.h"
#include "wire/transport.h"

enum { SIM_NET_CLIENTS_MAX = 16, SIM_NET_LISTENER = -1 };

/* One dialler's link, the same in both directions and on both lanes. May change at any time. */
struct sim_net_link {
    uint64_t latency_us, jitter_us; /* one way; jitter is uniform in [0, jitter_us) */
    uint64_t rate;                  /* bytes/s of each lane and direction; 0 = unlimited */
    double loss, duplicate;         /* probability per message */
    uint64_t queue_us;              /* send returns AGAIN if the lane's backlog would take longer; 0 = unlimited */
    double same_peer;               /* probability that a reconnect keeps its peer id at the listener */
};

struct sim_net;

/* Called when node `client` (or SIM_NET_LISTENER) has a message to receive. */
typedef void (*sim_net_ready_fn)(void *ctx, int client);
enum sim_net_moment { SIM_NET_SENT, SIM_NET_ARRIVED };
/* Called when a message is sent and when it arrives. On send, returns the number of copies: 0 loses the message, 2
 * duplicates it. On arrival, the result is ignored. */
typedef int (*sim_net_tap_fn)(void *ctx, enum sim_net_moment moment, int client, bool to_client, const struct msg *m);

enum status sim_net_create(struct sim_net **net_p, uint64_t seed, int n_clients) MUST_CHECK;
/* Use the clock and the queue of events of another network, which outlives this one. Before any other call. */
void sim_net_share_clock(struct sim_net *net, struct sim_net *other);
void sim_net_destroy(struct sim_net *net);
void sim_net_hooks(struct sim_net *net, sim_net_ready_fn ready, sim_net_tap_fn tap, void *ctx);

uint64_t sim_net_now(const struct sim_net *net);
/* Run fn(ctx, arg) at `at_us`, or now if that has passed. Events of equal time run in the order of their scheduling. */
void sim_net_at(struct sim_net *net, uint64_t at_us, event_fn fn, void *ctx, uint64_t arg);
/* Run the next event. False if there is none until `until_us`; the clock then stands at until_us. */
bool sim_net_step(struct sim_net *net, uint64_t until_us);

/* Draw from the run's seed: each call returns the next number. */
uint64_t sim_net_draw(struct sim_net *net, uint64_t below);

struct sim_net_link *sim_net_link(struct sim_net *net, int client);
/* Start a node (all are down at first); sim_net_kill ends it. The transport stays valid as long as the network. On a
 * node that is down, send returns CLOSED and recv AGAIN. */
struct transport *sim_net_up(struct sim_net *net, int client);
void sim_net_kill(struct sim_net *net, int client);
/* Cut or heal a link. Healing delivers the packets in transit (a stall), or drops them and connects again (a reset). */
void sim_net_partition(struct sim_net *net, int client, bool cut);
/* Return the dialler of a listener's peer id; -1 if unknown. */
int sim_net_peer_client(const struct sim_net *net, uint64_t peer);

struct sim_net_counts {
    uint64_t sent, delivered, lost, duplicated, refused; /* messages; refused: send returned AGAIN */
};
struct sim_net_counts sim_net_counts(const struct sim_net *net);

#endif
