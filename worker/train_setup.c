/* Builds model, data and optimizer from the run's configuration. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/base/units.h"
#include "common/config/codec_choice.h"
#include "common/config/config_resolve.h"
#include "gpu/plugin.h"
#include "worker/replica/memory_plan.h"
#include "worker/replica_setup.h"
#include "worker/step_split.h"
#include "worker/train_data.h"
#include "worker/train_impl.h"

void train_setup_init(struct trainer *t, struct train_options *options)
{
    memset(t, 0, sizeof *t);
    t->options = options;
    layout_init(&t->layout);
}

void train_setup_finish(struct trainer *t)
{
    assert(!t->data_hash.started);
    replica_destroy(t->replica);
    pool_destroy(t->pool);
    tokens_close(&t->train);
    tokens_close(&t->val);
    layout_finish(&t->layout);
    mem_free(t->counters);
}

/* --- the inner optimizer as bytes --------------------------------------------------------------------------------- */

static size_t inner_parts(void *ctx, struct outer_part *parts, size_t cap)
{
    struct trainer *t = ctx;
    struct inner_opt *opt = replica_optimizer(t->replica);
    const void *m, *v;
    struct err err = {0};
    size_t bytes = opt->n_params * opt->moment, n = 0;
    if (cap < 3) return 0;
    if (inner_opt_read(opt, &m, &v, &err) != STATUS_OK) {
        log_error("cannot read the inner optimizer's state: %s", err.msg);
        return 0;
    }
    t->inner_head[0] = opt->steps;
    t->inner_head[1] = opt->skipped;
    parts[n++] = (struct outer_part){.data = t->inner_head, .size = sizeof t->inner_head};
    if (m) parts[n++] = (struct outer_part){.data = m, .size = bytes};
    if (v) parts[n++] = (struct outer_part){.data = v, .size = bytes};
    return n;
}

static enum status inner_load(void *ctx, const uint8_t *data, size_t size)
{
    struct trainer *t = ctx;
    struct inner_opt *opt = replica_optimizer(t->replica);
    size_t bytes = opt->n_params * opt->moment, at = sizeof t->inner_head;
    if (data && size != at + 2 * bytes) return STATUS_MISMATCH;
    memset(t->inner_head, 0, sizeof t->inner_head);
    if (data) memcpy(t->inner_head, data, sizeof t->inner_head);
    opt->steps = t->inner_head[0];
    opt->skipped = t->inner_head[1];
    return inner_opt_write(opt, data ? data + at : NULL, data ? data + at + bytes : NULL, NULL);
}

bool train_fill_counters(const struct msg_assign *task, uint64_t from, uint64_t *counters, uint32_t n)
{
    uint32_t filled = 0;
    for (uint32_t i = 0; i < task->n_ranges && filled < n; i++) {
        const struct wire_range *r = &task->ranges[i];
        if (from >= r->count) {
            from -= r->count;
            continue;
        }
        for (; from < r->count && filled < n; from++) counters[filled++] = r->start + from;
        from = 0;
    }
    return filled == n;
}

/* --- on_config ---------------------------------------------------------------------------------------------------- */

/* Takes this worker's own codec.up, if the run allows it. */
static enum status take_codec(struct trainer *t, struct err *err)
{
    char specs[CONFIG_UP_MAX][CODEC_SPEC_MAX];
    const char *own = t->options->local->codec.up;
    if (t->options->sources->of[AT(codec.up)] != CONFIG_FLAG) return STATUS_OK;
    for (uint32_t i = 0, n = config_up_specs(&t->config, specs); i < n; i++) {
        if (strcmp(specs[i], own) != 0) continue;
        memcpy(t->config.codec.up, own, sizeof t->config.codec.up);
        return STATUS_OK;
    }
    return err_set(err, STATUS_INVALID,
                   "command line: codec.up: the run does not allow \"%s\": its codec.up is %s, codec.up_allowed is "
                   "\"%s\"; use one of these, or add it at the coordinator in a new run",
                   own, t->config.codec.up, t->config.codec.up_allowed);
}

static uint32_t count_gpus(const struct config *c)
{
    uint32_t listed = gpu_share_count_listed(c->train.devices);
    int count = listed || !strcmp(c->train.devices, "cpu") ? 0 : plugin_cuda_count();
    return listed ? listed : count > 0 ? (uint32_t)count : 0;
}

/* Logs why GPUs are idle. single_reason: why a worker cannot use two GPUs, or NULL. */
static void warn_idle_gpus(const struct gpu_share *s, const struct config *c, bool chosen, const char *single_reason)
{
    char why[320];
    uint32_t part = s->gpus / s->workers;
    if (chosen)
        snprintf(why, sizeof why, "train.ranks=%u", s->ranks);
    else if (single_reason)
        snprintf(why, sizeof why, "%.300s", single_reason);
    else if (s->ranks < part)
        snprintf(why, sizeof why, "train.batch_size=%u is not divisible by %u", c->train.batch_size, part);
    else
        snprintf(why, sizeof why, "a number of workers that divides %u uses all GPUs", s->gpus);
    log_warn("%u of %u GPUs are idle: %u worker%s with %u each; %s", s->idle, s->gpus, s->workers,
             s->workers > 1 ? "s" : "", s->ranks, why);
}

/* Sets train.devices and train.ranks to this worker's share of the GPUs; called before config_resolve. `auto` and
 * `cuda` are all GPUs that CUDA_VISIBLE_DEVICES allows. The plugin counts them without using their memory. Logs the
 * share; the first worker also logs idle GPUs. INVALID: see gpu_share_from_env and gpu_share_apply. */
static enum status take_device_share(struct gpu_share *share, struct config *config, struct config_sources *sources,
                                     struct err *err)
{
    char text[256], asked[CONFIG_NAME_MAX];
    struct err single_reason = {0};
    TRY(gpu_share_from_env(share, err));
    if (!share->workers) return STATUS_OK;
    TRY(gpu_share_check(config, sources, err));
    memcpy(asked, config->train.devices, sizeof asked);
    bool chosen = sources->of[config_key_at(offsetof(struct config, train.ranks))] > CONFIG_PRESET;
    uint32_t gpus = count_gpus(config);
    /* Several GPUs per worker are only a default here: use one if they cannot work together. */
    bool several = gpus / share->workers > 1 && !chosen && !gpu_share_count_listed(asked);
    bool single = several && plugin_cuda_together(&single_reason) != STATUS_OK;
    TRY(gpu_share_apply(share, gpus, single ? 1 : 0, config, sources, err));
    if (share->gpus < 2 && share->sharers < 2) return STATUS_OK;
    const char *devices = share->gpus > 1 ? config->train.devices : "it";
    log_info("%s", gpu_share_text(share, devices, text, sizeof text));
    if (share->idle && share->index == 0) warn_idle_gpus(share, config, chosen, single ? single_reason.msg : NULL);
    return STATUS_OK;
}

static enum status read_config(struct trainer *t, const struct msg_config *m, struct err *err)
{
    t->config = *t->options->local;
    t->sources = *t->options->sources;
    TRY(config_parse(&t->config, &t->sources, m->text, strlen(m->text), "configuration of the run", CONFIG_COORDINATOR,
                     err));
    TRY(worker_session_check_run(&t->options->session, m->run_id, t->config.run.name, err));
    TRY(step_split_apply(&t->config, &t->sources, t->options->local, t->options->sources, err));
    TRY(take_codec(t, err));
    TRY(take_device_share(&t->share, &t->config, &t->sources, err));
    return config_resolve(&t->config, &t->sources, err);
}

enum status train_on_settings(void *ctx, const struct msg_config *m, struct err *err)
{
    struct trainer *t = ctx;
    char changed[512];
    TRY(config_take_changes(&t->config, m->text, changed, sizeof changed, err));
    t->schedule = lr_inner_schedule(&t->config);
    if (changed[0]) log_info("the run has new settings: %s", changed);
    return STATUS_OK;
}

static enum status open_data(struct trainer *t, struct err *err)
{
    TRY(train_data_open(&t->train, &t->val, &t->config, err));
    uint32_t shared = tokens_shared(&t->train, &t->val);
    if (shared)
        log_warn("%u of %u shards of data.val are also in data.train: validation losses include training data", shared,
                 t->val.n_shards);
    return train_data_check(&t->train, &t->val, &t->config, err);
}

/* Threads of the outer step; with a plain barrier no training uses the cores meanwhile. On a CPU: train.threads. Beside
 * a GPU: at least 8, which nearly saturate the bus. They do not flush denormals: theta must have the same bits on every
 * worker. */
static enum status make_pool(struct trainer *t, struct err *err)
{
    enum { GPU_HOST_THREADS = 8 };
    const char *devices = t->config.train.devices;
    int threads = (int)t->config.train.threads;
    bool gpu = !strncmp(devices, "cuda", 4) || (!strcmp(devices, "auto") && plugin_cuda_count() > 0);
    if (gpu && threads < GPU_HOST_THREADS) threads = pool_cores(GPU_HOST_THREADS);
    if (threads > POOL_THREADS_MAX) threads = POOL_THREADS_MAX;
    if (pool_create(threads, POOL_FLOATS_EXACT, &t->pool) == STATUS_OK) return STATUS_OK;
    return err_set(err, STATUS_NOMEM, "cannot start %d threads: %s", threads,
                   threads > (int)t->config.train.threads ? "see ulimit -u" : "lower train.threads");
}

static enum status make_model(struct trainer *t, struct err *err)
{
    const struct config *c = &t->config;
    const struct model_family *family;
    struct replica_config replica;
    TRY(replica_layout_of(c, &t->layout, &family, err));
    TRY(replica_config_of(c, family, &t->layout, t->share.workers, &replica, err));
    if (family->config_json(&replica.model, t->model_text, sizeof t->model_text) != STATUS_OK)
        return err_set(err, STATUS_LIMIT, "config.json of the model is too long");
    TRY(make_pool(t, err));
    replica.sharers = t->share.sharers;
    replica.end = t->options->end;
    replica.pool = t->pool;
    TRY(replica_create(&t->replica, &replica, &t->layout, &t->train, err));
    t->counters = mem_alloc(replica_step_samples(t->replica), sizeof *t->counters);
    if (!t->counters) return err_set(err, STATUS_NOMEM, "no memory for %u samples", replica_step_samples(t->replica));
    snprintf(t->devices, sizeof t->devices, "%s", replica_device_name(t->replica));
    t->schedule = lr_inner_schedule(c);
    return STATUS_OK;
}

/* host: the plan of host memory beside a GPU, or NULL. */
static void log_memory(const struct memory_plan *plan, const struct memory_plan *host, enum recompute wanted)
{
    char text[512];
    const uint64_t *levels = plan->levels;
    log_info("memory in MiB: %s", memory_plan_text(plan, text, sizeof text));
    log_info("train.recompute is %s%s: none needs %.0f MiB, act %.0f, norm %.0f, block %.0f",
             memory_level_name((enum recompute)plan->level), wanted == RECOMPUTE_AUTO ? " (auto)" : "",
             (double)levels[MODEL_KEEP_ALL] / (1 << 20), (double)levels[MODEL_RECOMPUTE_ACT] / (1 << 20),
             (double)levels[MODEL_RECOMPUTE_NORM] / (1 << 20), (double)levels[MODEL_RECOMPUTE_BLOCK] / (1 << 20));
    if (host) log_info("memory of the host, in MiB: %s", memory_plan_text(host, text, sizeof text));
    if (plan->outer_left_out) log_info("keeping anchor and residual on the host: no room on the device");
}

static void log_setup(const struct trainer *t)
{
    const struct config *c = &t->config;
    log_info("%s: %s parameters in %u fragment%s, %s, H %u, up %s, down %s", c->run.name,
             units_count((double)t->layout.n_params).text, t->layout.n_fragments, t->layout.n_fragments > 1 ? "s" : "",
             config_method_name(c->train.method), c->train.sync_every, c->codec.up, c->codec.down);
    log_info("%s, %u thread%s; %s training tokens, %s validation tokens", t->devices, c->train.threads,
             c->train.threads > 1 ? "s" : "", units_count((double)t->train.n_tokens).text,
             units_count((double)t->val.n_tokens).text);
    log_memory(replica_memory(t->replica), replica_host_memory(t->replica), c->train.recompute);
    if (*replica_note(t->replica)) log_warn("%s: %s", t->devices, replica_note(t->replica));
    if (!replica_device(t->replica)->host_memory && c->train.precision == PRECISION_FP32)
        log_info(
            "train.precision is fp32, which does not use the GPU's tensor cores: set bf16 in the run's configuration");
}

static enum status build_all(struct trainer *t, const struct msg_config *config, struct err *err)
{
    TRY(read_config(t, config, err));
    TRY(open_data(t, err));
    return make_model(t, err);
}

enum status train_on_config(void *ctx, const struct msg_config *config, struct outer_model *model, struct err *err)
{
    struct trainer *t = ctx;
    TRY(build_all(t, config, err));
    log_setup(t);
    data_hash_start(&t->data_hash, &t->train, &t->val, t->options->session.dir, outer_loop_heartbeat(t->loop));
    uint32_t seq = t->config.model.block_size;
    *model = (struct outer_model){
        .config = &t->config,
        .layout = &t->layout,
        .train_hash = t->train.hash,
        .val_hash = t->val.hash,
        .train_samples = tokens_samples(&t->train, seq),
        .val_samples = tokens_samples(&t->val, seq),
        .sample_tokens = seq,
        .ranks = t->config.train.ranks,
        .devices = t->devices,
        .model_config = t->model_text,
        .pool = t->pool,
    };
    if (!replica_device(t->replica)->host_memory && !replica_memory(t->replica)->outer_left_out) {
        model->device = replica_device(t->replica);
        model->device_theta = replica_params(t->replica);
    }
    if (t->config.train.method != METHOD_DDP)
        model->inner = (struct outer_inner){.ctx = t, .parts = inner_parts, .load = inner_load};
    return STATUS_OK;
}
