/* The engine: the coordinator without sockets, threads, files or a clock. Messages and times go in, messages and
 * journal records come out. The server (coordinator/server.c) and the simulated cluster (tests/sim) drive it.
 *
 * - Deterministic: the same configuration, store contents, entropy, messages and times give the same messages and the
 *   same bytes in the store.
 * - The engine appends a state change to the journal before it sends a message that shows the change.
 * - A status other than OK is final: the disk, the memory or the journal failed. The caller destroys the engine and
 *   stops. A new engine on the same store continues from the last record.
 * - One thread. */
#ifndef COORDINATOR_ENGINE_H
#define COORDINATOR_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "coordinator/admission/admission.h"
#include "coordinator/engine/state/engine_event.h"
#include "coordinator/engine/state/engine_io.h"
#include "coordinator/ledger/store.h"

struct engine;
struct delta_sum; /* coordinator/ledger/delta_read.h */
struct frozen;
struct layout;
struct record_model;

/* A worker in the operator's list. */
struct engine_worker {
    uint8_t key[WIRE_KEY];
    bool revoked;
    uint64_t readmitted_us; /* so long ago the operator readmitted it; UINT64_MAX: never */
};

struct engine_options {
    const struct config *config; /* resolved; copied */
    uint64_t entropy;            /* seed of run id and session ids: random in production */
    const char *init_dir;        /* Hugging Face folder with theta_0; NULL: layout_fill */
    const char *const *changes; /* [n_changes] "train.max_steps=900": values that the run takes from now on; borrowed */
    size_t n_changes;
    uint64_t rounds_reported; /* rounds already reported by an event; recovery reports the later ones */
    bool region;              /* the outer step is taken by another run: engine_on_upstream */
    uint64_t held_most;       /* bytes of deltas that stay in memory until they are merged; 0: all are spooled */
    uint64_t chunks_most;     /* bytes of encoded chunks that are kept for other workers; 0: as few as possible */
};

/* Starts a run, or continues the run in the store. INVALID: the run has other settings (the text names the keys), or a
 * change is not possible.
 * CORRUPT: the journal or a snapshot is damaged. The store is borrowed. */
enum status engine_create(struct engine **engine_p, const struct engine_options *options, struct store *store,
                          const struct engine_io *io, uint64_t now_us, struct err *err) MUST_CHECK;
/* Accepts NULL. Writes nothing: the journal is always complete. */
void engine_destroy(struct engine *engine);

enum status engine_on_message(struct engine *engine, uint64_t peer, enum wire_lane lane, const struct msg *m,
                              uint64_t now_us, struct err *err) MUST_CHECK;
/* Follows the list of workers: a revoked worker loses its session and its place; a
 * worker that was put aside and then readmitted gets work again. The caller calls it for each worker at
 * the start, and after each change of the list. */
enum status engine_on_worker_listed(struct engine *engine, const struct engine_worker *worker, uint64_t now_us,
                                    struct err *err) MUST_CHECK;
/* --- a region: a run that takes part in another one, upstream, as one worker -------------------------------------- */

/* What happened upstream. */
struct engine_upstream {
    enum engine_upstream_kind {
        /* An assignment: the round opens. One that is known already changes nothing. */
        UPSTREAM_GRANT,
        /* The next update of a fragment: journaled and published. An older one changes nothing. On return it is
         * durable: the caller may apply it to its own copy. */
        UPSTREAM_UPDATE,
        /* The caller has loaded parameters: if the run cannot reach them by updates, it takes them, drops all open
         * work, and lets its workers join again. */
        UPSTREAM_JUMP,
        UPSTREAM_EVAL, /* an evaluation at the present versions, with all parts wanted: engine_region_evaluated */
        UPSTREAM_DONE, /* the run upstream is over */
    } kind;
    const struct msg_assign *grant;
    const struct msg_eval *eval;
    const uint8_t *object; /* [size] the update as downloaded */
    size_t size;
    bool named;               /* upstream merged this region's delta of the round */
    bool taken;               /* it did, or the caller keeps the delta in its residual */
    const uint64_t *versions; /* [n_fragments] JUMP */
    const float *theta;       /* [n_params] JUMP: at these versions */
};

/* STATE: upstream is at older versions than this run. MISMATCH: an update gives other parameters. END: upstream is
 * done, and this run has no parameters yet. */
enum status engine_on_upstream(struct engine *engine, const struct engine_upstream *event, uint64_t now_us,
                               struct err *err) MUST_CHECK;
/* The run reaches these parameters by updates: no jump is needed, or it was taken. */
bool engine_region_knows(const struct engine *engine, const uint64_t *versions, const float *theta);
/* The model that the first worker has defined: valid as long as the engine. False: none yet. */
struct engine_region_model {
    const struct layout *layout;
    const struct frozen *frozen;
    const struct record_model *record;
    const char *config; /* text of config.json */
};
bool engine_region_model(const struct engine *engine, struct engine_region_model *out);
/* Workers for which the next assignment needs samples; 0: none is here. */
uint32_t engine_region_workers(const struct engine *engine);
/* The parameters are here: workers can train. */
bool engine_region_loaded(const struct engine *engine);
/* The deltas of this round are fixed, durably. */
bool engine_region_sealed(const struct engine *engine, uint64_t round);
/* The round whose deltas are fixed. False: none. */
bool engine_region_round(const struct engine *engine, uint64_t *round_p);
/* Merges them: values[n_params] as of one worker that trained with all their tokens. The same bits after any restart.
 */
enum status engine_region_values(struct engine *engine, float *values, struct delta_sum *sum,
                                 struct err *err) MUST_CHECK;
/* The answer to the last UPSTREAM_EVAL; without tokens: no worker could evaluate. False: not yet. */
bool engine_region_evaluated(const struct engine *engine, struct msg_eval_result *result);
/* What this region waits for upstream; "": nothing. For engine_waiting. */
void engine_region_waits(struct engine *engine, const char *text);

/* The worker whose uuid is the start of this key is connected, or has a place. */
bool engine_has_place(const struct engine *engine, const uint8_t key[WIRE_KEY]);
/* The caller calls it at engine_next_deadline_us; earlier calls are allowed. */
enum status engine_tick(struct engine *engine, uint64_t now_us, struct err *err) MUST_CHECK;
/* While engine_io.meanwhile runs work on another thread: sends HEARTBEAT_ACK to all workers, so that none takes the
 * coordinator for dead. It names no heartbeat (sent_us 0), because none was read. */
void engine_reassure(struct engine *engine);
/* The time of the next engine_tick, at most 1 s after the last message or tick. The engine takes longer pauses between
 * calls for times in which this process did not run. */
uint64_t engine_next_deadline_us(const struct engine *engine);
/* A worker has defined the model: from then on the folder holds a run. */
bool engine_modelled(const struct engine *engine);
/* The run is done, durably; some workers may not know it yet. */
bool engine_done(const struct engine *engine);
/* The run is done, and all workers have left or the wait for them is over. */
bool engine_finished(const struct engine *engine);
/* run.max_hours or run.max_gb is used up, and the open work has ended: the limit, and how to continue. The caller
 * stores with engine_stop, dismisses the workers and ends. NULL: the run goes on. */
const char *engine_spent(const struct engine *engine);
/* Tells the workers that they end, too: REFUSE_SPENT with this text. False: none is connected any more. */
bool engine_dismiss(struct engine *engine, const char *text);
/* The process stops in order: writes a checkpoint if a round has ended since the newest one. On return all journal
 * records survive a power cut. The caller then destroys the engine. */
enum status engine_stop(struct engine *engine, struct err *err) MUST_CHECK;

/* Status for `atoll status`, as of the last message or tick: JSON into out[cap], terminated. Returns the length; 0: out
 * is too small. */
size_t engine_status_json(const struct engine *engine, char *out, size_t cap);
/* Writes what the run waits for; "": nothing. Returns out. */
const char *engine_waiting(const struct engine *engine, char *out, size_t cap);

void engine_summary(const struct engine *engine, struct engine_summary *out);

const uint8_t *engine_run_id(const struct engine *engine); /* [WIRE_UUID] */
/* The settings of the run now. */
const struct config *engine_config(const struct engine *engine);

#endif
