/* A whole run in virtual time: one coordinator, workers and a checker.
 * - The coordinator is coordinator/engine/engine.h on a store in memory.
 * - The workers (tests/lib/sim/sim_worker.h) run on a virtual network.
 * - The checker (tests/lib/sim/sim_check.h) checks its invariants after every event.
 * A test kills and restarts processes at any instant, and the coordinator also in the middle of an operation.
 *
 * Long work (engine_io.meanwhile) may take time. Workers and network go on meanwhile, the coordinator reads nothing and
 * sends what engine_reassure sends, and it may be killed. */
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
    int n_workers;                /* sim_cluster_start_at starts each worker */
    const char *const *config;    /* "section.key=value", NULL-terminated, overrides the small defaults; or NULL */
    uint64_t train_samples;       /* 0: 64 */
    uint32_t n_tensors;           /* 0: 6 */
    uint32_t scale;               /* of the model's size; 0: 1, a few dozen floats */
    struct sim_cluster *upstream; /* its engine is a region's (tests/lib/sim/sim_region.h); NULL: of a whole run */
};

struct store;
struct sim_region;

/* The result of a run. */
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
    struct store *store;
    struct sim_worker workers[SIM_NET_CLIENTS_MAX];
    int n_workers;
    struct sim_region *regions[SIM_NET_CLIENTS_MAX]; /* in the place of a worker; NULL: it is one. Borrowed */
    struct sim_region *region;                       /* its own process, if it is a region. Borrowed */

    struct engine *engine; /* NULL: the coordinator is down */
    struct transport *transport;
    uint64_t wake_us, starts, entropy;
    bool finished;               /* the coordinator ended by itself */
    bool dying;                  /* the process died within the current call: its effects reach no other process */
    bool stopping, start_missed; /* the operator stops it in order; the next start came before the end of that */
    long die_in;                 /* dies at this many sends and store operations from now; 0: never */
    long operations;             /* sends and store operations since sim_cluster_create */
    bool die_by_power;           /* unsynced bytes are lost with the process */
    bool may_give_up;            /* an error of the engine counts as a crash (a full disk) */
    uint64_t gave_up;            /* number of such errors */
    uint64_t revive_us;          /* delay until a coordinator killed by die_in restarts; UINT64_MAX: never */
    uint64_t steps;              /* of sim_cluster_step */
    bool started;                /* engine_create has returned */
    uint64_t long_us;            /* the longest piece of long work; 0: it takes no time */
    bool busy, working;          /* long work is going on; its function runs */
    uint64_t long_works;
    /* The coordinator starts with 1 .. workers_most as coordinator.min_workers, as its operator likes; 0: as before.
     * The folder holds what settings_keep_budget reads. */
    uint32_t workers_most;
    char folder[32];
    struct sim_cluster_result result;
};

enum status sim_cluster_create(struct sim_cluster **c_p, const struct sim_cluster_setup *setup,
                               struct err *err) MUST_CHECK;
void sim_cluster_destroy(struct sim_cluster *c);

void sim_cluster_coordinator_start(struct sim_cluster *c);
/* power: unsynced bytes are lost or torn. */
void sim_cluster_coordinator_kill(struct sim_cluster *c, bool power);
/* The engine has changed from outside: it acts now. */
void sim_cluster_poke(struct sim_cluster *c);
/* The engine returned this status to a call from outside. True: its process ended. */
bool sim_cluster_over(struct sim_cluster *c, enum status status, const struct err *err);
/* Kill or start a process at that time, or tell a worker to stop. No effect if the process is already down or up. */
void sim_cluster_kill_at(struct sim_cluster *c, uint64_t at_us, int client, bool power);
void sim_cluster_leave_at(struct sim_cluster *c, uint64_t at_us, int client);
void sim_cluster_start_at(struct sim_cluster *c, uint64_t at_us, int client);

/* Run the next event. False: the checker failed, or no event is due by `until_us`. Fails the checker if the run takes
 * too many steps. */
bool sim_cluster_step(struct sim_cluster *c, uint64_t until_us);
/* Run until the coordinator and all running workers have ended, the checker fails, or `until_us`. True if the run
 * ended well. */
bool sim_cluster_run(struct sim_cluster *c, uint64_t until_us);
/* Print the checker's failure, the last events, and what each process waits for. */
void sim_cluster_explain(struct sim_cluster *c, FILE *out);

#endif
