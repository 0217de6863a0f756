#include "cli/plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/median.h"
#include "common/base/mem.h"
#include "common/config/config.h"
#include "common/config/sync_points.h"
#include "coordinator/settings.h"
#include "worker/replica_setup.h"

enum {
    ROUNDS_MAX = 24,     /* planned rounds of several steps */
    DDP_ROUNDS_MAX = 40, /* of one step */
    BOX_ROUNDS_MAX = 8   /* of the billions of parameters of a box: each has many events */
};

static const double measure_s = 2; /* time for which steps are measured */

/* --- the run from its first rounds ---------------------------------------------------------------------------------
 */

/* Keeps the rounds of each kind that are enough to know all of them. */
static void shorten(struct config *config, uint64_t rounds_max)
{
    struct sync_rounds r = sync_rounds_of(config);
    if (sync_rounds_count(&r) <= rounds_max) return;
    uint64_t averaged = r.start_step < rounds_max ? r.start_step : rounds_max;
    config->train.start_step = (uint32_t)averaged;
    config->train.max_steps = (uint32_t)(averaged + rounds_max * r.sync_every);
}

/* Rounds of one kind: `count` in the run, of which [first, end) were planned. */
struct kind {
    size_t first, end;
    uint64_t count;
    double usual_s;
};

static double length_s(const struct plan_mark *marks, size_t round)
{
    return marks[round + 1].at_s - marks[round].at_s;
}

/* The usual length is the median of the later half, without the last round, which has no overlap. */
static struct kind kind_of(const struct plan_mark *marks, size_t first, size_t end, uint64_t count)
{
    struct kind k = {.first = first, .end = end, .count = count};
    double values[1024];
    size_t n = 0, from = first + (end - first) / 2, to = end - from > 1 ? end - 1 : end;
    for (size_t i = from; i < to && n < 1024; i++) values[n++] = length_s(marks, i);
    k.usual_s = n ? median_of(values, n) : 0;
    return k;
}

/* Writes the ends of the rounds of a kind (ends_s NULL: nowhere): the usual one is repeated before the last one.
 * Returns the last end. */
static double stretch(const struct plan_mark *marks, const struct kind *k, double at_s, double *ends_s)
{
    size_t n = k->end - k->first;
    for (uint64_t i = 0; i < k->count; i++) {
        if (i + 1 < n || k->count == n)
            at_s += length_s(marks, k->first + i);
        else
            at_s += i + 1 == k->count ? length_s(marks, k->end - 1) : k->usual_s;
        if (ends_s) ends_s[i] = at_s;
    }
    return at_s;
}

static void fill(struct plan_run *run, const struct plan_setup *whole, const struct config *some,
                 const struct plan_mark *marks, double *ends_s)
{
    struct sync_rounds all = sync_rounds_of(whole->config), planned = sync_rounds_of(some);
    uint64_t rounds = sync_rounds_count(&all), early = all.start_step < rounds ? all.start_step : rounds;
    size_t n = sync_rounds_count(&planned), averaged = planned.start_step < n ? planned.start_step : n;
    struct kind first = kind_of(marks, 0, averaged, early), later = kind_of(marks, averaged, n, rounds - early);
    const struct kind *k = later.count ? &later : &first;
    double early_s = stretch(marks, &first, 0, ends_s);
    *run = (struct plan_run){.rounds = rounds,
                             .round_s = k->usual_s,
                             .seconds = stretch(marks, &later, early_s, ends_s ? ends_s + early : NULL)};
    size_t from = k->end - k->first > 2 ? k->first + (k->end - k->first) / 2 : k->first; /* as kind_of */
    size_t to = n - from > 1 ? n - 1 : n;
    const struct plan_mark *a = &marks[from], *b = &marks[to], *end = &marks[n];
    double share = 1 / ((double)(to - from) * whole->workers), took = b->at_s - a->at_s;
    for (int p = 0; p < PLAN_PARTS; p++) run->parts_s[p] = (b->parts_s[p] - a->parts_s[p]) * share;
    if (took > 0) run->utilization = fmin(1, run->parts_s[PLAN_COMPUTE] * (double)(to - from) / took);
    double more = (double)(rounds - n) / (double)(to - from);
    run->bytes_up = (uint64_t)(end->up + (b->up - a->up) * more);
    run->bytes_down = (uint64_t)(end->down + (b->down - a->down) * more);
}

enum status plan_run_make(struct plan_run *run, const struct plan_setup *whole, uint64_t rounds_max, double **ends_p,
                          struct err *err)
{
    struct config some = *whole->config;
    struct plan_setup shorter = *whole;
    struct sync_rounds all = sync_rounds_of(whole->config);
    shorten(&some, rounds_max);
    shorter.config = &some;
    struct sync_rounds planned = sync_rounds_of(&some);
    struct plan_mark *marks = mem_alloc(sync_rounds_count(&planned) + 1, sizeof *marks);
    if (ends_p) *ends_p = mem_alloc(sync_rounds_count(&all) + 1, sizeof **ends_p);
    enum status status = marks && (!ends_p || *ends_p) ? plan_rounds(marks, &shorter) : STATUS_NOMEM;
    if (status == STATUS_OK)
        fill(run, whole, &some, marks, ends_p ? *ends_p : NULL);
    else
        err_set(err, status, "%s", status == STATUS_NOMEM ? "out of memory" : "the run does not end");
    mem_free(marks);
    return status;
}

/* --- a configuration ---------------------------------------------------------------------------------------------- */

/* Reads the configuration with the changes on top. */
static enum status read_config(struct config *config, const struct plan_request *request,
                               const struct plan_changes *changes, struct err *err)
{
    static struct options options; /* large; points to `workers` */
    struct config_sources sources;
    static char workers[PLAN_CHANGE_MAX];
    options = *request->options;
    if (options.n_settings + PLAN_CHANGES_MAX >= OPTIONS_SETTINGS_MAX)
        return err_set(err, STATUS_INVALID, "too many settings: write them into the configuration file");
    snprintf(workers, sizeof workers, "--coordinator.min_workers=%u", request->workers);
    options.settings[options.n_settings++] = workers;
    for (uint32_t i = 0; i < changes->n; i++) options.settings[options.n_settings++] = changes->words[i];
    if (changes->n) log_set_level(LOG_ERROR); /* what a neighbour's method replaces is no news */
    enum status status = settings_read(config, &sources, request->path, NULL, &options, err);
    log_set_level(LOG_INFO);
    return status;
}

/* A model of another program is one matrix, as far as its size is known. */
static enum status external_layout(struct layout *layout, const struct plan_request *request, struct err *err)
{
    if (request->box)
        return err_set(err, STATUS_INVALID,
                       "model.family external: --gpus counts the layers of a decoder: give model.preset, or "
                       "model.init_from with a folder that holds a Hugging Face config.json");
    if (!request->params)
        return err_set(err, STATUS_INVALID,
                       "model.family external: its workers define the model: give --params N, the number of "
                       "trained parameters, and --step-seconds");
    return plan_matrix(layout, request->params);
}

struct model {
    struct layout layout;
    struct replica_config replica;
    bool external; /* a program's: no replica */
};

static enum status model_of(struct model *m, const struct config *config, const struct plan_request *request,
                            struct err *err)
{
    const struct model_family *family;
    layout_init(&m->layout);
    m->external = config_is_external(config) || request->box;
    if (request->adapters) return plan_matrix(&m->layout, request->adapters);
    if (config_is_external(config)) return external_layout(&m->layout, request, err);
    TRY(replica_layout_of(config, &m->layout, &family, err));
    if (request->box) return STATUS_OK;
    return replica_config_of(config, family, &m->layout, request->workers, &m->replica, err);
}

enum status plan_step(double *step_s, const struct plan_request *request, struct err *err)
{
    struct config config;
    struct model m;
    TRY(read_config(&config, request, &(struct plan_changes){0}, err));
    enum status status = model_of(&m, &config, request, err);
    if (status == STATUS_OK && m.external)
        status = err_set(err, STATUS_INVALID,
                         "model.family external: only its program can measure a step: give --step-seconds");
    if (status == STATUS_OK) status = plan_step_measure(step_s, &config, &m.layout, &m.replica, measure_s, err);
    layout_finish(&m.layout);
    return status;
}

/* The ranks of a box copy their shards side by side, and save more than an atoll-worker: the residual, too. */
static void in_box(struct plan *plan, const struct plan_request *request)
{
    uint64_t payload = 0;
    plan->costs.place_s /= request->box->gpus;
    if (request->adapters) return;
    for (uint32_t f = 0; f < plan->costs.n_fragments; f++) payload += plan->costs.fragments[f].up_bytes;
    plan_box_add_payload(&plan->box, &plan->config, payload);
    const struct plan_costs *c = &plan->costs;
    plan->costs.save_s = c->sync_s + (c->sync_byte_s + c->byte_s) * (double)plan->box.saved;
}

enum status plan_make(struct plan *plan, const struct plan_request *request, const struct plan_changes *changes,
                      double **ends_p, struct err *err)
{
    struct model m;
    memset(plan, 0, sizeof *plan);
    TRY(read_config(&plan->config, request, changes, err));
    enum status status = model_of(&m, &plan->config, request, err);
    plan->params = m.layout.n_params;
    if (status == STATUS_OK)
        status = plan_memory_make(&plan->memory, &plan->config, &m.layout, m.external ? NULL : &m.replica,
                                  request->workers, err);
    if (status == STATUS_OK && request->box && !request->adapters)
        status = plan_box_make(&plan->box, request->box, &plan->config, &m.layout, request->workers, err);
    if (status == STATUS_OK) status = plan_cost_measure(&plan->costs, &plan->config, &m.layout, request->workers, err);
    if (request->box) in_box(plan, request);
    plan->costs.step_s = request->step_s;
    bool ddp = plan->config.train.method == METHOD_DDP || plan->config.train.sync_every == 1;
    uint64_t rounds_max = request->box ? BOX_ROUNDS_MAX : ddp ? DDP_ROUNDS_MAX : ROUNDS_MAX;
    struct plan_setup setup = {&plan->config, &plan->costs, request->links, request->workers, NULL};
    if (status == STATUS_OK) status = plan_run_make(&plan->run, &setup, rounds_max, ends_p, err);
    layout_finish(&m.layout);
    return status;
}

double plan_coordinator_s(const struct plan *p, uint32_t workers)
{
    double sum = 0;
    for (uint32_t f = 0; f < p->costs.n_fragments; f++) {
        const struct plan_fragment *c = &p->costs.fragments[f];
        sum += workers * (c->deliver_s + c->merge_s) + c->outer_s;
    }
    return sum;
}
