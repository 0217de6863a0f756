#include "coordinator/settings.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/text.h"
#include "common/config/codec_choice.h"
#include "common/config/config_init.h"
#include "common/config/config_resolve.h"
#include "common/config/gpu_share.h"
#include "common/config/schedule.h"
#include "common/config/sync_points.h"
#include "common/os/fileio.h"
#include "compress/codec.h"
#include "coordinator/run_folder.h"
#include "wire/endpoint.h"

enum { EVICT_MIN_S = 2 }; /* workers send a heartbeat every second; a shorter limit would evict all of them */

/* Resolves the configuration for one worker of `atoll launch`: a list of GPUs may be for several workers, and the batch
 * size is per worker. Restores train.devices as it was written. */
static enum status resolve(struct config *config, struct config_sources *sources, struct err *err)
{
    struct gpu_share share;
    char devices[sizeof config->train.devices];
    memcpy(devices, config->train.devices, sizeof devices);
    TRY(gpu_share_from_env(&share, err));
    TRY(gpu_share_apply(&share, gpu_share_count_listed(devices), 0, config, sources, err));
    TRY(config_resolve(config, sources, err));
    memcpy(config->train.devices, devices, sizeof devices);
    return STATUS_OK;
}

/* Prefixes r->err with this key and the source of its value. Returns INVALID. */
static enum status prefix_key(const struct config_resolve *r, int index)
{
    err_prefix(r->err, "%s.%s", config_keys[index].section, config_keys[index].key);
    config_prefix_sources(r->sources, KEYS(index), r->err);
    return STATUS_INVALID;
}

/* Reads the settings of the run that `run_dir` holds. False: none. */
static bool read_begun(struct config *begun, const char *run_dir)
{
    char path[FILEIO_PATH_MAX];
    struct config_sources sources;
    config_defaults(begun, &sources);
    return run_dir && (size_t)snprintf(path, sizeof path, "%s/config.yaml", run_dir) < sizeof path &&
           config_load(begun, &sources, path, NULL) == STATUS_OK;
}

static bool begun_from(struct config *begun, const char *run_dir, const char *init_from)
{
    return read_begun(begun, run_dir) && !strcmp(begun->model.init_from, init_from);
}

/* A run that continues keeps its learning rate, whatever coordinator.min_workers is now. */
static void keep_scaling(struct config *config, const struct config_sources *sources, const char *run_dir)
{
    struct config begun;
    enum scaling scaling, before;
    uint32_t workers;
    if (sources->of[AT(inner.scaling)] != CONFIG_PRESET) return; /* none, or the number is given */
    if (!scaling_parse(config->inner.scaling, &scaling, &workers) || !read_begun(&begun, run_dir)) return;
    if (scaling_parse(begun.inner.scaling, &before, &workers) && before == scaling)
        memcpy(config->inner.scaling, begun.inner.scaling, sizeof config->inner.scaling);
}

/* A run that continues keeps the form of its outer state. A run of a release without the key has fp32. */
static void keep_state(struct config *config, const struct config_sources *sources, const char *run_dir)
{
    struct config begun;
    if (sources->of[AT(outer.state)] > CONFIG_PRESET || !read_begun(&begun, run_dir)) return;
    if (begun.train.method != config->train.method) return; /* no worker has joined it, or it is refused */
    config->outer.state = begun.outer.state == OUTER_BF16 ? OUTER_BF16 : OUTER_FP32;
}

void settings_keep_budget(struct config *config, const char *run_dir)
{
    struct config begun;
    uint32_t *workers = &config->coordinator.min_workers;
    if (config->train.method != METHOD_ASYNC || !read_begun(&begun, run_dir)) return;
    json_t *round = run_folder_last_event(run_dir, "round");
    if (round && *workers != begun.coordinator.min_workers) {
        log_info("coordinator.min_workers: this async run keeps %u, the number of its first start, not %u: its budget "
                 "is train.max_steps x %u steps",
                 begun.coordinator.min_workers, *workers, begun.coordinator.min_workers);
        *workers = begun.coordinator.min_workers;
    }
    json_decref(round);
}

uint32_t settings_begun_workers(const char *run_dir)
{
    struct config begun;
    return read_begun(&begun, run_dir) ? begun.coordinator.min_workers : 0;
}

static enum status read_init(const struct config_resolve *r, const char *run_dir)
{
    const char *folder = r->config->model.init_from;
    struct config init;
    if (!*folder || !strcmp(folder, "scratch") || config_is_external(r->config)) return STATUS_OK;
    enum status status = config_init_load(&init, folder, r->err);
    if (status == STATUS_NOTFOUND && !begun_from(&init, run_dir, folder)) return STATUS_OK; /* engine_check_sources */
    if (status != STATUS_OK && status != STATUS_NOTFOUND) return err_prefix(r->err, "model.init_from");
    TRY(config_model_preset(r));
    return config_init_model(r->config, r->sources, &init, folder, r->err);
}

static enum status read_all(struct config *config, struct config_sources *sources, const char *path,
                            const char *run_dir, const struct options *options, struct err *err)
{
    config_defaults(config, sources);
    if (path) TRY(config_load(config, sources, path, err));
    TRY(config_env(config, sources, err));
    for (size_t i = 0; i < options->n_settings; i++)
        TRY(config_set(config, sources, options->settings[i], CONFIG_FLAG, err));
    const struct config_resolve r = {config, sources, err};
    TRY(read_init(&r, run_dir));
    TRY(resolve(config, sources, err));
    keep_scaling(config, sources, run_dir);
    keep_state(config, sources, run_dir);
    if (codec_spec_check(config->codec.up, err) != STATUS_OK) return prefix_key(&r, AT(codec.up));
    char down[CODEC_SPEC_MAX], specs[CONFIG_UP_MAX][CODEC_SPEC_MAX];
    uint32_t n = config_up_specs(config, specs);
    for (uint32_t i = 1; i < n; i++)
        if (codec_spec_check(specs[i], err) != STATUS_OK) return prefix_key(&r, AT(codec.up_allowed));
    config_down_spec(config, false, down);
    if (down[0] && codec_spec_check(down, err) != STATUS_OK) return prefix_key(&r, AT(codec.down));
    double evict_s = config->coordinator.evict_after_s;
    if (evict_s > 0 && evict_s < EVICT_MIN_S)
        return config_refuse(&r, KEYS(AT(coordinator.evict_after_s)),
                             "%g is less than two heartbeats of a worker; use at least %d, or 0 (measured)", evict_s,
                             EVICT_MIN_S);
    char endpoint[sizeof config->coordinator.advertise + 16];
    const char *advertise = config->coordinator.advertise;
    if (strcmp(advertise, "auto") != 0 &&
        endpoint_advertised(endpoint, sizeof endpoint, advertise, "tcp://127.0.0.1:1", err) != STATUS_OK)
        return prefix_key(&r, AT(coordinator.advertise));
    return STATUS_OK;
}

enum status settings_read(struct config *config, struct config_sources *sources, const char *path, const char *run_dir,
                          const struct options *options, struct err *err)
{
    return read_all(config, sources, path, run_dir, options, err) == STATUS_OK ? STATUS_OK
                                                                               : (err->code = STATUS_INVALID);
}

enum status settings_find(const struct options *options, const char *run_dir, char *out, size_t cap, struct err *err)
{
    char journal[FILEIO_PATH_MAX];
    if (options->n_args)
        return (size_t)snprintf(out, cap, "%s", options->args[0]) < cap
                   ? STATUS_OK
                   : err_set(err, STATUS_INVALID, "the path %.200s... is too long", options->args[0]);
    if ((size_t)snprintf(out, cap, "%s/config.yaml", run_dir) >= cap ||
        (size_t)snprintf(journal, sizeof journal, "%s/journal", run_dir) >= sizeof journal)
        return err_set(err, STATUS_INVALID, "the path %.200s... is too long", run_dir);
    if (file_exists(journal) && file_exists(out)) return STATUS_OK;
    return err_set(err, STATUS_INVALID, "CONFIG is missing, and %.300s holds no run to continue: usage is %s %s",
                   run_dir, options->program, options->usage);
}

/* A key that has an effect only under a condition, and that condition in words. */
struct effect {
    int key;
    bool has;
    const char *needs;
};

enum { EFFECTS = 16 };

static void effects_of(const struct config *c, struct effect out[EFFECTS])
{
    const bool async = c->train.method == METHOD_ASYNC, local_steps = c->train.method != METHOD_DDP;
    const bool overlaps = local_steps && sync_overlaps(c);
    /* Without overlap replace names what happens, but only with local steps. */
    const bool replaces = local_steps && !strcmp(c->train.apply, "replace");
    const bool outer_mean = c->outer.optimizer == OPTIMIZER_SGD && c->outer.learning_rate == 1;
    const bool starts = !c->train.start_step || c->train.sync_every > 1 || !outer_mean;
    const bool by_speed = local_steps || c->train.dynamic_steps == CHOICE_OFF;
    bool by_steps;
    const bool evaluates = config_eval_every(c, &by_steps) > 0;
    const bool rule = c->merge.rule != MERGE_CONTRIBUTORS || codec_spec_sparse(c->codec.up);
    const bool momentum = c->outer.optimizer == OPTIMIZER_NESTEROV || c->outer.momentum == 0;
    const bool adam = c->inner.optimizer != OPTIMIZER_SGD || c->outer.optimizer == OPTIMIZER_ADAMW;
    const bool schedule = c->inner.schedule != SCHEDULE_CONSTANT;
    const bool stores = c->outer.state != OUTER_BF16 || config_outer_vectors(c) || config_down_loses(c);
    const struct effect effects[EFFECTS] = {
        {AT(coordinator.quorum), !async, "a train.method with a barrier (not async)"},
        {AT(train.dynamic_steps), by_speed, "another train.method than ddp"},
        {AT(train.overlap), local_steps, "another train.method than ddp"},
        {AT(train.stagger), local_steps, "another train.method than ddp"},
        {AT(train.apply), overlaps || replaces, "train.overlap or train.stagger"},
        {AT(train.start_step), starts, "train.sync_every above 1, or another outer step than the plain mean"},
        {AT(train.eval_tokens), evaluates, "train.eval_every above 0"},
        {AT(merge.rule), rule, "a sparse codec.up"},
        {AT(outer.momentum), momentum, "outer.optimizer nesterov"},
        {AT(outer.state), stores, "momentum, or a codec.down that loses something"},
        {AT(outer.max_staleness), async, "train.method async"},
        {AT(outer.grace), async, "train.method async"},
        {AT(inner.beta1), adam, "inner.optimizer adamw or muon"},
        {AT(inner.beta2), adam, "inner.optimizer adamw or muon"},
        {AT(inner.eps), adam, "inner.optimizer adamw or muon"},
        {AT(inner.min_lr_fraction), schedule, "another inner.schedule than constant"},
    };
    memcpy(out, effects, sizeof effects);
}

/* model.family external: the workers' own programs decide these keys. */
static bool is_of_program(int key)
{
    static const char *const others[] = {"data.train",      "data.val",      "train.precision",
                                         "train.recompute", "train.threads", "train.ranks",
                                         "train.devices",   "model.*",       "inner.*"};
    char name[CONFIG_NAME_MAX];
    const struct config_key *k = &config_keys[key];
    if (key == AT(model.family) || key == AT(model.init_from)) return false;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(name, sizeof name, "%s.%s", k->section, strchr(others[i], '*') ? "*" : k->key);
        if (!strcmp(name, others[i])) return true;
    }
    return false;
}

/* A run's config.yaml lists all keys: of these only values other than the default count. */
static bool is_given(const struct config *c, const struct config_sources *sources, const struct config *usual, int key)
{
    char value[CONFIG_VALUE_MAX], other[CONFIG_VALUE_MAX];
    if (sources->of[key] <= CONFIG_PRESET) return false;
    if (!config_lists_all(sources)) return true;
    return strcmp(config_value_text(c, key, value), config_value_text(usual, key, other)) != 0;
}

/* Names all keys in one line. */
static void warn_of_external(const struct config *c, const struct config_sources *sources, const struct config *usual)
{
    char names[400] = "";
    for (int key = 0; key < config_keys_count; key++)
        if (is_of_program(key) && is_given(c, sources, usual, key))
            text_add(names, sizeof names, "%s%s.%s", names[0] ? ", " : "", config_keys[key].section,
                     config_keys[key].key);
    if (names[0])
        log_warn("no effect with model.family external, where the workers' programs own model and inner optimizer: %s",
                 names);
}

/* Warns of each key that the user set without effect. */
static void warn_of_idle_keys(const struct config *c, const struct config_sources *sources)
{
    struct config usual;
    struct config_sources none;
    config_defaults(&usual, &none);
    if (config_is_external(c)) warn_of_external(c, sources, &usual);
    struct effect effects[EFFECTS];
    effects_of(c, effects);
    for (int i = 0; i < EFFECTS; i++) {
        char value[CONFIG_VALUE_MAX];
        const int key = effects[i].key;
        if (effects[i].has || !is_given(c, sources, &usual, key)) continue;
        if (config_is_external(c) && is_of_program(key)) continue;
        log_warn("%s.%s: %s has no effect: it needs %s", config_keys[key].section, config_keys[key].key,
                 config_value_text(c, key, value), effects[i].needs);
    }
}

static void log_scaling(const struct config *c)
{
    enum scaling scaling;
    uint32_t n;
    if (!scaling_parse(c->inner.scaling, &scaling, &n) || scaling == SCALING_NONE || config_is_external(c)) return;
    log_info("the inner learning rate is %g = %g x %s%u worker%s%s (inner.scaling %s)", lr_inner_peak(c),
             c->inner.learning_rate, scaling == SCALING_SQRT ? "sqrt(" : "", n, n > 1 ? "s" : "",
             scaling == SCALING_SQRT ? ")" : "", c->inner.scaling);
}

static void warn_of_no_steps(const struct config *c)
{
    if (c->inner.learning_rate == 0 && !config_is_external(c)) log_warn("inner.learning_rate: 0 trains nothing");
    if (c->train.method != METHOD_DDP && c->outer.learning_rate == 0) log_warn("outer.learning_rate: 0 trains nothing");
}

void settings_warn(const struct config *c, const struct config_sources *sources)
{
    uint32_t start = c->train.start_step, period = codec_spec_period(c->codec.up);
    uint32_t rounds = start + (c->train.max_steps - start) / c->train.sync_every;
    config_env_warn();
    warn_of_idle_keys(c, sources);
    warn_of_no_steps(c);
    log_scaling(c);
    if (c->inner.warmup_steps >= c->train.max_steps && !config_is_external(c))
        log_warn("inner.warmup_steps: %u exceeds train.max_steps = %u: the learning rate never reaches its peak",
                 c->inner.warmup_steps, c->train.max_steps);
    if (rounds < period)
        log_warn("codec.up: %s sends each coordinate about once in %u rounds, but this run has %u rounds: use int4 or "
                 "1bit instead",
                 c->codec.up, period, rounds);
    if (period && c->outer.optimizer == OPTIMIZER_NESTEROV && c->outer.momentum > 0)
        log_warn("outer.momentum: %g overshoots with codec.up %s, whose residual acts as momentum: use outer.optimizer "
                 "sgd with outer.learning_rate 1",
                 c->outer.momentum, c->codec.up);
}
