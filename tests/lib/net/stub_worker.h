/* Workers without training, for benchmarks of the coordinator. Each has its own key, sockets and session. The worker's
 * own state machine (worker/sync/) and link speak the protocol. In place of training a worker waits; in place of a
 * delta it offers an encoded payload of noise, which many workers share. It has no parameters:
 * - Of an update it checks the checksums, version and fragment, and looks for its own name. It does not decode it.
 * - `seen` sums hashes of all updates. It is equal for all workers that joined at the start.
 * A model of a billion parameters therefore takes the memory of one payload, and a worker some hundred KiB.
 *
 * Errors end the process. */
#ifndef TESTS_LIB_STUB_WORKER_H
#define TESTS_LIB_STUB_WORKER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/lib/net/stub_model.h"
#include "wire/object.h"
#include "wire/transport.h"
#include "worker/link/link.h"
#include "worker/sync/sync.h"

enum { STUB_TAIL = sizeof(uint32_t), STUB_HEAD = 64 << 10 };

/* The object that arrives: its first bytes, and the checksum of all but the last STUB_TAIL bytes. */
struct stub_object {
    uint64_t at;
    uint32_t crc;
    uint8_t tail[STUB_TAIL];
    uint8_t *head; /* [STUB_HEAD] */
};

/* Times from CLOCK_MONOTONIC in microseconds. */
struct stub_round {
    uint64_t begun, trained, delivered, applied;
    uint32_t beats;
};

struct stub_worker {
    struct transport_ops ops; /* those of the transport, with the two functions that watch heartbeats */
    const struct transport_ops *inner;
    uint32_t index;
    struct stub_model *model;
    uint64_t step_us, beat_us; /* of an inner step; between two heartbeats, 0: as the coordinator says */
    pthread_t thread;
    struct transport_key key;
    char name[WIRE_NAME_MAX];
    struct sync sync;
    struct heartbeat heartbeat;
    struct link *link;
    struct msg in, out;
    unsigned both_connected;
    uint64_t config_hash, seen; /* seen: sum of the hashes of all updates */
    struct stub_object objects[LAYOUT_FRAGMENTS_MAX];
    uint64_t hashes[LAYOUT_FRAGMENTS_MAX], base[LAYOUT_FRAGMENTS_MAX];
    struct update_named *named; /* [WIRE_NAMED_MAX] */

    struct msg_assign segment;
    uint64_t training_since; /* 0: no segment is running */
    uint32_t steps, told;    /* of the round; steps of the segment that heartbeats have told */
    uint32_t beats_at;       /* `beats` at the begin of the round */
    struct stub_round *rounds;
    uint64_t started_us, joined_us;

    /* Of the link's thread. */
    uint64_t asked_us, answered_us, gap_us, wait_us, wait_at_us;
    atomic_uint beats;
};

/* Starts the worker's threads. index, model, step_us and beat_us are set. */
void stub_worker_start(struct stub_worker *s, const struct transport_address *address);
/* Waits until it has left the run, and frees all but `rounds`, which the caller frees. False: the run refused it. */
bool stub_worker_join(struct stub_worker *s);

#endif
