/* A run in virtual time: the round machine of the coordinator (coordinator/round/) and the sync machine of each worker
 * (worker/sync/) exchange the messages of the protocol over virtual links (cli/plan/virtual_link.h). There are no
 * parameters: a part of a round costs what struct plan_costs says. Evaluations, faults and late workers are left out.
 */
#ifndef CLI_VIRTUAL_RUN_H
#define CLI_VIRTUAL_RUN_H

#include <stdint.h>

#include "cli/plan/plan_cost.h"
#include "common/config/link_spec.h"

enum { VIRTUAL_WORKERS_MAX = 256 };

struct virtual_setup {
    const struct config *config; /* resolved */
    const struct plan_costs *costs;
    const struct link_spec *links; /* [workers] */
    uint32_t workers;
    uint64_t rounds_max; /* rounds that are simulated; later ones take as long as the median one */
};

/* Seconds of a worker in a round. */
struct virtual_parts {
    double compute_s, compress_s, send_s, wait_s, apply_s;
};

struct virtual_result {
    uint64_t rounds;               /* of the run */
    double seconds;                /* of the run, without joining and evaluations */
    double round_s;                /* median time between the ends of two rounds */
    struct virtual_parts parts;    /* means over workers and rounds */
    double utilization;            /* compute time over all time, mean over the workers */
    uint64_t bytes_up, bytes_down; /* of the run, all workers */
    double *ends_s;                /* [rounds] end of each round; the caller frees it with mem_free */
};

/* STATE: the run does not end. NOMEM. */
enum status virtual_run(const struct virtual_setup *setup, struct virtual_result *result, struct err *err) MUST_CHECK;

#endif
