/* A network and a clock in virtual time, for whole clusters in one thread.
 *
 * There is one queue of events (tests/lib/sim/simevents.h); simnet_step runs the earliest. The network is a
 * star: one listener and up to SIMNET_CLIENTS_MAX diallers, each a struct transport (wire/transport.h) whose recv never
 * waits. Every dialler has two connections, one per lane, and a link of its own with latency, jitter, rate, loss,
 * duplication and a bounded queue. A link can be cut (partition), a node can be killed and revived: what a killed node
 * queued or had not read is gone, and peer ids end with their connection.
 *
 * All randomness comes from one seed; the same calls give the same run, event for event. */
#ifndef TESTS_LIB_SIMNET_H
#define TESTS_LIB_SIMNET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "tests/lib/sim/simevents.h"
#include "wire/msg.h"
#include "wire/transport.h"

enum { SIMNET_CLIENTS_MAX = 16, SIMNET_LISTENER = -1 };

/* One dialler's link, the same in both directions and on both lanes. May be changed at any time. */
struct simnet_link {
    uint64_t latency_us, jitter_us; /* one way; jitter is uniform in [0, jitter_us) */
    uint64_t rate;                  /* bytes/s of each lane and direction; 0 = unlimited */
    double loss, duplicate;         /* probability per message */
    uint64_t queue_us;              /* send answers AGAIN when the lane's backlog would take longer; 0 = unlimited */
    double same_peer;               /* probability that a reconnect keeps its peer id at the listener */
};

struct simnet;

/* Called when node `client` (or SIMNET_LISTENER) has something to recv and may run. */
typedef void (*simnet_ready_fn)(void *ctx, int client);
enum simnet_moment { SIMNET_SENT, SIMNET_ARRIVED };
/* Sees each message when it is sent (returns how many copies travel: 0 loses it, 1 is usual, 2 duplicates it) and when
 * it arrives (the result is ignored). */
typedef int (*simnet_tap_fn)(void *ctx, enum simnet_moment moment, int client, bool to_client, const struct msg *m);

enum status simnet_create(struct simnet **net_p, uint64_t seed, int n_clients) MUST_CHECK;
void simnet_destroy(struct simnet *net);
void simnet_hooks(struct simnet *net, simnet_ready_fn ready, simnet_tap_fn tap, void *ctx);

uint64_t simnet_now(const struct simnet *net);
/* Run fn(ctx, arg) at `at_us` (not before now). Events of one time run in the order they were asked for. */
void simnet_at(struct simnet *net, uint64_t at_us, simevents_fn fn, void *ctx, uint64_t arg);
/* Run the next event; false when there is none before `until_us` (the clock then stands at until_us). */
bool simnet_step(struct simnet *net, uint64_t until_us);

/* Draws from the run's seed: each call gives the next number. */
uint64_t simnet_draw(struct simnet *net, uint64_t below);
double simnet_chance(struct simnet *net);

struct simnet_link *simnet_link(struct simnet *net, int client);
/* Bring nodes up (all are down at first) and kill them. Returned transports stay valid as long as the net lives; on a
 * node that is down send answers CLOSED and recv AGAIN. */
struct transport *simnet_up(struct simnet *net, int client);
void simnet_kill(struct simnet *net, int client);
bool simnet_is_up(const struct simnet *net, int client);
/* Cut a link. Healing lets what was under way through (a stall) or drops it and connects anew (a reset). */
void simnet_partition(struct simnet *net, int client, bool cut);
/* Which dialler a listener's peer id belongs to; -1 when unknown. */
int simnet_peer_client(const struct simnet *net, uint64_t peer);

struct simnet_counts {
    uint64_t sent, delivered, lost, duplicated, refused; /* messages; refused: send answered AGAIN */
};
struct simnet_counts simnet_counts(const struct simnet *net);

#endif
