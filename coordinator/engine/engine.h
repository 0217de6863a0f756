/* The coordinator without sockets, threads, files or a clock: messages and times in, messages and journal records out.
 * The server (coordinator/server.c) and the simulated cluster (tests/sim) drive the same engine.
 *
 * Deterministic: the same configuration, store contents, entropy, messages and times give the same messages and the
 * same bytes in the store. A state change is appended to the journal before anything that shows it is sent.
 *
 * Every function that returns a status other than OK is final: the disk, memory or the journal failed. The caller
 * destroys the engine and stops; a new engine on the same store goes on from the last record. */
#ifndef COORDINATOR_ENGINE_H
#define COORDINATOR_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "coordinator/engine/engine_event.h"
#include "coordinator/ledger/store.h"
#include "wire/msg.h"

struct engine;

struct engine_io {
    void *ctx;
    /* Send one message to a peer. AGAIN: the lane is full (chunks are tried again, control messages are dropped: the
     * other side asks again); CLOSED: the peer is gone. */
    enum status (*send)(void *ctx, uint64_t peer, enum wire_lane lane, const struct msg *m);
    /* For metrics and people; may be NULL. */
    void (*event)(void *ctx, const struct engine_event *event);
    /* Bytes on the socket since this process started; may be NULL. */
    void (*bytes)(void *ctx, uint64_t *up, uint64_t *down);
    /* Recovery of a run found in the store: before each checkpoint and each record of the journal is read, with rounds
     * and records so far. An error ends it, and engine_create with it. May be NULL. */
    enum status (*recovering)(void *ctx, uint64_t round, uint64_t records, struct err *err);
};

struct engine_options {
    const struct config *config; /* resolved; copied */
    uint64_t entropy;            /* run id and session ids are drawn from it: random in production */
    const char *init_dir;        /* Hugging Face folder theta_0 comes from, or NULL: layout_fill */
    uint64_t rounds_told;        /* rounds there was an event of; later ones that the journal has get theirs now */
};

/* Start a run, or continue the one the store holds. INVALID when its shared configuration differs (names the keys),
 * CORRUPT when the journal or snapshot is damaged. The store is borrowed. */
enum status engine_create(struct engine **engine_p, const struct engine_options *options, struct store *store,
                          const struct engine_io *io, uint64_t now_us, struct err *err) MUST_CHECK;
/* NULL is allowed. Nothing is written: the journal is always complete. */
void engine_destroy(struct engine *engine);

enum status engine_on_message(struct engine *engine, uint64_t peer, enum wire_lane lane, const struct msg *m,
                              uint64_t now_us, struct err *err) MUST_CHECK;
/* Call when engine_next_deadline_us is reached; harmless at any time. */
enum status engine_tick(struct engine *engine, uint64_t now_us, struct err *err) MUST_CHECK;
/* When engine_tick wants to be called: a second after the last message or tick at most. Longer pauses between calls are
 * taken for times in which this process did not run. */
uint64_t engine_next_deadline_us(const struct engine *engine);
/* The run is done, and that is safe; workers may not have heard of it. */
bool engine_done(const struct engine *engine);
/* The run is done and told to everybody who listened (or nobody did for a while). */
bool engine_finished(const struct engine *engine);
/* Everything journaled so far survives a power cut. */
enum status engine_sync(struct engine *engine, struct err *err) MUST_CHECK;

/* How things were at the last message or tick.
 * Status for people and `atoll status`: JSON into out[cap], terminated; returns the length, 0 when it does not fit. */
size_t engine_status_json(const struct engine *engine, char *out, size_t cap);
/* What the run waits for now; "" when nothing. Returns out. */
const char *engine_waiting(const struct engine *engine, char *out, size_t cap);

void engine_summary(const struct engine *engine, struct engine_summary *out);

const uint8_t *engine_run_id(const struct engine *engine); /* [WIRE_UUID] */

#endif
