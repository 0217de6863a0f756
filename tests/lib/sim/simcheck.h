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
 * The first breach is kept with the last events; simcheck_failure says so and the run stops. */
#ifndef TESTS_LIB_SIMCHECK_H
#define TESTS_LIB_SIMCHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/config/config.h"
#include "coordinator/engine/engine.h"
#include "coordinator/ledger/store.h"
#include "tests/lib/sim/simnet.h"
#include "tests/lib/rigs/toy.h"
#include "wire/msg.h"
#include "worker/outer/outer_loop.h"

struct simcheck;
struct simcheck_mark; /* what the checker knew of a worker when it saved its state */

enum status simcheck_create(struct simcheck **c_p, int n_clients, const struct config *config,
                            const struct toy *toy, struct err *err) MUST_CHECK;
void simcheck_destroy(struct simcheck *c);

/* A line among the last events. */
void simcheck_note(struct simcheck *c, uint64_t now_us, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* A breach; only the first one counts. */
void simcheck_fail(struct simcheck *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *simcheck_failure(const struct simcheck *c); /* NULL: none */
/* Print every event as it happens. */
void simcheck_trace(struct simcheck *c, bool on);
void simcheck_print(const struct simcheck *c, FILE *out);

struct simcheck_counts {
    uint64_t updates, merged, lost_versions, resumed, reloaded, rejected, evicted, left, faults, evals, checks;
    uint64_t relayed, encoded; /* updates */
    uint64_t own_bytes;        /* of relayed deltas, sent to the workers they came from */
};
struct simcheck_counts simcheck_counts(const struct simcheck *c);

/* ---- the network (from the tap of simnet) ------------------------------------------------------------------------ */

/* Scenarios look at messages too, and lose or double them: called first; its result is simcheck_message's. */
typedef int (*simcheck_script_fn)(void *ctx, enum simnet_moment moment, int client, bool to_client,
                                  const struct msg *m);
void simcheck_script(struct simcheck *c, simcheck_script_fn fn, void *ctx);
int simcheck_message(struct simcheck *c, uint64_t now_us, enum simnet_moment moment, int client, bool to_client,
                     const struct msg *m);

/* ---- the coordinator --------------------------------------------------------------------------------------------- */

void simcheck_store_appended(struct simcheck *c, const struct store_part *parts, size_t n);
void simcheck_store_synced(struct simcheck *c);
void simcheck_engine_started(struct simcheck *c, const struct engine *engine, uint64_t now_us);
void simcheck_engine(struct simcheck *c, const struct engine *engine, uint64_t now_us); /* after every event */
void simcheck_engine_stopped(struct simcheck *c, bool power); /* power: what was not synced may be gone */
void simcheck_event(struct simcheck *c, uint64_t now_us, const struct engine_event *event);
uint64_t simcheck_rounds_told(const struct simcheck *c); /* the last there was an event of */
void simcheck_finished(struct simcheck *c, const struct engine *engine);

/* ---- workers ----------------------------------------------------------------------------------------------------- */

void simcheck_worker_started(struct simcheck *c, int client);
struct simcheck_mark *simcheck_worker_saved(struct simcheck *c, int client);
void simcheck_worker_loaded(struct simcheck *c, int client, const struct simcheck_mark *mark);
void simcheck_mark_free(struct simcheck *c, struct simcheck_mark *mark);
/* All steps of `task` are done: from anchor to values, (n_params) each; ddp: values is the gradient. */
void simcheck_worker_trained(struct simcheck *c, int client, const struct msg_assign *task, const float *anchor,
                             const float *values);
void simcheck_worker_evaluates(struct simcheck *c, int client, const struct msg_eval *task, const float *theta);
/* After everything a worker does. */
void simcheck_worker(struct simcheck *c, int client, struct outer_loop *loop, enum outer_want want, uint64_t now_us);

#endif
