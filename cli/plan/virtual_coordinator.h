/* The coordinator in virtual time: the shell around coordinator/round/, as coordinator/engine/ is in a real one. It
 * handles one message after the other, and nothing while it merges. */
#ifndef CLI_VIRTUAL_COORDINATOR_H
#define CLI_VIRTUAL_COORDINATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/plan/virtual_link.h"
#include "cli/plan/virtual_run.h"
#include "coordinator/round/download.h"
#include "coordinator/round/round.h"
#include "coordinator/round/upload.h"

struct virtual_peer {
    struct virtual_coordinator *coordinator;
    struct virtual_line *down; /* set by the owner */
    uint32_t id;
    uint8_t state;          /* enum worker_state, of its last heartbeat */
    struct upload *uploads; /* [fragments] */
    struct download download;
    struct virtual_queue inbox;
};

/* One update of a fragment. */
struct virtual_object {
    uint64_t bytes, round;
    struct virtual_named {
        uint64_t round, from, to; /* of the worker's delta, SYNC_NO_ROUND: not merged; its bytes if it is relayed */
    } * named;                    /* [workers] */
};

struct virtual_log {
    struct virtual_object *objects; /* [n], version v is objects[v - 1] */
    size_t n, cap;
};

struct virtual_coordinator {
    const struct virtual_setup *setup; /* set by the owner */
    struct event_queue *clock;
    struct virtual_peer *peers; /* [workers] */
    bool *failed;               /* of the run */

    struct round round;
    struct round_grant *grants;
    struct virtual_log *logs; /* [fragments] */
    uint64_t busy_us, wake_us;
    uint64_t unsynced; /* bytes of the journal that are not fsynced */
    uint64_t *ends_us; /* [n_ends] ends of rounds */
    size_t n_ends, cap_ends;
};

/* Set setup, clock, failed and peers[].down first. All workers have joined and are ready. */
enum status virtual_coordinator_start(struct virtual_coordinator *c) MUST_CHECK;
void virtual_coordinator_finish(struct virtual_coordinator *c);
/* A message of the peer `ctx` arrived; takes it. */
void virtual_coordinator_receive(void *ctx, struct virtual_message *m);
bool virtual_coordinator_done(const struct virtual_coordinator *c);

#endif
