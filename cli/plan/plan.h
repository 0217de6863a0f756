/* A plan: what a run will need and how long it will take, for one configuration, number of workers and kind of link. */
#ifndef CLI_PLAN_H
#define CLI_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/plan/plan_cost.h"
#include "cli/plan/plan_run.h"
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
    double step_s;                 /* 0: measure it */
    struct progress *progress;     /* NULL: silent */
};

struct plan {
    struct config config;
    uint64_t params;
    struct plan_costs costs;
    struct plan_memory memory;
    struct plan_run run; /* ends_s is owned by the plan */
};

/* Adds a setting; an empty value adds nothing. */
void plan_change(struct plan_changes *changes, const char *key, const char *value);
/* Reads the configuration with the changes on top. INVALID as settings_read. */
enum status plan_config(struct config *config, const struct plan_request *request, const struct plan_changes *changes,
                        struct err *err) MUST_CHECK;
/* Measures the time of an inner step of request->path on this machine. */
enum status plan_step(double *step_s, const struct plan_request *request, struct err *err) MUST_CHECK;
/* Makes the plan of the configuration with the changes on top. request->step_s must be set. */
enum status plan_make(struct plan *plan, const struct plan_request *request, const struct plan_changes *changes,
                      struct err *err) MUST_CHECK;
void plan_finish(struct plan *plan);

#endif
