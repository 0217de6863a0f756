#include "worker/inner/inner_opt.h"

#include <assert.h>
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/base/units.h"
#include "worker/inner/inner_shard.h"

_Static_assert(SCALAR_COUNT * sizeof(float) % _Alignof(struct step_count) == 0 &&
                   (SCALARS - SCALAR_COUNT) * sizeof(float) >= sizeof(struct step_count),
               "the scalars must hold an aligned struct step_count");

struct inner_opt_config inner_opt_config_of(const struct config *config)
{
    return (struct inner_opt_config){.kind = config->inner.optimizer,
                                     .beta1 = config->inner.beta1,
                                     .beta2 = config->inner.beta2,
                                     .eps = config->inner.eps,
                                     .weight_decay = config->inner.weight_decay,
                                     .grad_clip = config->inner.grad_clip,
                                     .muon_momentum = 0.95,
                                     .muon_steps = 5,
                                     .bf16 = config->inner.moments == PRECISION_BF16,
                                     .seed = config->run.seed};
}

size_t inner_opt_moment_size(const struct inner_opt_config *config)
{
    return config->kind == OPTIMIZER_SGD ? 0 : config->bf16 ? sizeof(uint16_t) : sizeof(float);
}

uint64_t inner_opt_moment_bytes(const struct inner_opt_config *config, uint64_t n_params)
{
    return 2 * inner_shard_vector_bytes(n_params, inner_opt_moment_size(config));
}

uint64_t inner_opt_host_bytes(const struct inner_opt_config *config, uint64_t n_params)
{
    return config->unread ? 0 : inner_opt_moment_bytes(config, n_params);
}

uint64_t inner_opt_scalar_bytes(void)
{
    return SCALARS * sizeof(float);
}

uint64_t inner_opt_matrix_bytes(const struct inner_opt_config *config, const struct layout *layout, struct device *dev,
                                int n_ranks)
{
    struct inner_matrices dealt;
    uint64_t bytes = 0;
    if (config->kind != OPTIMIZER_MUON ||
        inner_matrices_deal(&dealt, layout, config->hidden_blocks, n_ranks, false) != STATUS_OK || !dealt.n)
        return 0;
    struct muon_matrix *mine = mem_alloc(dealt.n, sizeof *mine);
    for (int r = 0; mine && r < n_ranks; r++) {
        size_t n = inner_matrices_of(&dealt, r, mine);
        if (n) bytes += dev->ops->muon_bytes(dev, mine, n);
    }
    mem_free(mine);
    inner_matrices_finish(&dealt);
    return bytes;
}

/* Returns true if muon updates the tensor; no span covers it then. */
static bool is_muon_tensor(const struct inner_opt *opt, const struct tensor *t)
{
    return opt->config.kind == OPTIMIZER_MUON && opt->config.hidden_blocks(t);
}

/* Builds the spans of one slice: elements [begin, end) of the element-wise tensors laid end to end. Adjacent tensors
 * with the same decay share a span. */
static enum status slice_spans(const struct inner_opt *opt, struct inner_opt_slice *slice, const struct layout *layout,
                               uint64_t begin, uint64_t end)
{
    uint64_t at = 0; /* start of the tensor among the element-wise tensors */
    slice->spans = mem_alloc(layout->n_tensors, sizeof *slice->spans);
    if (!slice->spans) return STATUS_NOMEM;
    for (uint32_t i = 0; i < layout->n_tensors; i++) {
        const struct tensor *t = &layout->tensors[i];
        if (is_muon_tensor(opt, t)) continue;
        uint64_t from = at > begin ? at : begin, to = at + t->count < end ? at + t->count : end;
        uint64_t offset = t->offset + from - at;
        at += t->count;
        if (from >= to) continue;
        struct adamw_span *last = slice->n_spans ? &slice->spans[slice->n_spans - 1] : NULL;
        if (last && last->decay == t->decay && last->offset + last->count == offset)
            last->count += to - from;
        else
            slice->spans[slice->n_spans++] =
                (struct adamw_span){.offset = offset, .count = to - from, .decay = t->decay};
    }
    return STATUS_OK;
}

/* Number of elements in the spans of all slices. */
static uint64_t count_span_elements(const struct inner_opt *opt)
{
    uint64_t sum = 0;
    for (int r = 0; r < opt->n_slices; r++)
        for (size_t i = 0; i < opt->slices[r].n_spans; i++) sum += opt->slices[r].spans[i].count;
    return sum;
}

static enum status slice_matrices(struct inner_opt_slice *slice, const struct inner_matrices *dealt, int rank,
                                  struct muon_matrix *scratch)
{
    size_t n = inner_matrices_of(dealt, rank, scratch);
    return n ? slice->dev->ops->muon_plan(slice->dev, scratch, n, &slice->muon) : STATUS_OK;
}

static enum status fill_slices(struct inner_opt *opt, const struct layout *layout, struct device *const *devices,
                               const struct inner_matrices *dealt, struct muon_matrix *scratch)
{
    uint64_t elementwise = 0; /* elements of the element-wise tensors */
    for (uint32_t i = 0; i < layout->n_tensors; i++)
        if (!is_muon_tensor(opt, &layout->tensors[i])) elementwise += layout->tensors[i].count;
    uint64_t share = (elementwise / (uint64_t)opt->n_slices + 15) & ~(uint64_t)15; /* whole cache lines */
    for (int r = 0; r < opt->n_slices; r++) {
        struct inner_opt_slice *slice = &opt->slices[r];
        uint64_t begin = share * (uint64_t)r, end = r + 1 == opt->n_slices ? elementwise : begin + share;
        slice->dev = devices[r];
        TRY(slice_spans(opt, slice, layout, begin, end));
        TRY(slice_matrices(slice, dealt, r, scratch));
        slice->scalars = devices[r]->ops->alloc(devices[r], SCALARS * sizeof(float));
        if (!slice->scalars) return STATUS_NOMEM;
    }
    assert(count_span_elements(opt) == elementwise);
    return STATUS_OK;
}

static enum status make_slices(struct inner_opt *opt, const struct layout *layout, struct device *const *devices)
{
    struct inner_matrices dealt = {0};
    opt->slices = mem_alloc((size_t)opt->n_slices, sizeof *opt->slices);
    if (!opt->slices) return STATUS_NOMEM;
    if (opt->config.kind == OPTIMIZER_MUON)
        TRY(inner_matrices_deal(&dealt, layout, opt->config.hidden_blocks, opt->n_slices, false));
    struct muon_matrix *scratch = dealt.n ? mem_alloc(dealt.n, sizeof *scratch) : NULL;
    enum status status = dealt.n && !scratch ? STATUS_NOMEM : fill_slices(opt, layout, devices, &dealt, scratch);
    mem_free(scratch);
    inner_matrices_finish(&dealt);
    return status;
}

/* Allocates the host copy of the moments. */
static bool make_host(struct inner_opt *opt)
{
    uint64_t bytes = inner_opt_host_bytes(&opt->config, opt->n_params);
    if (bytes) opt->host = mem_alloc(1, bytes);
    return !bytes || opt->host;
}

static enum status fill(struct inner_opt *opt, const struct layout *layout, struct device *const *devices)
{
    TRY(make_slices(opt, layout, devices));
    if (opt->config.kind == OPTIMIZER_SGD) return STATUS_OK;
    size_t bytes = inner_shard_vector_bytes(opt->n_params, opt->moment);
    opt->m = devices[0]->ops->alloc(devices[0], bytes);
    opt->v = devices[0]->ops->alloc(devices[0], bytes);
    return opt->m && opt->v && (devices[0]->host_memory || make_host(opt)) ? STATUS_OK : STATUS_NOMEM;
}

static enum status check(const struct inner_opt_config *config, struct err *err)
{
    if (config->kind != OPTIMIZER_ADAMW && config->kind != OPTIMIZER_SGD && config->kind != OPTIMIZER_MUON)
        return err_set(err, STATUS_INVALID, "inner.optimizer must be adamw, muon or sgd");
    if (config->kind == OPTIMIZER_SGD && config->bf16)
        return err_set(err, STATUS_INVALID,
                       "inner.moments=bf16 needs moments, and inner.optimizer sgd has none: use fp32");
    if (config->kind == OPTIMIZER_MUON && !config->hidden_blocks)
        return err_set(err, STATUS_UNSUPPORTED, "inner.optimizer=muon does not support this model.family: use adamw");
    return STATUS_OK;
}

static enum status make(struct inner_opt **out, const struct inner_opt_config *config, const struct layout *layout,
                        int n_slices, struct err *err)
{
    assert(n_slices > 0);
    TRY(check(config, err));
    struct inner_opt *opt = mem_alloc(1, sizeof *opt);
    if (!opt) return err_set(err, STATUS_NOMEM, "no memory for the inner optimizer");
    opt->config = *config;
    opt->n_params = layout->n_params;
    opt->n_slices = n_slices;
    opt->moment = inner_opt_moment_size(config);
    *out = opt;
    return STATUS_OK;
}

/* After `status` of a fill. A failure is reported with the planned `bytes` of moments, and destroys *out. */
static enum status filled(struct inner_opt **out, enum status status, uint64_t bytes, const char *owner,
                          struct err *err)
{
    struct inner_opt *opt = *out;
    if (status == STATUS_OK) return STATUS_OK;
    struct device *dev = NULL; /* the last device in use is the one that failed */
    for (int r = 0; opt->slices && r < opt->n_slices; r++)
        if (opt->slices[r].dev) dev = opt->slices[r].dev;
    if (status == STATUS_NOMEM || !dev)
        err_set(err, status, "no memory for the inner optimizer's state (%s%s)", units_bytes((double)bytes).text,
                owner);
    else
        err_set(err, status, "cannot plan the inner optimizer on %s: %s", dev->name,
                status == STATUS_UNSUPPORTED && dev->note[0] ? dev->note : status_text(status));
    inner_opt_destroy(opt);
    *out = NULL;
    return status;
}

enum status inner_opt_create(struct inner_opt **out, const struct inner_opt_config *config, const struct layout *layout,
                             struct device *const *devices, int n_ranks, struct err *err)
{
    TRY(make(out, config, layout, n_ranks, err));
    enum status status = fill(*out, layout, devices);
    return filled(out, status, inner_opt_moment_bytes(config, layout->n_params), "", err);
}

static enum status fill_sharded(struct inner_opt *opt, const struct layout *layout, const struct shard_map *map,
                                struct collective *const *colls)
{
    opt->slices = mem_alloc((size_t)opt->n_slices, sizeof *opt->slices);
    if (!opt->slices) return STATUS_NOMEM;
    for (int r = 0; r < opt->n_slices; r++) {
        struct inner_opt_slice *slice = &opt->slices[r];
        assert(colls[r]->rank == r);
        slice->dev = colls[r]->dev;
        slice->scalars = slice->dev->ops->alloc(slice->dev, SCALARS * sizeof(float));
        if (!slice->scalars) return STATUS_NOMEM;
        TRY(inner_shard_create(&slice->shard, map, colls[r], layout, opt->moment));
    }
    return make_host(opt) ? STATUS_OK : STATUS_NOMEM;
}

enum status inner_opt_create_sharded(struct inner_opt **out, const struct inner_opt_config *config,
                                     const struct layout *layout, const struct shard_map *map,
                                     struct collective *const *colls, struct err *err)
{
    TRY(make(out, config, layout, (int)map->ranks, err));
    enum status status = fill_sharded(*out, layout, map, colls);
    return filled(out, status, inner_shard_moment_bytes(map, 0, inner_opt_moment_size(config)), " a rank", err);
}

void inner_opt_destroy(struct inner_opt *opt)
{
    if (!opt) return;
    for (int r = 0; opt->slices && r < opt->n_slices; r++) {
        struct inner_opt_slice *slice = &opt->slices[r];
        if (slice->dev && slice->scalars) slice->dev->ops->release(slice->dev, slice->scalars);
        if (slice->dev && slice->muon) slice->dev->ops->plan_free(slice->dev, slice->muon);
        inner_shard_destroy(slice->shard);
        mem_free(slice->spans);
    }
    if (opt->slices && opt->slices[0].dev) {
        struct device *dev = opt->slices[0].dev;
        dev->ops->release(dev, opt->m);
        dev->ops->release(dev, opt->v);
    }
    mem_free(opt->host);
    mem_free(opt->slices);
    mem_free(opt);
}

void inner_opt_set_worker(struct inner_opt *opt, uint32_t worker)
{
    uint64_t noise = rng_u64(opt->config.seed, RNG_MOMENTS, worker);
    if (noise == opt->noise) return;
    opt->noise = noise;
    for (int r = 0; r < opt->n_slices; r++) {
        struct device *dev = opt->slices[r].dev;
        device_send(dev, &inner_step_count(opt->slices[r].scalars)->seed, &noise, sizeof noise);
    }
}

void inner_opt_apply(struct inner_opt *opt, int rank, float *theta, const float *grad, double lr)
{
    assert(rank >= 0 && rank < opt->n_slices && !opt->slices[rank].shard);
    const struct inner_opt_slice *slice = &opt->slices[rank];
    struct device *dev = slice->dev;
    struct inner_step step = {.dev = dev,
                              .spans = slice->spans,
                              .n_spans = slice->n_spans,
                              .muon = slice->muon,
                              .m = opt->m,
                              .v = opt->v,
                              .momentum = opt->m,
                              .scalars = slice->scalars};
    /* Every rank computes the norm of the whole gradient: all get the same bits, and none waits for another. */
    dev->ops->sumsq(dev, opt->n_params, grad, slice->scalars + SCALAR_SUMSQ);
    inner_step_apply(&step, &opt->config, theta, grad, lr);
}

enum status inner_opt_measure_sharded(struct inner_opt *opt, int rank, const float *grad)
{
    assert(rank >= 0 && rank < opt->n_slices && opt->slices[rank].shard);
    const struct inner_opt_slice *slice = &opt->slices[rank];
    return inner_shard_measure(slice->shard, slice->scalars, grad);
}

void inner_opt_apply_sharded(struct inner_opt *opt, int rank, float *theta, const float *grad, double lr)
{
    assert(rank >= 0 && rank < opt->n_slices && opt->slices[rank].shard);
    const struct inner_opt_slice *slice = &opt->slices[rank];
    inner_shard_apply(slice->shard, &opt->config, slice->scalars, theta, grad, lr);
}

void inner_opt_download_norm(struct inner_opt *opt, float *norm)
{
    struct device *dev = opt->slices[0].dev;
    dev->ops->download(dev, norm, opt->slices[0].scalars + SCALAR_NORM, sizeof *norm);
}

bool inner_opt_finish(struct inner_opt *opt, float norm)
{
    bool taken = isfinite(norm);
    if (taken)
        opt->steps++;
    else
        opt->skipped++;
    return taken;
}

static void *host_v(const struct inner_opt *opt)
{
    assert(opt->host && opt->moment);
    return opt->host + inner_shard_vector_bytes(opt->n_params, opt->moment);
}

static enum status read_sharded(struct inner_opt *opt, struct err *err)
{
    for (int r = 0; opt->host && r < opt->n_slices; r++)
        TRY(inner_shard_read(opt->slices[r].shard, opt->host, host_v(opt), err));
    return STATUS_OK;
}

enum status inner_opt_read(struct inner_opt *opt, const void **m_p, const void **v_p, struct err *err)
{
    struct device *dev = opt->slices[0].dev;
    const void *m = opt->m, *v = opt->v;
    if (opt->moment && !opt->host && !(m && dev->host_memory))
        return err_set(err, STATUS_STATE,
                       "the inner optimizer was created without a host copy of its moments (`unread`)");
    if (opt->host) {
        m = opt->host;
        v = host_v(opt);
    }
    if (opt->host && opt->m) {
        size_t bytes = opt->n_params * opt->moment;
        TRY(device_fetch(dev, opt->host, opt->m, bytes, err));
        TRY(device_fetch(dev, host_v(opt), opt->v, bytes, err));
    }
    TRY(opt->slices[0].shard ? read_sharded(opt, err) : dev->ops->sync(dev, err));
    *m_p = m;
    *v_p = v;
    return STATUS_OK;
}

static void write_one(const struct inner_opt *opt, void *to, const void *from)
{
    struct device *dev = opt->slices[0].dev;
    if (to && from) device_send(dev, to, from, opt->n_params * opt->moment);
    if (to && !from)
        dev->ops->fill(dev, to, inner_shard_vector_bytes(opt->n_params, opt->moment) / sizeof(float), 0.0f);
}

enum status inner_opt_write(struct inner_opt *opt, const void *m, const void *v, struct err *err)
{
    assert(!m == !v && !opt->m == !opt->v);
    assert(!opt->slices[0].shard || !opt->m); /* the shards hold the moments */
    write_one(opt, opt->m, m);
    write_one(opt, opt->v, v);
    for (int r = 0; r < opt->n_slices; r++) {
        const struct inner_opt_slice *slice = &opt->slices[r];
        const struct device_ops *ops = slice->dev->ops;
        if (slice->shard && opt->moment) inner_shard_write(slice->shard, m, v);
        ops->upload(slice->dev, &inner_step_count(slice->scalars)->steps, &opt->steps, sizeof opt->steps);
        TRY(ops->sync(slice->dev, err));
    }
    return STATUS_OK;
}
