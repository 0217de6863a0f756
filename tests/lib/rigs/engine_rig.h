/* The engine driven by hand: a store in memory, a caught outbox, and workers that say exactly what a test makes them
 * say. Failures of the engine itself end the test. */
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

enum { RIG_WORKERS = 4, RIG_OUTBOX = 2048, RIG_PARAMS = 96, RIG_STEP = 1000 };

struct rig_mail {
    bool taken;
    uint64_t peer;
    struct msg *m; /* the rig's, and so is what it points to */
};

struct rig_worker {
    uint8_t uuid[WIRE_UUID];
    char name[WIRE_NAME_MAX];
    uint64_t control, bulk, session;
    uint32_t id;
    bool resume;
    uint64_t versions[LAYOUT_FRAGMENTS_MAX]; /* what its heartbeats say */
    struct msg_assign task;                  /* last ASSIGN taken */
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
    bool at_work[2]; /* rig_play: it has a delta that is not merged */
    struct rig_mail out[RIG_OUTBOX];
    size_t n_out;
    double loss_sum;         /* of the deltas it delivers */
    enum status bulk_answer; /* what the transport says to chunks */
    uint64_t records_max;    /* recovery is told to stop (INTERRUPTED) before it reads one more; UINT64_MAX: never */
    int bulk_refused;        /* chunks it said that to */
    struct engine_event events[RIG_OUTBOX];
    char event_text[RIG_OUTBOX][256];
    size_t n_events;
    uint64_t rounds_reported;
    uint64_t socket; /* bytes up, and down, since this process began */
    size_t live;     /* mem_live_bytes that rig_close expects */
    /* The engine failed, or refused a worker: does not return. NULL: the test fails. */
    void (*failed)(const struct err *err);
};

/* settings: "section.key=value", NULL-terminated. Defaults: diloco, 2 fragments, fp32, H 2, 3 rounds, no evaluation. */
void rig_open(struct rig *r, const char *const *settings);
void rig_close(struct rig *r);
/* The same on a store that the caller has and closes, without asserting that the engine comes up; rig_close_on follows
 * either way. */
enum status rig_open_on(struct rig *r, const char *const *settings, struct store *store, struct err *err);
void rig_close_on(struct rig *r);
/* A new engine on the same store; workers have to join again. power: unsynced bytes are lost by `draw`. */
void rig_restart(struct rig *r, bool power, uint64_t draw);
/* Make an engine without asserting that it comes up. */
enum status rig_start(struct rig *r, struct err *err);

void rig_say(struct rig *r, uint64_t peer, const struct msg *m);
void rig_wait(struct rig *r, uint64_t us); /* time passes, ticks included */
/* The oldest message of this type to this worker that was not taken yet; false: none. */
bool rig_take(struct rig *r, int worker, enum msg_type type, struct msg *m);
void rig_expect(struct rig *r, int worker, enum msg_type type, struct msg *m);
void rig_expect_none(struct rig *r, int worker, enum msg_type type);
void rig_forget(struct rig *r); /* empties the outbox */
int rig_events(const struct rig *r, enum engine_event_kind kind);

void rig_hello(struct rig *r, int worker);
/* JOIN as it stands (versions held, or nothing), without asserting the answer. */
void rig_join_message(struct rig *r, int worker, bool holds, struct msg *m);
/* HELLO, JOIN, BIND, READY heartbeat; fails the test when refused. */
void rig_join(struct rig *r, int worker);
void rig_beat(struct rig *r, int worker, enum worker_state state);
/* Take the ASSIGN that must be there, the newest of several. */
void rig_assigned(struct rig *r, int worker);
/* The delta of one fragment of its task: OFFER and, when credit comes, all chunks. Returns what came back last: CREDIT
 * or REJECT. `level`: its values depend on it. */
struct msg rig_deliver(struct rig *r, int worker, uint32_t fragment, float level);
void rig_offer_message(struct rig *r, int worker, uint32_t fragment, float level, struct msg *m);
/* The values of a delta: theta-wide, however it is cut into fragments. */
void rig_values(const struct rig *r, uint32_t fragment, float level, float *out);
/* Deliver everything; the workers' versions become current and they beat READY. */
void rig_deliver_all(struct rig *r, int n_workers, float level);
void rig_catch_up(struct rig *r, int worker);
/* Workers 0 and 1, which joined, play a run of two fragments to its end, whatever was done of it before; `each` (may be
 * NULL) after every step. */
void rig_play(struct rig *r, void (*each)(void));
/* Ask for an object and put the chunks together; returns its size, 0 when nothing came. */
size_t rig_get(struct rig *r, int worker, uint8_t kind, uint32_t fragment, uint64_t version, uint8_t *out, size_t cap);
uint64_t rig_theta_hash(const struct rig *r);

#endif
