/* A whole run from its first rounds (cli/plan/plan_rounds.h). */
#ifndef CLI_PLAN_RUN_H
#define CLI_PLAN_RUN_H

#include "cli/plan/plan_rounds.h"

struct plan_run {
    uint64_t rounds;               /* of the run */
    double seconds;                /* of the run, without joining and evaluations */
    double round_s;                /* median time between the ends of two rounds */
    double parts_s[PLAN_PARTS];    /* of a worker in a round, mean */
    double utilization;            /* compute time over all time, mean over the workers */
    uint64_t bytes_up, bytes_down; /* of the run, all workers */
    double *ends_s;                /* [rounds] end of each round; the caller frees it with mem_free */
};

/* rounds_max: rounds that are planned one by one; later ones take as long as the usual one. NOMEM, STATE. */
enum status plan_run_make(struct plan_run *run, const struct plan_setup *setup, uint64_t rounds_max,
                          struct err *err) MUST_CHECK;

#endif
