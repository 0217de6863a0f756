#include "cli/plan/plan.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/config/config.h"
#include "coordinator/settings.h"
#include "worker/replica_setup.h"

enum {
    ROUNDS_MAX = 24,    /* planned rounds of several steps */
    DDP_ROUNDS_MAX = 40 /* of one step */
};

static const double measure_s = 2; /* time for which steps are measured */

void plan_change(struct plan_changes *changes, const char *key, const char *value)
{
    if (!*value || changes->n == PLAN_CHANGES_MAX) return;
    snprintf(changes->words[changes->n++], PLAN_CHANGE_MAX, "--%s=%s", key, value);
}

enum status plan_config(struct config *config, const struct plan_request *request, const struct plan_changes *changes,
                        struct err *err)
{
    struct config_sources sources;
    struct options *options = mem_alloc(1, sizeof *options);
    char workers[PLAN_CHANGE_MAX];
    if (!options) return err_set(err, STATUS_NOMEM, "out of memory");
    *options = *request->options;
    if (options->n_settings + PLAN_CHANGES_MAX >= OPTIONS_SETTINGS_MAX) {
        mem_free(options);
        return err_set(err, STATUS_INVALID, "too many settings: write them into the configuration file");
    }
    snprintf(workers, sizeof workers, "--coordinator.min_workers=%u", request->workers);
    options->settings[options->n_settings++] = workers;
    for (uint32_t i = 0; changes && i < changes->n; i++) options->settings[options->n_settings++] = changes->words[i];
    if (changes && changes->n) log_set_level(LOG_ERROR); /* what a neighbour's method replaces is no news */
    enum status status = settings_read(config, &sources, request->path, NULL, options, err);
    log_set_level(LOG_INFO);
    mem_free(options);
    return status;
}

/* A model of another program is one matrix, as far as its size is known. */
static enum status external_layout(struct layout *layout, uint64_t params, struct err *err)
{
    const uint64_t shape[2] = {(params + 1023) / 1024, 1024};
    if (!params)
        return err_set(err, STATUS_INVALID,
                       "model.family external: its workers define the model: give --params N, the number of "
                       "trained parameters, and --step-seconds");
    TRY(layout_add(layout, "model", 2, shape, LAYOUT_INIT_ZEROS, 0, LAYOUT_DECAY));
    return layout_split(layout, 0);
}

struct model {
    struct layout layout;
    struct replica_config replica;
    bool external;
};

static enum status model_of(struct model *m, const struct config *config, const struct plan_request *request,
                            struct err *err)
{
    const struct model_family *family;
    layout_init(&m->layout);
    m->external = config_is_external(config);
    if (m->external) return external_layout(&m->layout, request->params, err);
    TRY(replica_layout_of(config, &m->layout, &family, err));
    return replica_config_of(config, family, &m->layout, request->workers, &m->replica, err);
}

enum status plan_step(double *step_s, const struct plan_request *request, struct err *err)
{
    struct config config;
    struct model m;
    TRY(plan_config(&config, request, NULL, err));
    enum status status = model_of(&m, &config, request, err);
    if (status == STATUS_OK && m.external)
        status = err_set(err, STATUS_INVALID,
                         "model.family external: only its program can measure a step: give --step-seconds");
    if (status == STATUS_OK) status = plan_step_measure(step_s, &config, &m.layout, &m.replica, measure_s, err);
    layout_finish(&m.layout);
    return status;
}

enum status plan_make(struct plan *plan, const struct plan_request *request, const struct plan_changes *changes,
                      struct err *err)
{
    struct model m;
    memset(plan, 0, sizeof *plan);
    TRY(plan_config(&plan->config, request, changes, err));
    enum status status = model_of(&m, &plan->config, request, err);
    plan->params = m.layout.n_params;
    if (status == STATUS_OK)
        status = plan_memory_make(&plan->memory, &plan->config, &m.layout, m.external ? NULL : &m.replica,
                                  request->workers, err);
    if (status == STATUS_OK) status = plan_cost_measure(&plan->costs, &plan->config, &m.layout, request->workers, err);
    plan->costs.step_s = request->step_s;
    bool ddp = plan->config.train.method == METHOD_DDP || plan->config.train.sync_every == 1;
    struct plan_setup setup = {&plan->config, &plan->costs, request->links, request->workers, NULL};
    if (status == STATUS_OK) status = plan_run_make(&plan->run, &setup, ddp ? DDP_ROUNDS_MAX : ROUNDS_MAX, err);
    layout_finish(&m.layout);
    return status;
}

void plan_finish(struct plan *plan)
{
    mem_free(plan->run.ends_s);
    plan->run.ends_s = NULL;
}
