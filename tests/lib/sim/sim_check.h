/* Watches a simulated run and holds it to what must stay true (design.md, section 6), with books of its own: it sees
 * the messages on the wire, the bytes appended to the journal, and what workers train, and recomputes everything else.
 *
 *  - each delta is merged exactly once, only if it was sent, with the bytes that follow from what was trained:
 *    sent + new residual = delta + old residual; merge order is worker id; the value of every update is recomputed
 *  - a version that anybody saw stays in the log with the same bytes whatever crashes; nothing is seen before it is
 *    durable
 *  - every copy of theta (coordinator, workers, snapshots) at a version has the hash the log says; all are finite
 *  - a delta is taken in for the assignment that it was trained for
 *  - sample positions are merged at most once, and the coordinator's lease book adds up
 *  - a relayed update goes to a worker without the delta that it delivered in this session, unless it asks for those
 *    bytes, and whole otherwise
 *  - each round is told of exactly once, whatever is killed
 *  - nobody waits without saying what for
 *
 * The first breach is kept with the last events; sim_check_failure says so and the run stops. */
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
struct sim_check_mark; /* what the checker knew of a worker when it saved its state */

enum status sim_check_create(struct sim_check **c_p, int n_clients, const struct config *config, const struct toy *toy,
                             struct err *err) MUST_CHECK;
void sim_check_destroy(struct sim_check *c);

/* A line among the last events. */
void sim_check_note(struct sim_check *c, uint64_t now_us, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* A breach; only the first one counts. */
void sim_check_fail(struct sim_check *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *sim_check_failure(const struct sim_check *c); /* NULL: none */
/* Print every event as it happens. */
void sim_check_trace(struct sim_check *c, bool on);
void sim_check_print(const struct sim_check *c, FILE *out);

struct sim_check_counts {
    uint64_t updates, merged, lost_versions, resumed, reloaded, rejected, evicted, left, faults, evals, checks;
    uint64_t relayed, encoded; /* updates */
    uint64_t own_bytes;        /* of relayed deltas, sent to the workers they came from */
};
struct sim_check_counts sim_check_counts(const struct sim_check *c);

/* ---- the network (from the tap of sim_net) ------------------------------------------------------------------------
 */

/* Scenarios look at messages too, and lose or double them: called first; its result is sim_check_message's. */
typedef int (*sim_check_script_fn)(void *ctx, enum sim_net_moment moment, int client, bool to_client,
                                   const struct msg *m);
void sim_check_script(struct sim_check *c, sim_check_script_fn fn, void *ctx);
int sim_check_message(struct sim_check *c, uint64_t now_us, enum sim_net_moment moment, int client, bool to_client,
                      const struct msg *m);

/* ---- the coordinator --------------------------------------------------------------------------------------------- */

void sim_check_store_appended(struct sim_check *c, const struct store_part *parts, size_t n);
void sim_check_store_synced(struct sim_check *c);
void sim_check_engine_started(struct sim_check *c, const struct engine *engine, uint64_t now_us);
void sim_check_engine(struct sim_check *c, const struct engine *engine, uint64_t now_us); /* after every event */
void sim_check_engine_stopped(struct sim_check *c, bool power); /* power: what was not synced may be gone */
void sim_check_event(struct sim_check *c, uint64_t now_us, const struct engine_event *event);
uint64_t sim_check_rounds_told(const struct sim_check *c); /* the last there was an event of */
void sim_check_finished(struct sim_check *c, const struct engine *engine);

/* ---- workers ----------------------------------------------------------------------------------------------------- */

void sim_check_worker_started(struct sim_check *c, int client);
struct sim_check_mark *sim_check_worker_saved(struct sim_check *c, int client);
void sim_check_worker_loaded(struct sim_check *c, int client, const struct sim_check_mark *mark);
void sim_check_mark_free(struct sim_check *c, struct sim_check_mark *mark);
/* All steps of `task` are done: from anchor to values, (n_params) each; ddp: values is the gradient. */
void sim_check_worker_trained(struct sim_check *c, int client, const struct msg_assign *task, const float *anchor,
                              const float *values);
void sim_check_worker_evaluates(struct sim_check *c, int client, const struct msg_eval *task, const float *theta);
/* After everything a worker does. */
void sim_check_worker(struct sim_check *c, int client, struct outer_loop *loop, enum outer_want want, uint64_t now_us);

#endif
