/* A whole run in virtual time: one coordinator (coordinator/engine/engine.h on a store in memory) and workers
 * (tests/lib/sim/simworker.h) on a virtual network, with a checker (tests/lib/sim/simcheck.h) that looks at everything after
 * every event. Processes are killed and restarted at any instant, the coordinator also in the middle of an
 * operation. */
#ifndef TESTS_LIB_SIMCLUSTER_H
#define TESTS_LIB_SIMCLUSTER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/config/config.h"
#include "coordinator/engine/engine.h"
#include "tests/lib/sim/simcheck.h"
#include "tests/lib/sim/simnet.h"
#include "tests/lib/sim/simworker.h"
#include "tests/lib/rigs/toy.h"

struct simcluster_setup {
    uint64_t seed;
    int n_workers;             /* that exist; each is started by simcluster_start_worker */
    const char *const *config; /* "section.key=value", NULL-terminated, on top of small defaults; or NULL */
    uint64_t train_samples;    /* 0: 64 */
    uint32_t n_tensors;        /* 0: 6 */
    uint32_t scale;            /* of the model's size; 0: 1, some dozen floats */
};

struct simstore;

/* What a run leaves behind. */
struct simcluster_result {
    bool done;
    uint64_t theta_hash, versions, rounds, samples_committed, restarts, end_us;
    double final_val_loss;
};

struct simcluster {
    struct simnet *net;
    struct simcheck *check;
    struct toy toy;
    struct config config;
    struct simstore *store;
    struct simworker workers[SIMNET_CLIENTS_MAX];
    int n_workers;

    struct engine *engine; /* NULL: the coordinator is down */
    struct transport *transport;
    uint64_t wake_us, starts, entropy;
    bool finished;       /* the coordinator ended by itself */
    bool dying;          /* the process died within the call that is being made: nothing it does reaches anybody */
    long die_in;         /* dies at this many sends and store operations from now; 0: does not */
    long operations;     /* sends and store operations since the cluster was made */
    bool die_by_power;   /* unsynced bytes are lost with it */
    bool may_give_up;    /* a failure of the engine is a death like another (a full disk) */
    uint64_t gave_up;    /* times it did */
    uint64_t revive_us;  /* a coordinator that died by die_in starts again after this long; UINT64_MAX: stays down */
    struct simcluster_result result;
};

enum status simcluster_create(struct simcluster **c_p, const struct simcluster_setup *setup,
                              struct err *err) MUST_CHECK;
void simcluster_destroy(struct simcluster *c);

void simcluster_coordinator_start(struct simcluster *c);
/* power: bytes that were not synced are lost or torn. */
void simcluster_coordinator_kill(struct simcluster *c, bool power);
/* The same at that time, and a worker that is told to stop; does nothing when things have changed meanwhile (already
 * down, already up). */
void simcluster_kill_at(struct simcluster *c, uint64_t at_us, int client, bool power);
void simcluster_leave_at(struct simcluster *c, uint64_t at_us, int client);
void simcluster_start_at(struct simcluster *c, uint64_t at_us, int client);

/* Run until the coordinator and all workers that are up have ended, the checker failed, or `until_us`. True when the
 * run ended well. */
bool simcluster_run(struct simcluster *c, uint64_t until_us);
/* Print what the checker found, the last events, and who waits for what. */
void simcluster_explain(struct simcluster *c, FILE *out);

#endif
