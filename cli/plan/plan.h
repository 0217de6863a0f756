/* A plan: what a run will need and how long it will take, for one configuration, number of workers and kind of link. */
#ifndef CLI_PLAN_H
#define CLI_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/plan/plan_box.h"
#include "cli/plan/plan_cost.h"
#include "cli/plan/plan_rounds.h"
#include "cli/plan/plan_worker.h"
#include "cli/progress.h"
#include "common/config/options.h"

enum { PLAN_CHANGES_MAX = 12, PLAN_CHANGE_MAX = 96 };

/* Settings on top of a configuration, each "--section.key=value". */
struct plan_changes {
    char words[PLAN_CHANGES_MAX][PLAN_CHANGE_MAX];
    uint32_t n;
};

/* What does not change between a configuration and its neighbours. */
struct plan_request {
    const char *path; /* configuration file; NULL: none */
    const struct options *options;
    uint32_t workers;
    const struct link_spec *links; /* [workers] */
    uint64_t params;               /* of a model.family external; 0: none given */
    const struct plan_box *box;    /* each worker is such a box; NULL: it is an atoll-worker */
    uint64_t adapters;             /* only these parameters travel, of a frozen model; 0: the model */
    double step_s;
    struct progress *progress;
};

/* A whole run from its first rounds (cli/plan/plan_rounds.h). */
struct plan_run {
    uint64_t rounds;               /* of the run */
    double seconds;                /* of the run, without joining and evaluations */
    double round_s;                /* median time between the ends of two rounds */
    double parts_s[PLAN_PARTS];    /* of a worker in a round, mean */
    double utilization;            /* compute time over all time, mean over the workers */
    uint64_t bytes_up, bytes_down; /* of the run, all workers */
};

struct plan {
    struct config config;
    uint64_t params;
    struct plan_costs costs;
    struct plan_memory memory;
    struct plan_box_memory box; /* of a request with a box and without adapters */
    struct plan_run run;
};

/* Measures the time of an inner step of request->path on this machine. */
enum status plan_step(double *step_s, const struct plan_request *request, struct err *err) MUST_CHECK;
/* Makes the plan of the configuration with the changes on top. ends_p: as of plan_run_make. */
enum status plan_make(struct plan *plan, const struct plan_request *request, const struct plan_changes *changes,
                      double **ends_p, struct err *err) MUST_CHECK;
/* Seconds of a round in which the coordinator checks and merges the deltas of all workers. */
double plan_coordinator_s(const struct plan *plan, uint32_t workers);
/* rounds_max: rounds that are planned one by one; later ones take as long as the usual one. *ends_p: the end of each
 * round in seconds, which the caller frees with mem_free; NULL: not wanted. NOMEM, STATE. */
enum status plan_run_make(struct plan_run *run, const struct plan_setup *setup, uint64_t rounds_max, double **ends_p,
                          struct err *err) MUST_CHECK;

/* The neighbours of a configuration (other method, H, codec, overlap), and which of them is recommended. */
enum { PLAN_NEIGHBOURS_MAX = 24, PLAN_REASON_MAX = 640 };

struct plan_neighbour {
    char what[PLAN_CHANGE_MAX]; /* "H 60", "codec int4:256+huff" */
    struct plan_changes changes;
    struct plan plan;
};

struct plan_choice {
    struct plan_neighbour neighbours[PLAN_NEIGHBOURS_MAX]; /* [n] */
    uint32_t n;
    struct plan_changes changes; /* the recommended settings; n 0: keep the configuration */
    struct plan recommended;     /* their plan, if changes.n */
    char reason[PLAN_REASON_MAX];
};

/* Plans all neighbours of `base` and chooses. Neighbours that the configuration does not allow are left out. */
enum status plan_choose(struct plan_choice *choice, const struct plan *base, const struct plan_request *request,
                        struct err *err) MUST_CHECK;

#endif
