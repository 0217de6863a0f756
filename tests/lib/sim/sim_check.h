/* The checker of a simulated run: holds it to the invariants of design.md, section 6.
 *
 * The checker keeps its own state. It sees the messages on the wire, the bytes appended to the journal and the
 * training of the workers, and recomputes everything else.
 *
 * - Each delta is merged exactly once, only if it was sent, with the bytes that follow from the training: sent + new
 *   residual = delta + old residual. Merge order is worker id. The value of every update is recomputed.
 * - A version that any worker saw stays in the log with the same bytes after any crash. No worker sees a version
 *   before it is durable.
 * - Every copy of theta (coordinator, workers, snapshots) at a version has the hash of the log. All values are
 *   finite.
 * - A delta is accepted for the assignment that it was trained for.
 * - Sample positions are merged at most once, and the coordinator's leases are consistent. async does its budget of
 *   inner steps, neither more nor less, whatever coordinator.min_workers a restart has.
 * - An update merges all delivered deltas of its fragment. outer.grace auto gives no work to a worker that lacks two
 *   updates.
 * - Bytes in flight stay below the credit and the windows; the coordinator sends no byte that was not requested.
 * - Requests without an answer are repeated, each time after a longer wait.
 * - No worker is evicted whose heartbeats arrive. During long work the coordinator does nothing else.
 * - A relayed update reaches a worker without the delta that the worker delivered in this session, unless the worker
 *   requests those bytes. Otherwise the update is whole.
 * - Each round is reported exactly once, after any kill.
 * - A process that waits names what it waits for.
 *
 * The checker keeps the first failure and the last events; sim_check_failure returns it and the run stops. */
#ifndef TESTS_LIB_SIM_CHECK_H
#define TESTS_LIB_SIM_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/config/config.h"
#include "coordinator/engine/engine.h"
#include "coordinator/ledger/store.h"
#include "tests/lib/rigs/engine_view.h"
#include "tests/lib/rigs/toy.h"
#include "tests/lib/sim/sim_net.h"
#include "wire/msg.h"
#include "worker/outer/outer_loop.h"

struct sim_check;
struct sim_check_mark; /* the checker's knowledge of a worker at the time it saved its state */

enum status sim_check_create(struct sim_check **c_p, int n_clients, const struct config *config, const struct toy *toy,
                             struct err *err) MUST_CHECK;
void sim_check_destroy(struct sim_check *c);

/* A region: its updates are those of another run, in which it is client `client`, with the same payloads. It names its
 * deltas if, and only if, upstream merged them or the client still holds them. */
void sim_check_follow(struct sim_check *c, struct sim_check *upstream, int client);
/* Client `client` is a region: its next delta has so many tokens, at most those of its assignment. */
void sim_check_region_tokens(struct sim_check *c, int client, uint64_t tokens);

/* Add a line to the last events. */
void sim_check_note(struct sim_check *c, uint64_t now_us, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The coordinator did long work from begin_us to now_us, in which it cannot make progress. */
void sim_check_worked(struct sim_check *c, uint64_t begin_us, uint64_t now_us);
/* Record a failure; only the first one counts. */
void sim_check_fail(struct sim_check *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *sim_check_failure(const struct sim_check *c); /* NULL if there is none */
/* Print every event as it happens. */
void sim_check_trace(struct sim_check *c, bool on);
void sim_check_print(const struct sim_check *c, FILE *out);

struct sim_check_counts {
    uint64_t updates, merged, lost_versions, resumed, reloaded, returned, rejected, evicted, left, faults, evals,
        checks;
    uint64_t relayed, encoded; /* updates */
    uint64_t own_bytes;        /* bytes of relayed deltas sent to the workers that made them */
    uint64_t most_flying;      /* bytes that a worker requested at once */
    uint64_t repeats;          /* requests sent again without an answer */
};
struct sim_check_counts sim_check_counts(const struct sim_check *c);

/* ---- the network (from the tap of sim_net) ------------------------------------------------------------------------
 */

/* Scenarios see messages too, and lose or duplicate them. The checker calls the script first and returns its result
 * from sim_check_message. */
typedef int (*sim_check_script_fn)(void *ctx, enum sim_net_moment moment, int client, bool to_client,
                                   const struct msg *m);
void sim_check_script(struct sim_check *c, sim_check_script_fn fn, void *ctx);
int sim_check_message(struct sim_check *c, uint64_t now_us, enum sim_net_moment moment, int client, bool to_client,
                      const struct msg *m);

/* ---- the coordinator --------------------------------------------------------------------------------------------- */

void sim_check_clock(struct sim_check *c, uint64_t now_us); /* before every call of the engine */
void sim_check_store_appended(struct sim_check *c, const struct store_part *parts, size_t n);
void sim_check_store_synced(struct sim_check *c);
void sim_check_engine_started(struct sim_check *c, const struct engine *engine, uint64_t now_us);
void sim_check_engine(struct sim_check *c, const struct engine *engine, uint64_t now_us); /* after every event */
void sim_check_engine_stopped(struct sim_check *c, bool power); /* power: unsynced bytes may be lost */
void sim_check_event(struct sim_check *c, uint64_t now_us, const struct engine_event *event);
uint64_t sim_check_rounds_reported(const struct sim_check *c); /* the last round that was reported */
void sim_check_finished(struct sim_check *c, const struct engine *engine);

/* The coordinator starts with this coordinator.min_workers. */
void sim_check_workers_of_budget(struct sim_check *c, uint32_t workers);

/* ---- workers ----------------------------------------------------------------------------------------------------- */

void sim_check_worker_started(struct sim_check *c, int client);
struct sim_check_mark *sim_check_worker_saved(struct sim_check *c, int client);
void sim_check_worker_loaded(struct sim_check *c, int client, const struct sim_check_mark *mark);
void sim_check_mark_free(struct sim_check *c, struct sim_check_mark *mark);
/* `step` steps of the round's assignment are done. The fragments whose sync point this is are sent: anchor [n_params]
 * holds their base, values [n_params] the trained parameters; with ddp, values is the gradient. */
void sim_check_worker_trained(struct sim_check *c, int client, const struct msg_assign *task, uint32_t step,
                              const float *anchor, const float *values);
/* The trained values are not finite, and the worker's program has added them to the residuals: both are lost. */
void sim_check_worker_dropped(struct sim_check *c, int client);
/* The worker's windows, before each message that it sends. unsaved: a save holds back the last byte of each delta. */
void sim_check_windows(struct sim_check *c, int client, uint64_t down, uint64_t up, bool unsaved);
void sim_check_worker_evaluates(struct sim_check *c, int client, const struct msg_eval *task, const float *theta);
/* Call it after every action of a worker. */
void sim_check_worker(struct sim_check *c, int client, struct outer_loop *loop, enum outer_want want, uint64_t now_us);

#endif
