/* Derived keys (defaults of the method) and checks across keys. */
#include "common/config/config_resolve.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/pool.h"
#include "common/config/codec_choice.h"
#include "common/config/codec_spec.h"
#include "common/config/gpu_share.h"
#include "common/config/schedule.h"
#include "common/config/sync_points.h"

enum status config_refuse(const struct config_resolve *r, const int *keys, const char *fmt, ...)
{
    char text[sizeof r->err->msg];
    assert(*keys >= 0 && *keys < config_keys_count);
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    err_set(r->err, STATUS_INVALID, "%s.%s: %s", config_keys[*keys].section, config_keys[*keys].key, text);
    config_prefix_sources(r->sources, keys, r->err);
    return STATUS_INVALID;
}

/* Keys that depend on the method count as unset if their source is weaker than that of train.method. Otherwise a method
 * from the command line would run with the outer optimizer of another method from the file. */
static void release(const struct config_resolve *r, int index)
{
    uint8_t method_source = r->sources->of[AT(train.method)];
    if (config_unset(r, index) || r->sources->of[index] >= method_source) return;
    char value[CONFIG_VALUE_MAX];
    log_info("%s.%s: replaced %s by the default of train.method %s, which has a stronger source",
             config_keys[index].section, config_keys[index].key, config_value_text(r->config, index, value),
             config_method_name(r->config->train.method));
    r->sources->of[index] = CONFIG_DEFAULT;
}

/* The methods with local steps differ in these defaults only; async and ddp have a policy of their own. */
static const struct method_defaults {
    const char *optimizer, *learning_rate, *momentum; /* of outer; NULL: by the optimizer */
    const char *apply, *stagger;
    uint32_t overlap;
} methods[] = {
    [METHOD_DDP] = {.apply = "replace", .stagger = "off"},
    [METHOD_LOCAL_SGD] = {.optimizer = "sgd", .apply = "correct", .stagger = "off"},
    [METHOD_DILOCO] = {.optimizer = "nesterov", .apply = "correct", .stagger = "off"},
    /* Douillard et al. 2501.18512: rate 0.4, one step of overlap, the mean of both parameters */
    [METHOD_STREAMING] = {.optimizer = "nesterov",
                          .learning_rate = "0.4",
                          .momentum = "0.9",
                          .apply = "mix:0.5",
                          .stagger = "on",
                          .overlap = 1},
    [METHOD_ASYNC] = {.optimizer = "nesterov", .apply = "correct", .stagger = "off"},
};

/* train.overlap, train.apply and train.stagger. */
static enum status resolve_overlap(const struct config_resolve *r)
{
    struct config *c = r->config;
    const struct method_defaults *method = &methods[c->train.method];
    enum apply_rule rule;
    double alpha;
    bool ddp = c->train.method == METHOD_DDP;
    TRY(config_derive_u32(r, AT(train.overlap), method->overlap));
    TRY(config_derive(r, AT(train.stagger), method->stagger));
    TRY(config_derive(r, AT(train.apply), sync_overlaps(c) ? method->apply : "replace"));
    if (!apply_rule_parse(c->train.apply, &rule, &alpha))
        return config_refuse(r, KEYS(AT(train.apply)),
                             "\"%s\" is not valid; allowed: replace, correct, or mix:ALPHA with ALPHA from 0 to 1",
                             c->train.apply);
    if (ddp && sync_overlaps(c))
        return config_refuse(r, KEYS(c->train.overlap ? AT(train.overlap) : AT(train.stagger), AT(train.method)),
                             "does not go with train.method ddp, whose next step needs the update of this one; "
                             "allowed: local-sgd, diloco, streaming, async");
    if (c->train.overlap > c->train.sync_every)
        return config_refuse(r, KEYS(AT(train.overlap), AT(train.sync_every)),
                             "%u exceeds train.sync_every = %u: the next delta would be due before the update; "
                             "nearest: %u",
                             c->train.overlap, c->train.sync_every, c->train.sync_every);
    if (rule == APPLY_REPLACE && c->train.overlap)
        return config_refuse(r, KEYS(AT(train.apply), AT(train.overlap)),
                             "replace would discard the steps after the sync point; allowed: correct, mix:ALPHA");
    return STATUS_OK;
}

bool config_lists_all(const struct config_sources *sources)
{
    for (int i = 0; i < config_keys_count; i++)
        if (!config_keys[i].local && sources->of[i] <= CONFIG_PRESET && i != AT(outer.state)) return false;
    return true;
}

/* The value of a key of section outer with ddp: the outer step follows from inner.*. */
static const char *ddp_outer_value(const struct config *c, int key, char out[CONFIG_VALUE_MAX])
{
    struct config plain = *c;
    if (key == AT(outer.optimizer)) return c->inner.optimizer == OPTIMIZER_ADAMW ? "adamw" : "sgd";
    if (key == AT(outer.learning_rate)) return config_value_text(c, AT(inner.learning_rate), out);
    if (key == AT(outer.momentum)) return "0";
    if (key == AT(outer.state)) return "fp32";
    return config_value_set(&plain, key, config_keys[key].preset, NULL) == STATUS_OK
               ? config_value_text(&plain, key, out)
               : config_keys[key].preset;
}

/* ddp: the coordinator takes the workers' inner step. A value for its outer step would do nothing, or replace it. */
static enum status check_outer_unset(const struct config_resolve *r)
{
    struct config *c = r->config;
    bool lists_all = config_lists_all(r->sources);
    for (int key = 0; key < config_keys_count; key++) {
        char value[CONFIG_VALUE_MAX], usual[CONFIG_VALUE_MAX];
        bool weaker = r->sources->of[key] < r->sources->of[AT(train.method)];
        if (strcmp(config_keys[key].section, "outer") != 0 || config_unset(r, key) || weaker) continue;
        if (lists_all && !strcmp(config_value_text(c, key, value), ddp_outer_value(c, key, usual))) continue;
        return config_refuse(r, KEYS(key, AT(train.method)),
                             "does not go with train.method ddp, whose outer step is the inner optimizer: remove it, "
                             "and set inner.optimizer, inner.learning_rate or inner.schedule instead");
    }
    return STATUS_OK;
}

static enum status resolve_outer(const struct config_resolve *r)
{
    struct config *c = r->config;
    bool ddp = c->train.method == METHOD_DDP;
    release(r, AT(outer.optimizer));
    release(r, AT(outer.learning_rate));
    release(r, AT(outer.momentum));
    if (ddp) TRY(check_outer_unset(r));
    TRY(config_derive(r, AT(outer.optimizer),
                      !ddp                                    ? methods[c->train.method].optimizer
                      : c->inner.optimizer == OPTIMIZER_ADAMW ? "adamw"
                                                              : "sgd"));
    char inner_lr[CONFIG_VALUE_MAX];
    config_value_text(c, AT(inner.learning_rate), inner_lr);
    const struct method_defaults *method = &methods[c->train.method];
    if (method->learning_rate && c->outer.optimizer == OPTIMIZER_NESTEROV) {
        TRY(config_derive(r, AT(outer.learning_rate), method->learning_rate));
        TRY(config_derive(r, AT(outer.momentum), method->momentum));
    }
    switch (c->outer.optimizer) { /* Nesterov 0.7 / 0.9: Douillard et al. 2023; plain mean: lr 1 */
    case OPTIMIZER_SGD:
        TRY(config_derive(r, AT(outer.learning_rate), ddp ? inner_lr : "1"));
        return config_derive(r, AT(outer.momentum), "0");
    case OPTIMIZER_NESTEROV:
        TRY(config_derive(r, AT(outer.learning_rate), "0.7"));
        return config_derive(r, AT(outer.momentum), "0.9");
    case OPTIMIZER_ADAMW:
        if (!ddp)
            return config_refuse(r, KEYS(AT(outer.optimizer), AT(train.method)),
                                 "adamw diverges with train.method %s: write nesterov or sgd, or train.method ddp",
                                 config_method_name(c->train.method));
        TRY(config_derive(r, AT(outer.learning_rate), inner_lr));
        return config_derive(r, AT(outer.momentum), "0");
    case OPTIMIZER_MUON: break; /* not one of outer.optimizer's choices */
    }
    return STATUS_INVALID;
}

static enum status check_grace(const struct config_resolve *r)
{
    const char *text = r->config->outer.grace;
    char *end;
    double seconds = strtod(text, &end);
    if (!strcmp(text, "auto") || (*text && !*end && seconds >= 0 && seconds <= 1e6)) return STATUS_OK;
    return config_refuse(r, KEYS(AT(outer.grace)), "\"%s\" is not valid; allowed: auto, or seconds (0: off)", text);
}

static enum status check_moments(const struct config_resolve *r)
{
    const struct config *c = r->config;
    if (c->inner.moments == PRECISION_FP32) return STATUS_OK;
    if (c->train.method == METHOD_DDP)
        return config_refuse(
            r, KEYS(AT(inner.moments), AT(train.method)),
            "bf16 does not go with train.method ddp: the coordinator takes the step with fp32 moments; "
            "allowed: fp32");
    if (c->inner.optimizer != OPTIMIZER_SGD) return STATUS_OK;
    return config_refuse(r, KEYS(AT(inner.moments), AT(inner.optimizer)),
                         "bf16 does not go with inner.optimizer sgd, which has no moments; allowed: fp32");
}

static enum status resolve_method(const struct config_resolve *r)
{
    struct config *c = r->config;
    if (c->train.method == METHOD_DDP && config_is_external(c))
        return config_refuse(r, KEYS(AT(train.method), AT(model.family)),
                             "ddp does not go with model.family external: its optimizer runs at the coordinator, but "
                             "the worker's program owns the optimizer; allowed: local-sgd, diloco, async; nearest: "
                             "local-sgd with train.sync_every 1");
    if (c->train.method == METHOD_DDP && c->inner.optimizer == OPTIMIZER_MUON)
        return config_refuse(
            r, KEYS(AT(inner.optimizer), AT(train.method)),
            "muon does not go with train.method ddp: the coordinator takes the step without matrix products; "
            "allowed: adamw, sgd; nearest: train.method local-sgd, train.sync_every 1");
    if (!config_is_external(c)) TRY(check_moments(r));
    TRY(resolve_outer(r));
    TRY(check_grace(r));
    if (c->train.method == METHOD_DDP) {
        int h = AT(train.sync_every);
        if (!config_unset(r, h) && c->train.sync_every != 1)
            log_info("train.sync_every: %u does not apply to ddp, which synchronizes every step", c->train.sync_every);
        if (c->train.sync_every != 1) r->sources->of[h] = CONFIG_DEFAULT;
        TRY(config_derive(r, h, "1"));
        release(r, AT(codec.up));
        release(r, AT(codec.down));
        TRY(config_derive(r, AT(codec.up), "fp32"));
        TRY(config_derive(r, AT(codec.down), "fp32"));
    } else if (config_unset(r, AT(train.sync_every)) && c->train.sync_every > c->train.max_steps) {
        TRY(config_derive_u32(r, AT(train.sync_every), c->train.max_steps)); /* a short trial run: one round */
    }
    return resolve_overlap(r);
}

/* A sparse codec with byte stages: its payload cannot be merged in place. */
static bool sparse_in_stages(const char *spec)
{
    return codec_spec_sparse(spec) && codec_spec_staged(spec);
}

/* relay: workers merge the deltas and take the outer step themselves. union, auto: values that no delta carries do not
 * change. Both allow only plain SGD. auto decides each round where relay and union are both possible. */
static enum status resolve_down(const struct config_resolve *r)
{
    struct config *c = r->config;
    bool sparse = codec_spec_sparse(c->codec.up), async = c->train.method == METHOD_ASYNC;
    enum config_down down = config_down(c);
    if (down == CONFIG_DOWN_CODEC) return STATUS_OK;
    if (down == CONFIG_DOWN_AUTO && (!sparse || async)) {
        log_info("codec.down: auto selects %s", sparse ? "union" : c->codec.up);
        if (!sparse) memcpy(c->codec.down, c->codec.up, sizeof c->codec.down);
        return sparse ? config_value_set(c, AT(codec.down), "union", r->err) : STATUS_OK;
    }
    if (down == CONFIG_DOWN_UNION && !sparse)
        return config_refuse(r, KEYS(AT(codec.down), AT(codec.up)),
                             "union needs a sparse codec.up, not %.60s; allowed: a codec, relay, auto", c->codec.up);
    if (down == CONFIG_DOWN_RELAY && (async || c->train.method == METHOD_DDP))
        return config_refuse(
            r, KEYS(AT(codec.down), AT(train.method)),
            "relay does not go with train.method %s: workers cannot repeat its outer step from the deltas; "
            "allowed: a codec%s, auto",
            config_method_name(c->train.method), sparse ? ", union" : "");
    if (down != CONFIG_DOWN_UNION && sparse_in_stages(c->codec.up))
        return config_refuse(r, KEYS(AT(codec.down), AT(codec.up)),
                             "%.40s does not go with byte stages on a sparse codec.up, %.60s: leave them out "
                             "(they gain nothing there)",
                             c->codec.down, c->codec.up);
    if (c->outer.optimizer == OPTIMIZER_SGD && c->train.method != METHOD_DDP) return STATUS_OK;
    char optimizer[CONFIG_VALUE_MAX];
    config_value_text(c, AT(outer.optimizer), optimizer);
    return config_refuse(r, KEYS(AT(codec.down), AT(outer.optimizer), AT(train.method)),
                         "%.40s needs outer.optimizer sgd (without momentum) and a train.method other than ddp; "
                         "with outer.optimizer %s and train.method %s allowed: a codec such as int8:256%s%.40s",
                         c->codec.down, optimizer, config_method_name(c->train.method), sparse ? " or " : "",
                         sparse ? c->codec.up : "");
}

/* A run whose settings lack the key keeps fp32 (coordinator/settings.c). `auto` is the same as no value. */
static enum status resolve_state(const struct config_resolve *r)
{
    struct config *c = r->config;
    if (c->train.method == METHOD_DDP) { /* a value of the same source was refused: check_outer_unset */
        release(r, AT(outer.state));
        c->outer.state = OUTER_AUTO;
    }
    if (c->outer.state != OUTER_AUTO) return STATUS_OK;
    bool lean = c->train.method == METHOD_DILOCO && config_down_loses(c);
    r->sources->of[AT(outer.state)] = CONFIG_PRESET; /* also if `auto` was given: a run that continues keeps its form */
    return config_value_set(c, AT(outer.state), lean ? "bf16" : "fp32", r->err);
}

/* Workers with codecs of their own: their deltas are merged in fp32, where no coordinate is unsent. */
static enum status check_up_allowed(const struct config_resolve *r)
{
    const struct config *c = r->config;
    char specs[CONFIG_UP_MAX][CODEC_SPEC_MAX];
    if (!config_up_mixed(c)) return STATUS_OK;
    if (!config_up_specs(c, specs))
        return config_refuse(r, KEYS(AT(codec.up_allowed)),
                             "\"%.100s\" is not a list of at most %d codecs; write them as int8:256,topk:64/4096",
                             c->codec.up_allowed, CONFIG_UP_MAX - 1);
    if (c->train.method == METHOD_DDP)
        return config_refuse(r, KEYS(AT(codec.up_allowed), AT(train.method)),
                             "does not go with train.method ddp; allowed: local-sgd, diloco, streaming, async");
    if (config_down(c) != CONFIG_DOWN_CODEC)
        return config_refuse(
            r, KEYS(AT(codec.up_allowed), AT(codec.down)),
            "does not go with codec.down %.40s, which needs deltas of one codec; allowed: a codec such "
            "as int8:256",
            c->codec.down);
    if (c->merge.rule == MERGE_CONTRIBUTORS)
        return config_refuse(r, KEYS(AT(merge.rule), AT(codec.up_allowed)),
                             "contributors does not go with codec.up_allowed: a dense delta sends every coordinate; "
                             "allowed: mean");
    return STATUS_OK;
}

/* A coordinate of a sparse delta has few senders: the mean over all workers would shrink it. */
static enum status resolve_merge(const struct config_resolve *r)
{
    bool sparse = codec_spec_sparse(config_merge_spec(r->config, false));
    return config_derive(r, AT(merge.rule), sparse ? "contributors" : "mean"); /* equal rules for dense deltas */
}

/* rda needs all values of all deltas at the coordinator. */
static enum status check_rda(const struct config_resolve *r)
{
    const struct config *c = r->config;
    enum config_down down = config_down(c);
    if (c->merge.rule != MERGE_RDA) return STATUS_OK;
    if (c->train.method == METHOD_DDP)
        return config_refuse(r, KEYS(AT(merge.rule), AT(train.method)),
                             "rda does not go with train.method ddp, whose gradient is a sum over tokens; "
                             "allowed: mean");
    if (codec_spec_sparse(config_merge_spec(c, false)))
        return config_refuse(r, KEYS(AT(merge.rule), AT(codec.up)),
                             "rda needs a dense codec.up, not %.60s; allowed: contributors, mean", c->codec.up);
    if (down == CONFIG_DOWN_RELAY || down == CONFIG_DOWN_UNION || down == CONFIG_DOWN_AUTO)
        return config_refuse(r, KEYS(AT(merge.rule), AT(codec.down)),
                             "rda does not go with codec.down %.40s; allowed: mean, or a codec such as int8:256",
                             c->codec.down);
    return STATUS_OK;
}

/* A list such as cuda:0,1 implies one rank per GPU. */
static enum status resolve_ranks(const struct config_resolve *r)
{
    const struct config *c = r->config;
    uint32_t n = gpu_share_count_listed(c->train.devices);
    TRY(gpu_share_check(c, r->sources, r->err));
    if (!n) return STATUS_OK;
    TRY(config_derive_u32(r, AT(train.ranks), n));
    if (c->train.ranks == n) return STATUS_OK;
    return config_refuse(r, KEYS(AT(train.ranks), AT(train.devices)),
                         "%u does not match the %u GPU%s of train.devices, \"%s\": remove it or set %u", c->train.ranks,
                         n, n > 1 ? "s" : "", c->train.devices, n);
}

/* sqrt and linear get the number of workers. coordinator/settings.c replaces it by that of a run which continues. */
static enum status resolve_scaling(const struct config_resolve *r)
{
    struct config *c = r->config;
    char *text = c->inner.scaling;
    enum scaling scaling;
    uint32_t workers;
    if (!scaling_parse(text, &scaling, &workers))
        return config_refuse(r, KEYS(AT(inner.scaling)),
                             "\"%s\" is not valid; allowed: none, sqrt, linear, sqrt:WORKERS or linear:WORKERS", text);
    if (scaling == SCALING_NONE || workers) return STATUS_OK;
    size_t n = strlen(text);
    snprintf(text + n, sizeof c->inner.scaling - n, ":%u", c->coordinator.min_workers);
    r->sources->of[AT(inner.scaling)] = CONFIG_PRESET;
    return STATUS_OK;
}

static enum status check_start_step(const struct config_resolve *r)
{
    const struct config *c = r->config;
    if (!c->train.start_step) return STATUS_OK;
    if (c->train.method == METHOD_DDP)
        return config_refuse(r, KEYS(AT(train.start_step), AT(train.method)),
                             "does not go with train.method ddp, whose rounds have one step; allowed: local-sgd, "
                             "diloco, streaming; nearest: 0");
    if (c->train.method == METHOD_ASYNC)
        return config_refuse(r, KEYS(AT(train.start_step), AT(train.method)),
                             "does not go with train.method async, which has no common rounds to average in; allowed: "
                             "local-sgd, diloco, streaming; nearest: 0");
    if (c->train.start_step >= c->train.max_steps)
        return config_refuse(
            r, KEYS(AT(train.start_step), AT(train.max_steps)),
            "%u leaves no step of train.max_steps = %u for longer rounds; nearest: %u, or train.method "
            "local-sgd with train.sync_every 1",
            c->train.start_step, c->train.max_steps, c->train.max_steps - 1);
    return STATUS_OK;
}

static enum status check_eval_every(const struct config_resolve *r)
{
    const char *text = r->config->train.eval_every;
    bool by_steps;
    if (config_eval_every(r->config, &by_steps) || !strcmp(text, "0") || !strcmp(text, "0 steps")) return STATUS_OK;
    return config_refuse(r, KEYS(AT(train.eval_every)),
                         "\"%s\" is not valid; allowed: a number of rounds, or of steps such as 100 steps; 0: only at "
                         "the end",
                         text);
}

static enum status check_worker_every(const struct config_resolve *r)
{
    if (config_worker_every(r->config) != UINT32_MAX) return STATUS_OK;
    return config_refuse(r, KEYS(AT(checkpoint.worker_every)),
                         "\"%s\" is not valid; allowed: a number of rounds below 4294967295, 0: never, or auto",
                         r->config->checkpoint.worker_every);
}

static enum status check_train(const struct config_resolve *r)
{
    const struct config *c = r->config;
    char nearest[48];
    if (c->train.sync_every > c->train.max_steps)
        return config_refuse(r, KEYS(AT(train.sync_every), AT(train.max_steps)),
                             "%u exceeds train.max_steps = %u: no round would end; nearest: %u", c->train.sync_every,
                             c->train.max_steps, c->train.max_steps);
    if (c->train.batch_size % c->train.ranks)
        return config_refuse(r, KEYS(AT(train.batch_size), AT(train.ranks), AT(train.devices)),
                             "%u is not divisible by train.ranks = %u; nearest: %s", c->train.batch_size,
                             c->train.ranks, config_multiples(c->train.batch_size, c->train.ranks, nearest));
    if (c->train.grad_accum > UINT32_MAX / c->train.batch_size)
        return config_refuse(r, KEYS(AT(train.grad_accum), AT(train.batch_size)),
                             "%u micro-steps of train.batch_size = %u exceed %u sequences per step; nearest: %u",
                             c->train.grad_accum, c->train.batch_size, UINT32_MAX, UINT32_MAX / c->train.batch_size);
    uint32_t threads = (c->train.threads + c->train.ranks - 1) / c->train.ranks;
    if (threads > POOL_THREADS_MAX)
        return config_refuse(r, KEYS(AT(train.threads), AT(train.ranks)),
                             "%u gives %u per rank (train.ranks = %u), more than %d; nearest: %u", c->train.threads,
                             threads, c->train.ranks, POOL_THREADS_MAX, POOL_THREADS_MAX * c->train.ranks);
    bool by_steps;
    if (config_eval_every(c, &by_steps) && !config_is_external(c) && c->train.eval_tokens < c->model.block_size)
        return config_refuse(r, KEYS(AT(train.eval_tokens), AT(model.block_size)),
                             "%llu is less than one block; nearest: %u", (unsigned long long)c->train.eval_tokens,
                             c->model.block_size);
    if (c->train.method == METHOD_DDP && c->train.dynamic_steps == CHOICE_ON)
        return config_refuse(
            r, KEYS(AT(train.dynamic_steps), AT(train.method)),
            "on does not go with train.method ddp, where workers take one step per round; allowed: auto, off");
    return STATUS_OK;
}

/* all | N | N% */
static enum status check_quorum(const struct config_resolve *r)
{
    const struct config *c = r->config;
    const char *text = c->coordinator.quorum;
    if (!strcmp(text, "all")) return STATUS_OK;
    size_t digits = strspn(text, "0123456789");
    bool percent = digits && !strcmp(text + digits, "%");
    long value = digits && digits <= 6 ? atol(text) : 0;
    uint32_t most = percent ? 100 : c->coordinator.max_workers;
    if (value >= 1 && value <= (long)most && (percent || !text[digits])) return STATUS_OK;
    return config_refuse(r, KEYS(AT(coordinator.quorum)),
                         "\"%s\" is not valid; allowed: all, 1 to %u (coordinator.max_workers), or 1%% to 100%%", text,
                         c->coordinator.max_workers);
}

/* tcp://HOST:PORT, port 1 to 65535 or *. HOST is resolved only when the coordinator listens. */
static bool listen_ok(const char *text)
{
    if (strncmp(text, "tcp://", 6)) return false;
    const char *port = strrchr(text + 6, ':');
    if (!port || port == text + 6) return false;
    port++;
    if (!strcmp(port, "*")) return true;
    size_t digits = strspn(port, "0123456789");
    return digits && digits <= 5 && !port[digits] && atol(port) >= 1 && atol(port) <= 65535;
}

static enum status check_coordinator(const struct config_resolve *r)
{
    const struct config *c = r->config;
    TRY(check_quorum(r));
    if (!listen_ok(c->coordinator.listen))
        return config_refuse(r, KEYS(AT(coordinator.listen)),
                             "\"%.80s\" is not an address; write tcp://HOST:PORT, port 1 to 65535 or * (any free port)",
                             c->coordinator.listen);
    if (c->coordinator.min_workers > c->coordinator.max_workers)
        return config_refuse(r, KEYS(AT(coordinator.min_workers), AT(coordinator.max_workers)),
                             "%u exceeds coordinator.max_workers = %u; nearest: %u", c->coordinator.min_workers,
                             c->coordinator.max_workers, c->coordinator.max_workers);
    size_t n = strlen(c->run.name);
    if (!n || c->run.name[0] == '.' ||
        strspn(c->run.name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                            "0123456789._-") != n)
        return config_refuse(r, KEYS(AT(run.name)),
                             "\"%s\" is not valid; allowed: letters, digits, '.', '_', '-', not starting with '.'",
                             c->run.name);
    const int codecs[] = {AT(codec.up), AT(codec.down)};
    for (int i = 0; i < 2; i++)
        if (!(i ? c->codec.down : c->codec.up)[0])
            return config_refuse(r, KEYS(codecs[i]), "is empty; write fp32 for no compression");
    return STATUS_OK;
}

enum status config_resolve(struct config *config, struct config_sources *sources, struct err *err)
{
    struct config_resolve r = {config, sources, err};
    TRY(config_model_resolve(&r));
    TRY(resolve_method(&r));
    TRY(resolve_merge(&r));
    TRY(check_up_allowed(&r));
    TRY(resolve_down(&r));
    TRY(resolve_state(&r));
    TRY(check_rda(&r));
    TRY(resolve_ranks(&r));
    TRY(check_eval_every(&r));
    TRY(check_worker_every(&r));
    TRY(check_train(&r));
    TRY(check_start_step(&r));
    TRY(resolve_scaling(&r));
    return check_coordinator(&r);
}
