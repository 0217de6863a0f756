/* What the engine asks of the program around it (struct engine_io), and what that program knows of a connection. */
#ifndef COORDINATOR_ENGINE_IO_H
#define COORDINATOR_ENGINE_IO_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "coordinator/engine/state/engine_event.h"
#include "wire/block.h"
#include "wire/msg.h"
#include "wire/transport.h"

#define ENGINE_SYNCS UINT64_MAX

/* What the key of a connection may do. */
enum engine_right {
    ENGINE_RIGHT_NONE,  /* the key is revoked, or was removed from the list of workers */
    ENGINE_RIGHT_ENROL, /* the secret of the join line: ENROL, STATUS, PROBE, MODEL and FETCH */
    ENGINE_RIGHT_WORKER,
};

struct engine_peer {
    uint8_t key[WIRE_KEY]; /* public key; its first WIRE_UUID bytes are the worker's uuid */
    enum engine_right right;
    char name[WIRE_NAME_MAX]; /* of the worker with this key */
};

/* Bytes on the socket, from the workers and to them. */
struct engine_bytes {
    uint64_t up, down;             /* the run's: messages of workers that have joined, and the initial model */
    uint64_t other_up, other_down; /* everything else: joining, STATUS, PROBE, followers, refused messages */
};

struct engine_io {
    void *ctx;
    /* Sends one message to a peer. AGAIN: the lane is full; the engine retries chunks and drops control messages, which
     * the worker requests again. CLOSED: the peer is gone. */
    enum status (*send)(void *ctx, uint64_t peer, enum wire_lane lane, const struct msg *m);
    /* The same for an encoded message of this type, whose bytes several peers share. NULL: the engine uses `send`. */
    enum status (*send_block)(void *ctx, uint64_t peer, enum wire_lane lane, enum msg_type type,
                              struct wire_block *block);
    /* Receives events for metrics and log lines; may be NULL. */
    void (*event)(void *ctx, const struct engine_event *event);
    /* The key of a peer. False: the connection is gone. NULL: no keys are checked (simulation). */
    bool (*peer)(void *ctx, uint64_t peer, struct engine_peer *out);
    /* Adds a worker to the list, durably. REFUSED, LIMIT: err says why. Set if `peer` is. */
    enum status (*enrol)(void *ctx, const uint8_t key[WIRE_KEY], const char *name, struct err *err);
    /* Closes a connection soon, after what was sent to it; may be NULL. */
    void (*drop)(void *ctx, uint64_t peer);
    /* What the kernel knows of a peer's connection. False: nothing. May be NULL. */
    bool (*path)(void *ctx, uint64_t peer, struct transport_path *out);
    /* Bytes since this process started; may be NULL. */
    void (*bytes)(void *ctx, struct engine_bytes *out);
    /* Runs work(arg), which reads, writes or merges so many bytes, or waits for the disk (ENGINE_SYNCS). It changes no
     * session and calls none of these, so the caller may run it on another thread, and call engine_reassure until it
     * has returned. NULL: the engine runs it itself. */
    void (*meanwhile)(void *ctx, uint64_t bytes, void (*work)(void *arg), void *arg);
    /* Called in recovery before each checkpoint and each journal record, with rounds and records so far. An error ends
     * engine_create. May be NULL. */
    enum status (*recovering)(void *ctx, uint64_t round, uint64_t records, struct err *err);
};

#endif
