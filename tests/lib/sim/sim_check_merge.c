/* The expected value of a merge, in double and by the definitions of the docs: shares no code with compress/merge.c.
 * Also the expected payload of a relayed update. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/config/codec_choice.h"
#include "common/tensor/apply.h"
#include "compress/relay.h"
#include "tests/lib/sim/sim_check_impl.h"

static bool sent(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits != 0x80000000u;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* merge.clip: the largest norms, in medians of whole deltas and of one tensor. False: nothing is clipped. */
static bool limits_of(const struct config *c, uint32_t workers, double *whole, double *tensor)
{
    bool ddp = c->train.method == METHOD_DDP, median = c->merge.clip == MERGE_CLIP_MEDIAN;
    *whole = median ? INFINITY : ddp ? 4 : 1.2;
    *tensor = median ? 1 : ddp ? 16 : 4;
    return median ? workers > 1 : c->merge.clip == MERGE_CLIP_AUTO && workers > 2;
}

static double lower_median(const double *values, uint32_t n)
{
    double sorted[CHECK_NAMED];
    memcpy(sorted, values, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    return sorted[(n - 1) / 2];
}

static void scale(double *g, size_t from, size_t count, double factor)
{
    for (size_t k = from; factor < 1 && k < from + count; k++) g[k] *= factor;
}

static double norm_of(const double *g, size_t from, size_t count)
{
    double sum = 0;
    for (size_t k = from; k < from + count; k++) sum += g[k] * g[k];
    return sqrt(sum);
}

/* Scales ranges of the deltas g[][] whose norms exceed `limit` medians; median 0: `other` takes its place. tokens: of
 * the workers, if their steps differ. */
static void clip_range(uint32_t workers, double *const *g, const double *tokens, size_t from, size_t count,
                       double limit, double other)
{
    double norms[CHECK_NAMED] = {0};
    for (uint32_t i = 0; i < workers; i++) norms[i] = norm_of(g[i], from, count);
    double median = lower_median(norms, workers);
    if (!(median > 0)) median = other;
    for (uint32_t i = 0; i < workers; i++) {
        double more = tokens ? tokens[i] / lower_median(tokens, workers) : 1, most = median * (more > 1 ? more : 1);
        if (most > 0 && norms[i] > limit * most) scale(g[i], from, count, most / norms[i]);
    }
}

static void clip_deltas(const struct sim_check *c, const struct fragment *frag, uint32_t workers, double *const *g,
                        const double *tokens)
{
    double whole, tensor, norms[CHECK_NAMED];
    if (!limits_of(&c->config, workers, &whole, &tensor)) return;
    bool async = c->config.train.method == METHOD_ASYNC;
    bool dynamic =
        c->config.train.dynamic_steps == CHOICE_ON || (async && c->config.train.dynamic_steps == CHOICE_AUTO);
    if (!dynamic || config_is_external(&c->config)) tokens = NULL;
    for (uint32_t i = 0; i < workers; i++) norms[i] = norm_of(g[i], 0, frag->count);
    double median = lower_median(norms, workers);
    for (uint32_t t = 0; t < frag->n_tensors; t++) {
        const struct tensor *at = &c->layout.tensors[frag->first_tensor + t];
        clip_range(workers, g, tokens, at->offset - frag->offset, at->count, tensor, median);
    }
    clip_range(workers, g, tokens, 0, frag->count, whole, 0);
}

/* merge.rule rda: mean[] of one tensor is the mean norm times the mean direction. */
static void rda_tensor(uint32_t workers, double *const *g, const double *w, size_t from, size_t count, double *mean)
{
    double length = 0, all = 0, norm = 0;
    double *direction = mem_alloc(count, sizeof *direction);
    assert(direction);
    for (uint32_t i = 0; i < workers; i++) {
        double own = 0;
        for (size_t k = from; k < from + count; k++) own += g[i][k] * g[i][k];
        own = sqrt(own);
        length += w[i] * own;
        all += w[i];
        for (size_t k = 0; own > 0 && k < count; k++) direction[k] += w[i] * g[i][from + k] / own;
    }
    for (size_t k = 0; k < count; k++) norm += direction[k] * direction[k];
    norm = sqrt(norm);
    for (size_t k = 0; norm >= 1e-4 * all && k < count; k++) mean[from + k] = length / all * direction[k] / norm;
    mem_free(direction);
}

bool check_merge(struct sim_check *c, uint32_t f, const struct check_version *v, double *mean)
{
    size_t n = check_count(c, f);
    const struct fragment *frag = &c->layout.fragments[f];
    bool senders = c->config.merge.rule == MERGE_CONTRIBUTORS && codec_sparse(c->logs[f].up), ok = true;
    float *x[CHECK_NAMED];
    double *g[CHECK_NAMED], w[CHECK_NAMED], tokens[CHECK_NAMED], *weight = mem_alloc(n, sizeof *weight), all = 0;
    assert(weight);
    for (uint32_t i = 0; i < v->n_named; i++) {
        const struct check_delta *d = v->named[i].delta;
        const struct check_version *base = check_version_at(c, f, d->base_version);
        x[i] = mem_alloc(n, sizeof **x);
        g[i] = mem_alloc(n, sizeof **g);
        assert(x[i] && g[i]);
        ok = ok && codec_decode(c->logs[f].up, d->payload, d->size, x[i]) == STATUS_OK;
        for (size_t k = 0; k < n; k++) {
            g[i][k] = d->form == DELTA_PARAMETERS ? (double)base->theta[k] - (double)x[i][k] : (double)x[i][k];
            ok = ok && isfinite(g[i][k]);
        }
    }
    double limits[2];
    bool bounds = limits_of(&c->config, v->n_named, &limits[0], &limits[1]) && v->n_named > 2;
    for (uint32_t i = 0; i < v->n_named; i++) tokens[i] = (double)v->named[i].tokens;
    clip_deltas(c, frag, v->n_named, g, tokens);
    for (uint32_t i = 0; i < v->n_named; i++) {
        double most = 2 * lower_median(tokens, v->n_named);
        w[i] = bounds && tokens[i] > most ? most : tokens[i];
        all += w[i];
        for (size_t k = 0; k < n; k++) {
            mean[k] += w[i] * g[i][k];
            if (sent(x[i][k])) weight[k] += w[i];
        }
    }
    for (size_t k = 0; k < n; k++) mean[k] /= !senders ? all : weight[k] > 0 ? weight[k] : 1;
    for (uint32_t t = 0; v->n_named > 1 && c->config.merge.rule == MERGE_RDA && t < frag->n_tensors; t++) {
        const struct tensor *tensor = &c->layout.tensors[frag->first_tensor + t];
        rda_tensor(v->n_named, g, w, tensor->offset - frag->offset, tensor->count, mean);
    }
    for (uint32_t i = 0; i < v->n_named; i++) {
        mem_free(x[i]);
        mem_free(g[i]);
    }
    mem_free(weight);
    return ok;
}

/* Applies the update as a worker does: theta must match bit for bit. */
static bool relay_apply(struct sim_check *c, const struct update *u, const struct check_version *v,
                        struct merge_delta *deltas, float *x)
{
    struct check_log *log = &c->logs[u->fragment];
    const float *theta = log->versions[log->n - 1].theta;
    uint64_t tokens[CHECK_NAMED];
    struct merger merger;
    struct merge merge;
    bool parameters = codec_lossless(log->up);
    for (uint32_t i = 0; i < u->n_named; i++) tokens[i] = deltas[i].tokens = u->named[i].tokens;
    bool ok =
        merger_init(&merger, &c->config, parameters, NULL, merge_part_max(log->up)) == STATUS_OK &&
        merge_start(&merge, &merger, &c->layout, u->fragment, log->up, theta, x, tokens, u->n_named) == STATUS_OK &&
        relay_merge(&merge, deltas) == STATUS_OK;
    merger_finish(&merger);
    if (ok)
        apply_sgd(theta, x, check_count(c, u->fragment), check_outer_rate(c, u->fragment, v), parameters,
                  u->form == UPDATE_INCREMENT);
    return ok;
}

bool check_update_decode(struct sim_check *c, const struct update *u, const struct check_version *v, float *x)
{
    struct check_log *log = &c->logs[u->fragment];
    struct merge_delta deltas[CHECK_NAMED];
    enum config_down down = config_down(&c->config);
    if (strcmp(u->codec, "relay") != 0) {
        if (down == CONFIG_DOWN_RELAY || strcmp(u->codec, codec_spec(log->down)) != 0) return false;
        c->counts.encoded++;
        return codec_decode(log->down, u->payload, u->payload_size, x) == STATUS_OK;
    }
    if (down != CONFIG_DOWN_RELAY && down != CONFIG_DOWN_AUTO) return false;
    if (relay_split(deltas, u->n_named, u->payload, u->payload_size) != STATUS_OK) return false;
    for (uint32_t i = 0; i < v->n_named; i++) {
        const struct check_delta *d = v->named[i].delta;
        if (deltas[i].size == d->size && memcmp(deltas[i].payload, d->payload, d->size) == 0) continue;
        sim_check_fail(c, "fragment %u: the relayed delta of worker-%d differs from the delta it sent", u->fragment,
                       d->client);
        return false;
    }
    c->counts.relayed++;
    return relay_apply(c, u, v, deltas, x);
}
