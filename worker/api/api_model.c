/* The run's layout, and the caller's tensors in it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/units.h"
#include "common/tensor/hf_files.h"
#include "worker/api/api_impl.h"
#include "worker/model/model.h"
#include "worker/outer/outer_memory.h"

enum { MODEL_TEXT_MAX = 8192 };

_Static_assert((int)ATOLL_DECAY == (int)LAYOUT_DECAY && (int)ATOLL_MEAN == (int)LAYOUT_MEAN, "the same bits");
_Static_assert((int)ATOLL_DIMS_MAX == (int)LAYOUT_DIMS_MAX, "a layout has room for each tensor");

/* --- the caller's tensors ----------------------------------------------------------------------------------------- */

enum status api_take_tensors(struct atoll *a, const struct atoll_tensor *tensors, uint32_t n, struct err *err)
{
    char shown[TEXT_SHOWN];
    if (!tensors || !n) return err_set(err, STATUS_INVALID, "options.tensors is empty: give the model's parameters");
    if (n > LAYOUT_TENSORS_MAX)
        return err_set(err, STATUS_INVALID, "options.tensors has %" PRIu32 " tensors, more than %d", n,
                       LAYOUT_TENSORS_MAX);
    for (uint32_t i = 0; i < n; i++) {
        const struct atoll_tensor *t = &tensors[i];
        const char *name = t->name ? t->name : "";
        text_shown(name, strlen(name), shown);
        if (t->ndim > LAYOUT_DIMS_MAX)
            return err_set(err, STATUS_INVALID, "tensor '%s' has %" PRIu32 " dimensions, more than %d", shown, t->ndim,
                           LAYOUT_DIMS_MAX);
        if (layout_find(&a->own, name) >= 0)
            return err_set(err, STATUS_INVALID, "two tensors have the name '%s': give tied tensors once", shown);
        enum status status = layout_add(&a->own, name, (int)t->ndim, t->shape, LAYOUT_INIT_ZEROS, 0,
                                        t->flags & (ATOLL_DECAY | ATOLL_MEAN));
        if (status == STATUS_NOMEM) return err_set(err, status, "no memory for the list of tensors");
        if (status != STATUS_OK)
            return err_set(err, STATUS_INVALID,
                           "tensor %" PRIu32 ", '%s': its name must be printable ASCII of 1 to %d bytes, and its "
                           "dimensions must be 1 or more",
                           i, shown, LAYOUT_NAME_MAX - 1);
    }
    return STATUS_OK;
}

enum status api_take_files(struct atoll *a, const struct atoll_file *files, uint32_t n, struct err *err)
{
    uint64_t bytes = 0;
    char shown[TEXT_SHOWN];
    if (n > HF_FILES_MAX) return err_set(err, STATUS_INVALID, "options.files has more than %d files", HF_FILES_MAX);
    if (n && !files) return err_set(err, STATUS_INVALID, "options.files is NULL, but options.n_files is %" PRIu32, n);
    a->files = mem_alloc(n, sizeof *a->files);
    if (!a->files) return err_set(err, STATUS_NOMEM, "no memory for the model's files");
    for (uint32_t i = 0; i < n; i++) {
        const char *name = files[i].name ? files[i].name : "";
        if (!*name || !text_is_clean(name, strlen(name), false))
            return err_set(err, STATUS_INVALID, "options.files: the name of a file is not UTF-8 without control bytes");
        if (!hf_files_allowed(name)) {
            log_warn("checkpoints leave out %s: their folders hold config.json, tokenizer files, "
                     "generation_config.json and adapter_config.json",
                     text_shown(name, strlen(name), shown));
            continue;
        }
        if (files[i].size && !files[i].data)
            return err_set(err, STATUS_INVALID, "options.files: the data of %s is NULL, but its size is %zu", name,
                           files[i].size);
        if (files[i].size > HF_FILES_BYTES_MAX || (bytes += files[i].size) > HF_FILES_BYTES_MAX)
            return err_set(err, STATUS_INVALID, "options.files has more than %d MB", HF_FILES_BYTES_MAX / 1000000);
        char *copy = mem_strdup(name);
        void *data = mem_alloc(1, files[i].size);
        a->files[a->n_files++] = (struct outer_file){.name = copy, .data = data, .size = files[i].size};
        if (!copy || !data) return err_set(err, STATUS_NOMEM, "no memory for the model's files");
        if (files[i].size) memcpy(data, files[i].data, files[i].size);
    }
    return STATUS_OK;
}

void api_take_data(struct atoll *a, const struct atoll_data *train, const struct atoll_data *val)
{
    a->train = *train;
    a->val = *val;
    if (!a->train.sample_tokens) a->train.sample_tokens = 1;
    if (!a->val.sample_tokens) a->val.sample_tokens = 1;
}

/* --- the run's layout --------------------------------------------------------------------------------------------- */

/* "768, 2304" */
static const char *shape_text(const struct tensor *t, char out[LAYOUT_SHAPE])
{
    return layout_shape(t->shape, t->ndim, ", ", out);
}

/* transformers writes GPT-2 without this prefix, and its GPT2LMHeadModel names the parameters with it. */
static const char *run_name(const char *name)
{
    static const char prefix[] = "transformer.";
    return strncmp(name, prefix, sizeof prefix - 1) ? name : name + sizeof prefix - 1;
}

static enum status refuse_shape(const struct tensor *own, const struct tensor *run, const char *family, struct err *err)
{
    char own_shape[LAYOUT_SHAPE], run_shape[LAYOUT_SHAPE];
    return err_set(err, STATUS_INVALID,
                   "tensor '%s' has the shape [%s], but the run's has [%s]: make the model of the run's configuration "
                   "(model.family %s)",
                   own->name, shape_text(own, own_shape), shape_text(run, run_shape), family);
}

/* Fills a->place by name. INVALID: the first tensor that differs. */
static enum status place_by_name(struct atoll *a, bool *taken, struct err *err)
{
    const char *family = a->config.model.family;
    char shape[LAYOUT_SHAPE];
    for (uint32_t i = 0; i < a->own.n_tensors; i++) {
        const struct tensor *own = &a->own.tensors[i];
        int at = layout_find(&a->layout, run_name(own->name));
        if (at < 0 || taken[at])
            return err_set(err, STATUS_INVALID,
                           "tensor '%s' is not a parameter of the run's model (model.family %s): give the run's "
                           "parameters, and tied ones once",
                           own->name, family);
        const struct tensor *run = &a->layout.tensors[at];
        if (own->ndim != run->ndim || memcmp(own->shape, run->shape, own->ndim * sizeof *own->shape) != 0)
            return refuse_shape(own, run, family, err);
        taken[at] = true;
        a->place[i] = (uint32_t)at;
    }
    for (uint32_t i = 0; i < a->layout.n_tensors; i++)
        if (!taken[i])
            return err_set(
                err, STATUS_INVALID,
                "the run's tensor '%s', shape [%s], is missing in this worker's model: make the model of the "
                "run's configuration (model.family %s)",
                a->layout.tensors[i].name, shape_text(&a->layout.tensors[i], shape), family);
    return STATUS_OK;
}

/* A run of a built-in model: its layout follows from the configuration. */
static enum status make_built_in(struct atoll *a, const struct model_family *family, struct err *err)
{
    struct model_config model = model_config_of(&a->config);
    TRY(family->layout(&model, &a->layout, err));
    a->model_text = mem_alloc(1, MODEL_TEXT_MAX);
    bool *taken = mem_alloc(a->layout.n_tensors, sizeof *taken);
    enum status status = STATUS_NOMEM;
    if (a->model_text && taken) status = place_by_name(a, taken, err);
    mem_free(taken);
    if (status == STATUS_NOMEM) return err_set(err, status, "no memory for the layout");
    TRY(status);
    if (family->config_json(&model, a->model_text, MODEL_TEXT_MAX) != STATUS_OK)
        return err_set(err, STATUS_LIMIT, "config.json of the model is too long");
    return STATUS_OK;
}

/* model.family external: the caller's tensors, the trained ones first. */
static enum status make_external(struct atoll *a, struct err *err)
{
    for (int means = 0; means < 2; means++)
        for (uint32_t i = 0; i < a->own.n_tensors; i++) {
            const struct tensor *t = &a->own.tensors[i];
            if (t->mean != (means == 1)) continue;
            a->place[i] = a->layout.n_tensors;
            enum status status = layout_add(&a->layout, t->name, t->ndim, t->shape, LAYOUT_INIT_ZEROS, 0,
                                            (t->decay ? LAYOUT_DECAY : 0u) | (t->mean ? LAYOUT_MEAN : 0u));
            if (status != STATUS_OK) return err_set(err, status, "no memory for the layout");
        }
    return STATUS_OK;
}

/* Puts the initial parameters in the run's order. No delta exists yet: `change` is free. */
static void order_theta(struct atoll *a)
{
    for (uint32_t i = 0; i < a->own.n_tensors; i++) {
        const struct tensor *own = &a->own.tensors[i], *run = &a->layout.tensors[a->place[i]];
        memcpy(a->change + run->offset, a->theta + own->offset, own->count * sizeof *a->theta);
    }
    memcpy(a->theta, a->change, a->own.n_params * sizeof *a->theta);
}

static enum status make_layout(struct atoll *a, struct err *err)
{
    const struct model_family *family = model_family_find(a->config.model.family);
    a->built_in = family != NULL;
    a->place = mem_alloc(a->own.n_tensors, sizeof *a->place);
    if (!a->place) return err_set(err, STATUS_NOMEM, "no memory for the layout");
    if (!family && !config_is_external(&a->config))
        return err_set(err, STATUS_UNSUPPORTED, "model.family %s is not supported by this version of libatoll",
                       a->config.model.family);
    TRY(family ? make_built_in(a, family, err) : make_external(a, err));
    TRY(model_split_fragments(&a->config, &a->layout, err));
    bool same = true;
    for (uint32_t i = 0; i < a->own.n_tensors; i++) same = same && a->place[i] == i;
    if (same) return STATUS_OK;
    if (a->theta) {
        if (!a->built_in) order_theta(a);
        return STATUS_OK;
    }
    a->ordered = mem_alloc(a->own.n_params, sizeof *a->ordered);
    return a->ordered ? STATUS_OK
                      : err_set(err, STATUS_NOMEM, "no memory for the parameters in the run's order (%s)",
                                units_bytes((double)a->own.n_params * sizeof(float)).text);
}

void api_take_params(struct atoll *a)
{
    const float *theta = a->configured ? outer_loop_params(a->loop) : NULL;
    if (!theta || a->theta) return;
    if (!a->ordered) {
        pool_copy(a->pool, a->params, theta, a->own.n_params * sizeof *theta);
        return;
    }
    for (uint32_t i = 0; i < a->own.n_tensors; i++) {
        const struct tensor *own = &a->own.tensors[i], *run = &a->layout.tensors[a->place[i]];
        pool_copy(a->pool, a->params + own->offset, theta + run->offset, own->count * sizeof *theta);
    }
}

void api_start_params(struct atoll *a)
{
    if (a->theta && !a->adds)
        pool_copy(a->pool, a->change, outer_loop_params(a->loop), a->own.n_params * sizeof *a->change);
    api_take_params(a);
}

const float *api_run_params(struct atoll *a)
{
    if (a->theta) return a->change;
    if (!a->ordered) return a->params;
    for (uint32_t i = 0; i < a->own.n_tensors; i++) {
        const struct tensor *own = &a->own.tensors[i], *run = &a->layout.tensors[a->place[i]];
        pool_copy(a->pool, a->ordered + run->offset, a->params + own->offset, own->count * sizeof *a->params);
    }
    return a->ordered;
}

/* --- the program's state ------------------------------------------------------------------------------------------ */

static size_t call_save(const struct atoll *a, struct atoll_part *parts, size_t cap)
{
    API_CALL_BACK;
    return a->state.save(a->state.ctx, parts, cap);
}

static size_t state_parts(void *ctx, struct outer_part *parts, size_t cap)
{
    struct atoll *a = ctx;
    struct atoll_part given[OUTER_PARTS_MAX];
    size_t n = call_save(a, given, cap < OUTER_PARTS_MAX ? cap : OUTER_PARTS_MAX);
    if (n == ATOLL_STATE_KEEP) {
        log_info("this worker's newest saved state stays: its processes did not save together");
        return 0;
    }
    if (!n || n > cap || n > OUTER_PARTS_MAX) {
        log_error("cannot save this worker's state: the program gave no state");
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        parts[i] = (struct outer_part){.data = given[i].data, .size = given[i].size};
        if (given[i].data || !given[i].size) continue;
        log_error("cannot save this worker's state: part %zu of the program's state is NULL", i);
        return 0;
    }
    return n;
}

static void state_files(void *ctx, uint64_t *tag_p, uint32_t *n_ranks_p)
{
    const struct atoll *a = ctx;
    *tag_p = a->state_tag;
    *n_ranks_p = a->state_ranks;
}

static enum status state_load(void *ctx, const uint8_t *data, size_t size)
{
    struct atoll *a = ctx;
    API_CALL_BACK;
    return a->state.load(a->state.ctx, data, size) ? STATUS_MISMATCH : STATUS_OK;
}

/* --- on_config ---------------------------------------------------------------------------------------------------- */

static enum status read_config(struct atoll *a, const struct msg_config *m, struct err *err)
{
    struct config *c = &a->config;
    config_defaults(c, &a->sources);
    c->train.threads = a->threads;
    snprintf(c->train.devices, sizeof c->train.devices, "cpu");
    TRY(config_parse(c, &a->sources, m->text, strlen(m->text), "configuration of the run", CONFIG_COORDINATOR, err));
    TRY(worker_session_check_run(&a->options, m->run_id, c->run.name, err));
    TRY(config_resolve(c, &a->sources, err));
    if (c->train.method != METHOD_DDP) return STATUS_OK;
    return err_set(err, STATUS_INVALID,
                   "the run has train.method ddp, whose optimizer runs at the coordinator: a program with an optimizer "
                   "of its own joins runs of local-sgd, diloco and async");
}

/* In a run of a built-in model a sample is a window of model.block_size tokens. */
static enum status check_data(const struct atoll *a, struct err *err)
{
    uint32_t seq = a->config.model.block_size;
    if (!a->built_in) return STATUS_OK;
    if (!a->train.samples)
        return err_set(err, STATUS_INVALID,
                       "train.samples is 0, but the run has model.family %s: train on the run's token shards",
                       a->config.model.family);
    if (a->train.sample_tokens == seq && (!a->val.samples || a->val.sample_tokens == seq)) return STATUS_OK;
    return err_set(err, STATUS_INVALID,
                   "a sample has %" PRIu32 " tokens, but the run has model.block_size %" PRIu32 ": open the data with "
                   "sample_tokens %" PRIu32,
                   a->train.sample_tokens == seq ? a->val.sample_tokens : a->train.sample_tokens, seq, seq);
}

static enum status log_memory(const struct atoll *a, struct err *err)
{
    struct replica_outer outer;
    TRY(outer_memory_bytes(&outer, &a->config, &a->layout, 0, a->theta != NULL, err));
    double params = a->adds ? 0 : (double)(a->own.n_params * sizeof(float)) * (a->ordered ? 2 : 1),
           anchor = (double)outer.host.anchor, residual = (double)outer.host.residual,
           messages = (double)outer.host.messages, mib = 1 << 20;
    log_info("%s: %s parameters in %u fragment%s, %s, H %u, up %s, down %s", a->config.run.name,
             units_count((double)a->layout.n_params).text, a->layout.n_fragments, a->layout.n_fragments > 1 ? "s" : "",
             config_method_name(a->config.train.method), a->config.train.sync_every, a->config.codec.up,
             a->config.codec.down);
    log_info("memory of the outer loop in MiB: parameters %.0f, anchor %.0f, residual %.0f, messages %.0f, total %.0f",
             params / mib, anchor / mib, residual / mib, messages / mib, (params + anchor + residual + messages) / mib);
    return STATUS_OK;
}

enum status api_on_config(void *ctx, const struct msg_config *config, struct outer_model *model, struct err *err)
{
    struct atoll *a = ctx;
    TRY(read_config(a, config, err));
    TRY(make_layout(a, err));
    TRY(check_data(a, err));
    a->adds = a->theta && outer_loop_adds(&a->config);
    TRY(log_memory(a, err));
    if (pool_create((int)a->threads, POOL_FLOATS_EXACT, &a->pool) != STATUS_OK)
        return err_set(err, STATUS_NOMEM, "cannot start %" PRIu32 " threads: lower options.threads", a->threads);
    a->configured = true;
    *model = (struct outer_model){
        .config = &a->config,
        .layout = &a->layout,
        .train_hash = a->train.hash,
        .val_hash = a->val.samples ? a->val.hash : 0,
        .train_samples = a->train.samples,
        .val_samples = a->val.samples,
        .sample_tokens = a->train.sample_tokens,
        .ranks = 1,
        .devices = a->devices,
        .model_config = a->model_text ? a->model_text : "",
        .pool = a->pool,
    };
    if (a->theta) {
        model->theta = a->theta;
        model->change = a->change;
    }
    if (!a->built_in) {
        model->initial = a->theta ? a->theta : api_run_params(a);
        model->files = a->files;
        model->n_files = a->n_files;
        model->frozen = &a->frozen;
        model->frozen_any = a->frozen_any;
        model->frozen_read = a->frozen_read ? api_read_frozen : NULL;
        model->frozen_ctx = a;
    }
    if (a->state.save && a->state.load)
        model->inner = (struct outer_inner){.ctx = a, .parts = state_parts, .load = state_load, .files = state_files};
    return STATUS_OK;
}

enum status api_on_settings(void *ctx, const struct msg_config *config, struct err *err)
{
    struct atoll *a = ctx;
    char changed[512];
    TRY(config_take_changes(&a->config, config->text, changed, sizeof changed, err));
    if (changed[0]) log_info("the run has new settings: %s", changed);
    return STATUS_OK;
}

void api_model_finish(struct atoll *a)
{
    pool_destroy(a->pool);
    layout_finish(&a->layout);
    layout_finish(&a->own);
    mem_free(a->place);
    mem_free(a->ordered);
    mem_free(a->model_text);
    mem_free(a->params);
    for (uint32_t i = 0; i < a->n_files; i++) {
        mem_free((void *)(uintptr_t)a->files[i].name);
        mem_free((void *)(uintptr_t)a->files[i].data);
    }
    mem_free(a->files);
    frozen_finish(&a->frozen);
    mem_free(a->frozen_place);
}
