/* A whole run in virtual time: one coordinator (coordinator/engine/engine.h on a store in memory) and workers
 * (tests/lib/sim/sim_worker.h) on a virtual network, with a checker (tests/lib/sim/sim_check.h) that looks at
 * everything after every event. Processes are killed and restarted at any instant, the coordinator also in the middle
 * of an operation. */
#ifndef TESTS_LIB_SIM_CLUSTER_H
#define TESTS_LIB_SIM_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/config/config.h"
#include "coordinator/engine/engine.h"
#include "tests/lib/rigs/toy.h"
#include "tests/lib/sim/sim_check.h"
#include "tests/lib/sim/sim_net.h"
#include "tests/lib/sim/sim_worker.h"

struct sim_cluster_setup {
    uint64_t seed;
    int n_workers;             /* that exist; each is started by sim_cluster_start_worker */
    const char *const *config; /* "section.key=value", NULL-terminated, on top of small defaults; or NULL */
    uint64_t train_samples;    /* 0: 64 */
    uint32_t n_tensors;        /* 0: 6 */
    uint32_t scale;            /* of the model's size; 0: 1, some dozen floats */
};

struct sim_store;

/* What a run leaves behind. */
struct sim_cluster_result {
    bool done;
    uint64_t theta_hash, versions, rounds, samples_committed, restarts, end_us;
    double final_val_loss;
};

struct sim_cluster {
    struct sim_net *net;
    struct sim_check *check;
    struct toy toy;
    struct config config;
    struct sim_store *store;
    struct sim_worker workers[SIM_NET_CLIENTS_MAX];
    int n_workers;

    struct engine *engine; /* NULL: the coordinator is down */
    struct transport *transport;
    uint64_t wake_us, starts, entropy;
    bool finished;      /* the coordinator ended by itself */
    bool dying;         /* the process died within the call that is being made: nothing it does reaches anybody */
    long die_in;        /* dies at this many sends and store operations from now; 0: does not */
    long operations;    /* sends and store operations since the cluster was made */
    bool die_by_power;  /* unsynced bytes are lost with it */
    bool may_give_up;   /* a failure of the engine is a death like another (a full disk) */
    uint64_t gave_up;   /* times it did */
    uint64_t revive_us; /* a coordinator that died by die_in starts again after this long; UINT64_MAX: stays down */
    struct sim_cluster_result result;
};

enum status sim_cluster_create(struct sim_cluster **c_p, const struct sim_cluster_setup *setup,
                               struct err *err) MUST_CHECK;
void sim_cluster_destroy(struct sim_cluster *c);

void sim_cluster_coordinator_start(struct sim_cluster *c);
/* power: bytes that were not synced are lost or torn. */
void sim_cluster_coordinator_kill(struct sim_cluster *c, bool power);
/* The same at that time, and a worker that is told to stop; does nothing when things have changed meanwhile (already
 * down, already up). */
void sim_cluster_kill_at(struct sim_cluster *c, uint64_t at_us, int client, bool power);
void sim_cluster_leave_at(struct sim_cluster *c, uint64_t at_us, int client);
void sim_cluster_start_at(struct sim_cluster *c, uint64_t at_us, int client);

/* Run until the coordinator and all workers that are up have ended, the checker failed, or `until_us`. True when the
 * run ended well. */
bool sim_cluster_run(struct sim_cluster *c, uint64_t until_us);
/* Print what the checker found, the last events, and who waits for what. */
void sim_cluster_explain(struct sim_cluster *c, FILE *out);

#endif
