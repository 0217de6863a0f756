/* atoll plan: reads a configuration, plans it and its neighbours, and prints text or JSON. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/plan/plan.h"
#include "cli/plan/plan_box_text.h"
#include "cli/verbs.h"
#include "common/base/mem.h"
#include "common/base/units.h"
#include "common/config/config.h"
#include "common/config/options.h"
#include "common/config/sync_points.h"
#include "common/os/host_memory.h"
#include "common/os/json_file.h"

enum { LORA_RANK = 16 };
static const double nominal_step_s = 1; /* of a box whose step is not known: the exchange does not depend on it */

struct verb {
    uint64_t workers, params, gpus, lora_rank;
    const char *link;
    double step_s, gpu_gib;
    bool json, only, measure;
    double *ends_s; /* of each round, with --json */
    struct progress progress;
    struct link_spec links[PLAN_WORKERS_MAX];
    struct plan_box box;
    struct plan plan, lora; /* lora: of the adapters of a box */
    struct plan_choice choice;
};

/* --- JSON --------------------------------------------------------------------------------------------------------- */

static json_t *parts_json(const double *seconds)
{
    static const char *const keys[PLAN_PARTS] = {"compute_s", "compress_s", "send_s", "wait_s", "apply_s"};
    json_t *o = json_object();
    for (int p = 0; p < PLAN_PARTS; p++) json_object_set_new(o, keys[p], json_real(seconds[p]));
    return o;
}

static json_t *memory_json(const struct plan_memory *m)
{
    json_t *o = json_object();
    json_put_count(o, "worker", m->worker_bytes ? m->worker_bytes : UINT64_MAX);
    json_put_count(o, "worker_host", m->host_bytes ? m->host_bytes : UINT64_MAX);
    json_put_count(o, "worker_free", m->worker_free_bytes ? m->worker_free_bytes : UINT64_MAX);
    json_put_count(o, "coordinator", m->coordinator_bytes);
    json_put_text(o, "device", m->device);
    json_put_text(o, "short_of", m->short_of);
    return o;
}

static json_t *run_json(const struct plan *p, uint32_t workers)
{
    const struct plan_run *r = &p->run;
    double each = (double)r->rounds * workers;
    json_t *o = json_pack(
        "{s:s,s:I,s:s,s:s,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:f,s:o,s:I,s:I,s:f,s:f}", "method",
        config_method_name(p->config.train.method), "sync_every", (json_int_t)p->config.train.sync_every, "up",
        p->config.codec.up, "down", p->config.codec.down, "params", (json_int_t)p->params, "rounds",
        (json_int_t)r->rounds, "seconds", r->seconds, "round_s", r->round_s, "utilization", r->utilization,
        "step_seconds", p->costs.step_s, "journal_sync_s", p->costs.sync_s, "save_s", p->costs.save_s, "parts",
        parts_json(r->parts_s), "bytes_up", (json_int_t)r->bytes_up, "bytes_down", (json_int_t)r->bytes_down,
        "round_bytes_up", (double)r->bytes_up / each, "round_bytes_down", (double)r->bytes_down / each);
    json_object_set_new(o, "coordinator_s", json_real(plan_coordinator_s(p, workers)));
    json_object_set_new(o, "memory", memory_json(&p->memory));
    return o;
}

static json_t *ends_json(const struct verb *v)
{
    json_t *list = json_array();
    for (uint64_t i = 0; i < v->plan.run.rounds; i++) json_array_append_new(list, json_real(v->ends_s[i]));
    return list;
}

static json_t *changes_json(const struct plan_changes *changes)
{
    json_t *o = json_object();
    for (uint32_t i = 0; i < changes->n; i++) {
        const char *word = changes->words[i] + 2, *equal = strchr(word, '=');
        json_object_setn_new(o, word, (size_t)(equal - word), json_string(equal + 1));
    }
    return o;
}

static json_t *choice_json(const struct verb *v, json_t *root)
{
    json_t *list = json_array(), *best = json_object();
    for (uint32_t i = 0; i < v->choice.n; i++) {
        const struct plan_neighbour *n = &v->choice.neighbours[i];
        json_t *o = run_json(&n->plan, (uint32_t)v->workers);
        json_object_set_new(o, "change", json_string(n->what));
        json_object_set_new(o, "settings", changes_json(&n->changes));
        json_array_append_new(list, o);
    }
    json_object_set_new(root, "neighbours", list);
    json_object_set_new(best, "reason", json_string(v->choice.reason));
    json_object_set_new(best, "settings", changes_json(&v->choice.changes));
    if (v->choice.changes.n) json_object_set_new(best, "plan", run_json(&v->choice.recommended, (uint32_t)v->workers));
    json_object_set_new(root, "recommendation", best);
    return root;
}

static void print_json(json_t *root)
{
    json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    printf("\n");
    json_decref(root);
}

/* --- text --------------------------------------------------------------------------------------------------------- */

static void print_memory(const struct plan_memory *m)
{
    char need[MEMORY_TEXT_MAX], left[MEMORY_TEXT_MAX], host[MEMORY_TEXT_MAX], other[MEMORY_TEXT_MAX];
    if (m->worker_bytes)
        printf("memory       worker %s on %s", memory_text(m->worker_bytes, need), m->device);
    else
        printf("memory       worker: its program decides");
    if (m->worker_free_bytes) printf(" (%s free here)", memory_text(m->worker_free_bytes, left));
    if (m->host_bytes) printf(" and %s of host memory", memory_text(m->host_bytes, host));
    printf("; coordinator %s\n", memory_text(m->coordinator_bytes, other));
    if (m->short_of[0])
        printf("does not fit %s\n"
               "             Every atoll-worker holds the whole model. PyTorch shards it over the GPUs of a box "
               "(FSDP2): plan "
               "that with\n"
               "             --gpus N --gpu-memory GIB (docs/plan.md).\n",
               m->short_of);
}

static struct plan_box_view box_view(const struct verb *v)
{
    return (struct plan_box_view){&v->plan, &v->lora, &v->box, &v->links[0], (uint32_t)v->workers};
}

static void print_plan(const struct verb *v)
{
    const struct plan *p = &v->plan;
    const struct plan_run *r = &p->run;
    const double *t = r->parts_s;
    double each = (double)r->rounds * (double)v->workers;
    const struct plan_box_view view = box_view(v);
    char text[LINK_SPEC_MAX];
    printf("run          %s, H %" PRIu32 ", up %s, down %s; %s parameters, %" PRIu64 " worker%s\n",
           config_method_name(p->config.train.method),
           p->config.train.method == METHOD_DDP ? 1 : p->config.train.sync_every, p->config.codec.up,
           p->config.codec.down, units_count((double)p->params).text, v->workers, v->workers == 1 ? "" : "s");
    printf("link         %s%s\n", link_spec_print(&v->links[0], text),
           strchr(v->link, ';') ? " (of the first worker)" : "");
    if (v->gpus)
        plan_box_print_memory(p, &v->box);
    else
        print_memory(&p->memory);
    if (v->gpus) plan_box_print_exchange(&view);
    if (v->gpus && !(v->step_s > 0)) {
        printf("a round      H steps and one exchange; --step-seconds S of your script adds the time of the run\n");
        return;
    }
    printf("step         %s%s\n\n", units_duration(p->costs.step_s).text,
           v->step_s > 0 ? "" : ", measured on this machine (--step-seconds S sets it)");
    printf("a round      %s: compute %s, compress %s, send %s, wait %s, apply %s\n", units_duration(r->round_s).text,
           units_duration(t[PLAN_COMPUTE]).text, units_duration(t[PLAN_COMPRESS]).text,
           units_duration(t[PLAN_SEND]).text, units_duration(t[PLAN_WAIT]).text, units_duration(t[PLAN_APPLY]).text);
    printf("             each worker sends %s and receives %s; its GPU or CPU works %s of the time\n",
           units_bytes((double)r->bytes_up / each).text, units_bytes((double)r->bytes_down / each).text,
           units_percent(r->utilization).text);
    printf("             of send and wait, the coordinator computes %s on a machine like this one\n",
           units_duration(plan_coordinator_s(p, (uint32_t)v->workers)).text);
    printf("the run      %" PRIu64 " rounds in %s without evaluations; %s up, %s down over all workers\n", r->rounds,
           units_duration(r->seconds).text, units_bytes((double)r->bytes_up).text,
           units_bytes((double)r->bytes_down).text);
}

/* A run that stops early is known before it starts. */
static void print_budget(const struct config *config, const struct plan_run *r)
{
    double hours = r->seconds / 3600, gb = (double)(r->bytes_up + r->bytes_down) * 1e-9;
    if (config->run.max_hours > 0 && hours > config->run.max_hours)
        printf("budget       run.max_hours %g ends this run at %s of it\n", config->run.max_hours,
               units_percent(config->run.max_hours / hours).text);
    if (config->run.max_gb > 0 && gb > config->run.max_gb)
        printf("budget       run.max_gb %g ends this run at %s of it\n", config->run.max_gb,
               units_percent(config->run.max_gb / gb).text);
}

static void print_choice(const struct verb *v)
{
    printf("\n%-44s %11s %11s %11s %8s %8s\n", "instead", "a round", "utilization", "the run", "up", "down");
    for (uint32_t i = 0; i < v->choice.n; i++) {
        const struct plan_neighbour *n = &v->choice.neighbours[i];
        const struct plan_run *r = &n->plan.run;
        printf("%-44s %11s %11s %11s %8s %8s\n", n->what, units_duration(r->round_s).text,
               units_percent(r->utilization).text, units_duration(r->seconds).text,
               units_bytes((double)r->bytes_up).text, units_bytes((double)r->bytes_down).text);
    }
    printf("\nrecommended ");
    for (uint32_t i = 0; i < v->choice.changes.n; i++) printf(" %s", v->choice.changes.words[i]);
    printf("%s%s\n", v->choice.changes.n ? "\n             " : " ", v->choice.reason);
}

/* --- boxes -------------------------------------------------------------------------------------------------------- */

static enum status check_box(struct verb *v, struct err *err)
{
    if (!v->gpus)
        return v->gpu_gib > 0 ? err_set(err, STATUS_INVALID, "--gpu-memory is for boxes: give --gpus N, too")
                              : STATUS_OK;
    if (v->gpus > PLAN_GPUS_MAX)
        return err_set(err, STATUS_INVALID, "--gpus is %" PRIu64 ": give the GPUs of one box, 1 to %d", v->gpus,
                       PLAN_GPUS_MAX);
    if (!(v->gpu_gib > 0 && v->gpu_gib <= PLAN_GPU_GIB_MAX))
        return err_set(err, STATUS_INVALID, "--gpu-memory is missing or wrong: give the GiB of one GPU, such as 80");
    if (!v->lora_rank || v->lora_rank > PLAN_LORA_MAX)
        return err_set(err, STATUS_INVALID, "--lora-rank is %" PRIu64 ": give 1 to %d", v->lora_rank, PLAN_LORA_MAX);
    if (v->measure)
        return err_set(err, STATUS_INVALID, "--measure is for an atoll-worker: a box's step is that of your script");
    v->box = (struct plan_box){(uint32_t)v->gpus, v->gpu_gib, (uint32_t)v->lora_rank};
    return STATUS_OK;
}

/* Without the time of a step, the exchange is known if nothing trains meanwhile. */
static enum status check_step_known(const struct verb *v, struct err *err)
{
    const struct config *c = &v->plan.config;
    if (v->step_s > 0 || !(sync_overlaps(c) || c->train.method == METHOD_ASYNC)) return STATUS_OK;
    return err_set(err, STATUS_INVALID,
                   "--step-seconds is missing: with %s a box trains during its exchange, so give the time of a step",
                   c->train.method == METHOD_ASYNC ? "async" : "overlap");
}

static enum status plan_adapters(struct verb *v, const struct plan_request *request, struct err *err)
{
    static const struct plan_changes none;
    struct plan_request adapters = *request;
    TRY(check_step_known(v, err));
    adapters.adapters = v->plan.box.adapters;
    return plan_make(&v->lora, &adapters, &none, NULL, err);
}

/* --- the verb ----------------------------------------------------------------------------------------------------- */

static enum status check(struct verb *v, struct err *err)
{
    if (!(v->step_s >= 0 && v->step_s < 1e6))
        return err_set(err, STATUS_INVALID, "--step-seconds is %g: give seconds of an inner step, above 0", v->step_s);
    if (!v->workers || v->workers > PLAN_WORKERS_MAX)
        return err_set(err, STATUS_INVALID, "--workers is %" PRIu64 ": give 1 to %d", v->workers, PLAN_WORKERS_MAX);
    TRY(check_box(v, err));
    if (v->measure) return STATUS_OK;
    if (!v->link)
        return err_set(err, STATUS_INVALID,
                       "--link is missing: give the workers' link, such as --link 100mbit,rtt=50ms (atoll probe JOIN "
                       "measures one)");
    return link_specs_parse(v->links, v->workers, v->link, err);
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    struct verb *v = ctx;
    static const struct plan_changes none;
    TRY(check(v, err));
    struct plan_request request = {.path = o->n_args ? o->args[0] : NULL,
                                   .options = o,
                                   .workers = (uint32_t)v->workers,
                                   .links = v->links,
                                   .params = v->params,
                                   .box = v->gpus ? &v->box : NULL,
                                   .step_s = v->gpus && !(v->step_s > 0) ? nominal_step_s : v->step_s,
                                   .progress = &v->progress};
    v->progress.quiet = v->json;
    progress_begin(&v->progress, 0);
    if (!(request.step_s > 0)) {
        progress_show(&v->progress, "measuring an inner step");
        TRY(plan_step(&request.step_s, &request, err));
    }
    if (v->measure) {
        progress_end(&v->progress);
        if (v->json)
            print_json(json_pack("{s:f}", "step_seconds", request.step_s));
        else
            printf("%s\n", units_duration(request.step_s).text);
        return STATUS_OK;
    }
    progress_show(&v->progress, "planning this configuration");
    TRY(plan_make(&v->plan, &request, &none, v->json ? &v->ends_s : NULL, err));
    if (v->gpus) TRY(plan_adapters(v, &request, err));
    bool whole = !v->gpus || v->step_s > 0; /* the time of the run is known */
    progress_end(&v->progress);
    if (!v->json) print_plan(v);
    if (!v->json && whole) print_budget(&v->plan.config, &v->plan.run);
    fflush(stdout);
    v->only |= !whole;
    if (!v->only) TRY(plan_choose(&v->choice, &v->plan, &request, err));
    progress_end(&v->progress);
    if (!v->json && !v->only) print_choice(v);
    if (!v->json) return STATUS_OK;
    json_t *root = json_object(), *plan = run_json(&v->plan, (uint32_t)v->workers);
    const struct plan_box_view view = box_view(v);
    if (v->gpus) json_object_set_new(root, "box", plan_box_json(&view));
    json_object_set_new(plan, "round_ends_s", ends_json(v));
    json_object_set_new(root, "plan", plan);
    print_json(v->only ? root : choice_json(v, root));
    return STATUS_OK;
}

/* An error does not follow the progress in its line. */
static enum status run_and_erase(struct options *o, void *ctx, struct err *err)
{
    struct verb *v = ctx;
    enum status status = run(o, ctx, err);
    progress_end(&v->progress);
    return status;
}

int cmd_plan(int argc, char **argv)
{
    static struct verb v; /* large */
    v.workers = 2;
    v.lora_rank = LORA_RANK;
    const struct option_spec specs[] = {
        {"workers", OPTION_COUNT, &v.workers, "N", "number of workers (default 2)"},
        {"link", OPTION_TEXT, &v.link, "SPEC",
         "link of every worker, or of each, separated by ';': as of atoll launch --link"},
        {"step-seconds", OPTION_REAL, &v.step_s, "S", "time of an inner step (default: measured here, at least 2 s)"},
        {"gpus", OPTION_COUNT, &v.gpus, "N",
         "each worker is a box of N GPUs with a PyTorch program: which of DDP, FSDP2, LoRA fits"},
        {"gpu-memory", OPTION_REAL, &v.gpu_gib, "GIB", "memory of one of these GPUs"},
        {"lora-rank", OPTION_COUNT, &v.lora_rank, "R",
         "rank of LoRA's adapters on every matrix of a layer (default 16)"},
        {"params", OPTION_COUNT, &v.params, "N", "trained parameters of a model.family external"},
        {"json", OPTION_FLAG, &v.json, NULL, "print JSON, with the end of every round"},
        {"only", OPTION_FLAG, &v.only, NULL, "plan this configuration alone, not its neighbours"},
        {"measure", OPTION_FLAG, &v.measure, NULL, "measure an inner step on this machine, print it and end"},
    };
    struct options o = {
        .program = "atoll plan",
        .usage = "[CONFIG] --workers N --link SPEC [options]",
        .about = "Plan a run before it starts: memory, bytes, seconds of a round by part, utilization, time and bytes\n"
                 "of the whole run, also with other methods, H, codecs and overlap, and which of them to choose.\n"
                 "The rounds are computed from rates, delays and measured costs. Faults are left out.",
        OPTION_SPECS(specs),
        .args_max = 1,
        .settings_allowed = true,
    };
    int code = options_main(&o, argc, argv, run_and_erase, &v);
    mem_free(v.ends_s);
    return code;
}
