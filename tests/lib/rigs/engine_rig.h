/* Drives the engine by hand: a store in memory, an outbox that keeps sent messages, and workers that send the
 * messages of a test. An error of the engine fails the test. */
#ifndef TESTS_LIB_ENGINE_RIG_H
#define TESTS_LIB_ENGINE_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/config/config.h"
#include "common/tensor/layout.h"
#include "coordinator/engine/engine.h"
#include "tests/lib/rigs/engine_view.h"
#include "wire/msg.h"

/* The engine's io for keys. NULL: no keys are checked. A test sets it before rig_open and clears it at its end. */
struct rig_access {
    bool (*peer)(void *ctx, uint64_t peer, struct engine_peer *out);
    enum status (*enrol)(void *ctx, const uint8_t key[WIRE_KEY], const char *name, struct err *err);
    void (*drop)(void *ctx, uint64_t peer);
    bool (*path)(void *ctx, uint64_t peer, struct transport_path *out);
};
/* The engine's io for long work; ctx: the rig. The same. */
extern void (*rig_meanwhile)(void *ctx, uint64_t bytes, void (*work)(void *arg), void *arg);
extern const struct rig_access *rig_access;
extern uint64_t rig_held_most; /* engine_options.held_most of the next start; at first 0 */
/* Deltas that travel as parameters: those that theta minus rig_values gives, instead of rig_values itself. A test sets
 * it and clears it at its end. */
extern bool rig_moves_theta;

/* Or-ed to the flags of all tensors (enum layout_flags). A test sets it before rig_open and clears it at its end. */
extern uint32_t rig_layout_flags;

/* Validation samples of the workers, 10, and the entropy of the first engine. A test sets them before rig_open. */
extern uint64_t rig_val_samples, rig_entropy;

enum { RIG_WORKERS = 4, RIG_OUTBOX = 2048, RIG_PARAMS = 96, RIG_STEP = 1000 };

struct rig_mail {
    bool received;
    uint64_t peer;
    struct msg *m; /* the rig owns it and everything it points to */
};

struct rig_worker {
    uint8_t uuid[WIRE_UUID];
    char name[WIRE_NAME_MAX];
    uint64_t control, bulk, session;
    uint32_t id;
    bool resume;
    bool blind;                              /* it has no validation data */
    uint64_t versions[LAYOUT_FRAGMENTS_MAX]; /* reported by its heartbeats */
    uint64_t rate;                           /* of its downloads, the same; 0: not measured */
    uint32_t workers;                        /* behind it, the same; 0: itself */
    struct msg_assign task;                  /* the last ASSIGN received */
};

struct rig {
    struct config config;
    struct store *store;
    struct engine *engine;
    struct layout layout;
    uint8_t layout_bytes[2048];
    size_t layout_size;
    uint64_t now, entropy, next_peer;
    struct rig_worker workers[RIG_WORKERS];
    bool at_work[2]; /* rig_play: the worker holds a delta that is not merged */
    struct rig_mail out[RIG_OUTBOX];
    size_t n_out;
    double loss_sum;         /* of the delivered deltas */
    uint64_t compute_us;     /* of the delivered deltas */
    enum status bulk_answer; /* the transport's status for chunks */
    uint64_t records_max;    /* recovery is interrupted (INTERRUPTED) after that many records; UINT64_MAX: never */
    uint64_t closed_peer;    /* sends to this peer fail with CLOSED; UINT64_MAX: none */
    int bulk_refused;        /* number of chunks that got that status */
    struct engine_event events[RIG_OUTBOX];
    char event_text[RIG_OUTBOX][256];
    size_t n_events;
    uint64_t rounds_reported;
    const char *const *changes; /* [n_changes] of the next start */
    size_t n_changes;
    uint64_t socket, others; /* bytes up and down since the process started: the run's, and others (down: twice) */
    size_t live;             /* the mem_live_bytes that rig_close expects */
    /* Called if the engine fails or refuses a worker; must not return. NULL: the test fails. */
    void (*failed)(const struct err *err);
};

/* settings: "section.key=value", NULL-terminated. Defaults: diloco, 2 fragments, fp32, H 2, 3 rounds, no evaluation. */
void rig_open(struct rig *r, const char *const *settings);
void rig_close(struct rig *r);
/* The same on a store that the caller owns and closes; returns the engine's status. The caller calls rig_close_on in
 * either case. */
enum status rig_open_on(struct rig *r, const char *const *settings, struct store *store, struct err *err);
void rig_close_on(struct rig *r);
/* Start a new engine on the same store; workers must join again. power: unsynced bytes are lost by `draw`. */
void rig_restart(struct rig *r, bool power, uint64_t draw);
/* Create an engine and return its status. */
enum status rig_start(struct rig *r, struct err *err);
void rig_stop(struct rig *r);
/* rig_start must fail with a line that contains `words`. */
void rig_start_fails(struct rig *r, enum status status, const char *words);

void rig_say(struct rig *r, uint64_t peer, const struct msg *m);
void rig_wait(struct rig *r, uint64_t us); /* let time pass, ticks included */
/* Take the oldest message of this type to this worker; false if there is none. */
bool rig_take(struct rig *r, int worker, enum msg_type type, struct msg *m);
void rig_expect(struct rig *r, int worker, enum msg_type type, struct msg *m);
void rig_expect_none(struct rig *r, int worker, enum msg_type type);
void rig_forget(struct rig *r); /* empties the outbox */
int rig_events(const struct rig *r, enum engine_event_kind kind);
/* The newest event of this kind, and its text (or NULL); fails the test if there is none. */
const struct engine_event *rig_last(const struct rig *r, enum engine_event_kind kind, const char **text);
/* A FAULT contains both texts. */
bool rig_faults(const struct rig *r, const char *a, const char *b);
/* Takes a REFUSE to this worker; its text, one line, contains `words`. */
void rig_refused(struct rig *r, int worker, uint16_t code, const char *words);
/* For rig_access.peer: whether `peer` is a connection of a worker. Its key begins with its uuid. */
bool rig_find_worker(const struct rig *r, uint64_t peer, struct engine_peer *out);
/* What the run waits for, and its status. */
const char *rig_waiting(const struct rig *r);
const char *rig_status(const struct rig *r);

void rig_hello(struct rig *r, int worker);
/* Send JOIN with the held versions, or none; asserts no answer. */
void rig_join_message(struct rig *r, int worker, bool holds, struct msg *m);
/* HELLO, its answer, JOIN; the answer of JOIN is left in the queue. */
void rig_say_join(struct rig *r, int worker);
/* HELLO, JOIN, BIND, READY heartbeat; fails the test if the worker is refused. */
void rig_join(struct rig *r, int worker);
/* Open a run, which workers 0 to n - 1 join; with `assigned`, each takes its first task. */
void rig_open_with(struct rig *r, const char *const *settings, int n_workers, bool assigned);
void rig_leave(struct rig *r, int worker);
void rig_beat(struct rig *r, int worker, enum worker_state state);
/* Take the newest ASSIGN; fails the test if there is none. */
void rig_assigned(struct rig *r, int worker);
/* Deliver one fragment's delta of the task: OFFER and, after credit, all chunks. Returns the last answer: CREDIT or
 * REJECT. `level` sets its values. */
struct msg rig_deliver(struct rig *r, int worker, uint32_t fragment, float level);
void rig_offer_message(struct rig *r, int worker, uint32_t fragment, float level, struct msg *m);
/* Return the values of a delta, a function of the position in theta and independent of the fragments. */
void rig_values(const struct rig *r, uint32_t fragment, float level, float *out);
/* Deliver all deltas; the workers' versions become current and they send READY. */
void rig_deliver_all(struct rig *r, int n_workers, float level);
void rig_catch_up(struct rig *r, int worker);
/* Let workers 0 and 1, which joined, play a run of two fragments to its end, from any state. Calls `each` (may be
 * NULL) after every step. */
void rig_play(struct rig *r, void (*each)(void));
/* Request an object and join its chunks; returns its size, 0 without an answer. */
size_t rig_get(struct rig *r, int worker, uint8_t kind, uint32_t fragment, uint64_t version, uint8_t *out, size_t cap);
/* The worker's result of this EVAL, with the same loss for every token. */
void rig_eval_result(const struct rig *r, int worker, const struct msg *eval, double per_token, struct msg *m);
/* Answers all EVALs of these workers, until the engine sends no more. */
void rig_answer_evals(struct rig *r, int n_workers, double per_token);
uint64_t rig_theta_hash(const struct rig *r);

#endif
