/* The rounds of a run in time: when each delta leaves, arrives and is merged, and when each update is applied. A model
 * of rates, delays and windows, with the costs of struct plan_costs; no message is made (docs/plan.md). Evaluations,
 * faults and late workers are left out. */
#ifndef CLI_PLAN_ROUNDS_H
#define CLI_PLAN_ROUNDS_H

#include <stdint.h>

#include "cli/plan/plan_cost.h"
#include "common/config/link_spec.h"

enum { PLAN_WORKERS_MAX = 256 };

struct plan_setup {
    const struct config *config; /* resolved */
    const struct plan_costs *costs;
    const struct link_spec *links; /* [workers] */
    uint32_t workers;
    const double *steps_s; /* [workers] seconds of an inner step; NULL: costs->step_s for all */
};

/* What a worker does in a round. */
enum plan_part { PLAN_COMPUTE, PLAN_COMPRESS, PLAN_SEND, PLAN_WAIT, PLAN_APPLY, PLAN_PARTS };

/* Totals of all workers until the end of a round. */
struct plan_mark {
    double at_s, up, down, parts_s[PLAN_PARTS]; /* up, down: bytes */
};

/* Fills marks[rounds + 1]; the first is the start. NOMEM; STATE: the run does not end. */
enum status plan_rounds(struct plan_mark *marks, const struct plan_setup *setup) MUST_CHECK;

#endif
