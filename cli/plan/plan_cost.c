/* Measures what the parts of a round cost, with the functions that a run uses. */
#include "cli/plan/plan_cost.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/median.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/config/codec_choice.h"
#include "compress/apply_update.h"
#include "compress/codec.h"
#include "compress/feedback.h"
#include "coordinator/outer/delta_measure.h"
#include "coordinator/outer/outer_state.h"
#include "coordinator/round/round_form.h"
#include "worker/outer/delta_host.h"

enum {
    REPEATS = 5,
    DELTAS_MAX = 8,      /* different deltas that are merged; further workers cost as much as one of these */
    PAYLOAD_AT = 1 << 16 /* space before an update's payload */
};

static const float delta_scale = 1e-3f; /* standard deviation of the random deltas */

/* One fragment under measurement. */
struct bench {
    const struct config *config;
    struct outer_state *outer;
    struct pool *pool; /* of a worker */
    uint32_t fragment, workers, n_deltas;
    size_t count;
    struct codec *up;
    struct feedback feedback;
    float *values, *delta, *theta; /* [count] */
    uint8_t *payloads[DELTAS_MAX], *room[DELTAS_MAX];
    struct merge_delta deltas[DELTAS_MAX];
    size_t cap, down_bytes;
};

static double seconds_now(void)
{
    return (double)clock_monotonic_us() * 1e-6;
}

/* Returns the seconds since *t, and sets *t to now. */
static double lap(double *t)
{
    double before = *t;
    *t = seconds_now();
    return *t - before;
}

static enum status compress(struct bench *b, uint32_t i)
{
    size_t size;
    double norm = delta_host(b->pool, round_delta_form(b->config, false), b->theta, b->values, b->delta, b->count);
    if (!(norm >= 0)) return STATUS_NONFINITE;
    TRY(feedback_encode(&b->feedback, b->up, b->pool, b->delta, b->payloads[i], b->cap, &size));
    feedback_commit(&b->feedback);
    b->deltas[i] = (struct merge_delta){.payload = b->payloads[i], .size = size, .tokens = 1, .room = b->room[i]};
    return crc32c(0, b->payloads[i], size) == 1 ? STATUS_CORRUPT : STATUS_OK;
}

static enum status deliver(struct bench *b, uint32_t i)
{
    struct merge_delta *d = &b->deltas[i];
    uint32_t crc = crc32c(0, d->payload, d->size) ^ crc32c(1, d->payload, d->size); /* of the chunks, and of all */
    TRY(merge_open(b->outer->fragments[b->fragment].up, d));
    bool in_range = delta_measure(b->outer, b->fragment, &d->view).in_range;
    return in_range && crc != 1 ? STATUS_OK : STATUS_NONFINITE;
}

static enum status merge(struct bench *b)
{
    struct merge m;
    struct outer_state *o = b->outer;
    for (uint32_t i = 0; i < b->n_deltas; i++) {
        o->tokens[i] = 1;
        TRY(merge_open(o->fragments[b->fragment].up, &b->deltas[i]));
    }
    TRY(merge_start(&m, &o->merger, o->layout, b->fragment, o->fragments[b->fragment].up,
                    o->theta + o->layout->fragments[b->fragment].offset, o->acc, o->tokens, b->n_deltas));
    if (merge_needs_norms(&m)) merge_compute_norms(&m, b->deltas, b->n_deltas);
    merge_add(&m, b->deltas, b->n_deltas);
    return STATUS_OK;
}

/* Whether updates are relayed: always, never, or with codec.down auto if that is smaller. Needs a fresh merge. */
static bool relays(struct bench *b, size_t delta_bytes)
{
    enum config_down down = config_down(b->config);
    struct outer_ways ways = {.fragment = b->fragment,
                              .named = b->workers,
                              .members = b->workers,
                              .deltas = (uint64_t)delta_bytes * b->workers};
    return down == CONFIG_DOWN_RELAY || (down == CONFIG_DOWN_AUTO && outer_state_relays(b->outer, &ways));
}

static enum status outer_step(struct bench *b, uint64_t version, bool relayed)
{
    struct outer_step step = {.fragment = b->fragment,
                              .version = version,
                              .round = version - 1,
                              .steps = b->workers,
                              .fresh = b->workers,
                              .members = b->workers,
                              .norm = 1,
                              .relay = relayed};
    return outer_state_step(b->outer, &step, PAYLOAD_AT, &b->down_bytes);
}

/* A worker applies an update that is not relayed; a relayed one it merges first, as the coordinator did. */
static enum status apply(struct bench *b, bool relayed)
{
    struct outer_fragment *f = &b->outer->fragments[b->fragment];
    struct codec_view view;
    if (relayed) {
        const struct apply_update_sgd step = {.lr = 1, .increment = true};
        apply_update_step(b->pool, &step, b->delta, b->theta, b->count);
    } else {
        TRY(codec_open(f->down, b->outer->payload + PAYLOAD_AT, b->down_bytes, NULL, &view));
        apply_update_view(b->pool, &view, round_update_form(b->config, false) == UPDATE_PARAMETERS, b->theta);
    }
    return hash_floats(b->pool, b->theta, b->count) == 1 ? STATUS_CORRUPT : STATUS_OK;
}

static enum status measure(struct bench *b, struct plan_fragment *cost)
{
    enum { COMPRESS, DELIVER, MERGE, OUTER, APPLY, COSTS };
    double s[COSTS][REPEATS], t;
    double *const seconds[COSTS] = {&cost->compress_s, &cost->deliver_s, &cost->merge_s, &cost->outer_s,
                                    &cost->apply_s};
    for (int k = 0; k < REPEATS; k++) {
        for (uint32_t i = 0; i < b->n_deltas; i++) {
            rng_normal_fill(1, RNG_TEST, (uint64_t)i * b->count, delta_scale, b->values, b->count);
            t = seconds_now();
            TRY(compress(b, i));
            if (i == 0) s[COMPRESS][k] = lap(&t);
        }
        t = seconds_now();
        for (uint32_t i = 0; i < b->n_deltas; i++) TRY(deliver(b, i));
        s[DELIVER][k] = lap(&t) / b->n_deltas;
        TRY(merge(b));
        s[MERGE][k] = lap(&t) / b->n_deltas;
        if (k == 0) cost->relayed = relays(b, b->deltas[0].size);
        t = seconds_now();
        TRY(outer_step(b, (uint64_t)k + 1, cost->relayed));
        s[OUTER][k] = lap(&t);
        TRY(apply(b, cost->relayed));
        s[APPLY][k] = lap(&t) + (cost->relayed ? s[MERGE][k] * b->workers : 0);
    }
    cost->floats = b->count;
    cost->up_bytes = b->deltas[0].size;
    cost->down_bytes = cost->relayed ? 0 : b->down_bytes;
    for (int c = 0; c < COSTS; c++) *seconds[c] = median_of(s[c], REPEATS);
    return STATUS_OK;
}

/* codec.up_allowed: deltas are merged in fp32, but arrive in codec.up. */
static enum status measure_arriving(struct bench *b, const struct layout *layout, struct plan_fragment *cost,
                                    struct err *err)
{
    struct codec *codec;
    size_t size;
    if (!config_up_mixed(b->config)) return STATUS_OK;
    TRY(codec_create_for_fragment(&codec, b->config->codec.up, layout, b->fragment, err));
    uint8_t *payload = mem_alloc(1, codec_bound(codec));
    double t = seconds_now();
    enum status status =
        payload ? codec_encode_pool(codec, b->pool, b->values, payload, codec_bound(codec), &size, NULL) : STATUS_NOMEM;
    if (status == STATUS_OK) {
        cost->up_bytes = size;
        cost->compress_s = seconds_now() - t;
    }
    mem_free(payload);
    codec_destroy(codec);
    return status;
}

static void bench_finish(struct bench *b)
{
    for (uint32_t i = 0; i < DELTAS_MAX; i++) {
        mem_free(b->payloads[i]);
        mem_free(b->room[i]);
    }
    mem_free(b->values);
    mem_free(b->delta);
    mem_free(b->theta);
    feedback_finish(&b->feedback);
    codec_destroy(b->up);
    mem_free(b);
}

static enum status bench_init(struct bench *b, const struct layout *layout, struct err *err)
{
    struct codec *in_journal = b->outer->fragments[b->fragment].up;
    const char *spec = config_merge_spec(b->config, false);
    TRY(codec_create_for_fragment(&b->up, spec, layout, b->fragment, err));
    b->count = codec_count(b->up);
    b->cap = codec_bound(b->up);
    b->values = mem_alloc(b->count, sizeof *b->values);
    b->delta = mem_alloc(b->count, sizeof *b->delta);
    b->theta = mem_alloc(b->count, sizeof *b->theta);
    if (!b->values || !b->delta || !b->theta) return STATUS_NOMEM;
    for (uint32_t i = 0; i < b->n_deltas; i++) {
        size_t room = codec_open_room(in_journal);
        b->payloads[i] = mem_alloc(1, b->cap);
        b->room[i] = mem_alloc(1, room ? room : 1);
        if (!b->payloads[i] || !b->room[i]) return STATUS_NOMEM;
    }
    return feedback_init(&b->feedback, b->count, codec_feedback_decay(b->up), !codec_spec_lossless(spec));
}

static enum status measure_fragment(struct outer_state *outer, struct pool *pool, const struct layout *layout,
                                    uint32_t fragment, uint32_t workers, struct plan_fragment *cost, struct err *err)
{
    struct bench *b = mem_alloc(1, sizeof *b);
    if (!b) return STATUS_NOMEM;
    b->config = outer->config;
    b->outer = outer;
    b->pool = pool;
    b->fragment = fragment;
    b->workers = workers;
    b->n_deltas = workers < DELTAS_MAX ? workers : DELTAS_MAX;
    enum status status = bench_init(b, layout, err);
    if (status == STATUS_OK) status = outer_state_reserve(outer, PAYLOAD_AT + outer->payload_cap);
    if (status == STATUS_OK) status = measure(b, cost);
    if (status == STATUS_OK) status = measure_arriving(b, layout, cost, err);
    bench_finish(b);
    return status;
}

enum status plan_matrix(struct layout *layout, uint64_t params)
{
    const uint64_t shape[2] = {(params + 1023) / 1024, 1024};
    layout_init(layout);
    TRY(layout_add(layout, "model", 2, shape, LAYOUT_INIT_ZEROS, 0, LAYOUT_DECAY));
    return layout_split(layout, 0);
}

/* Costs of `floats` parameters from those of a sample. */
static struct plan_fragment scaled(const struct plan_fragment *sample, uint64_t floats)
{
    double by = (double)floats / (double)sample->floats;
    return (struct plan_fragment){.floats = floats,
                                  .up_bytes = (uint64_t)((double)sample->up_bytes * by),
                                  .down_bytes = (uint64_t)((double)sample->down_bytes * by),
                                  .relayed = sample->relayed,
                                  .compress_s = sample->compress_s * by,
                                  .deliver_s = sample->deliver_s * by,
                                  .merge_s = sample->merge_s * by,
                                  .outer_s = sample->outer_s * by,
                                  .apply_s = sample->apply_s * by};
}

static enum status measure_layout(struct plan_costs *costs, const struct config *config, const struct layout *layout,
                                  uint32_t workers, struct err *err)
{
    struct outer_state outer = {0};
    struct pool *pool = NULL;
    enum status status = outer_state_init(&outer, config, layout, err);
    if (status == STATUS_OK) status = pool_create((int)config->train.threads, POOL_FLOATS_EXACT, &pool);
    for (uint32_t f = 0; status == STATUS_OK && f < layout->n_fragments; f++)
        status = measure_fragment(&outer, pool, layout, f, workers, &costs->fragments[f], err);
    costs->n_fragments = layout->n_fragments;
    pool_destroy(pool);
    outer_state_finish(&outer);
    return status;
}

/* --- copies and the disk ------------------------------------------------------------------------------------------ */

/* Seconds to copy `floats` parameters, measured on a part of them. */
static enum status copy_cost(uint64_t floats, double *seconds)
{
    enum { PART = 1 << 20 };
    size_t n = floats < PART ? (size_t)floats : PART;
    float *a = mem_alloc(n, sizeof *a), *b = mem_alloc(n, sizeof *b);
    double times[REPEATS];
    for (int k = 0; a && b && k < REPEATS; k++) {
        double t = seconds_now();
        memcpy(k % 2 ? a : b, k % 2 ? b : a, n * sizeof *a);
        times[k] = seconds_now() - t;
    }
    bool ok = a && b;
    mem_free(a);
    mem_free(b);
    if (ok) *seconds = median_of(times, REPEATS) * (double)floats / (double)n;
    return ok ? STATUS_OK : STATUS_NOMEM;
}

/* Measures the disk in the folder for temporary files. A folder that cannot be written counts as a disk without cost.
 */
static void disk_cost(struct plan_costs *costs)
{
    enum { BYTES = 1 << 20 };
    const char *folder = getenv("TMPDIR");
    char path[512];
    double small[REPEATS] = {0}, plain[REPEATS] = {0}, large[REPEATS] = {0};
    uint8_t *data = mem_alloc(1, BYTES);
    snprintf(path, sizeof path, "%.400s/atoll-plan-XXXXXX", folder && *folder ? folder : "/tmp");
    int fd = data ? mkostemp(path, O_CLOEXEC) : -1;
    if (fd >= 0) unlink(path);
    for (int k = 0; fd >= 0 && k < REPEATS; k++) {
        double t = seconds_now();
        bool ok = write(fd, data, 4096) == 4096 && !fdatasync(fd);
        small[k] = lap(&t);
        ok = ok && write(fd, data, BYTES) == BYTES;
        plain[k] = lap(&t);
        ok = ok && !fdatasync(fd);
        large[k] = lap(&t);
        if (!ok) small[k] = plain[k] = large[k] = 0;
    }
    if (fd >= 0) close(fd);
    mem_free(data);
    double more = median_of(large, REPEATS) - median_of(small, REPEATS);
    costs->sync_s = median_of(small, REPEATS);
    costs->sync_byte_s = more > 0 ? more / BYTES : 0;
    costs->byte_s = median_of(plain, REPEATS) / BYTES;
}

enum status plan_cost_measure(struct plan_costs *costs, const struct config *config, const struct layout *layout,
                              uint32_t workers, struct err *err)
{
    struct layout sample = {0};
    double vectors = config->train.method == METHOD_DDP ? 1 : 3; /* a save: parameters and moments */
    enum status status;
    if (layout->n_params <= PLAN_WHOLE_FLOATS) {
        status = measure_layout(costs, config, layout, workers, err);
    } else {
        status = plan_matrix(&sample, PLAN_SAMPLE_FLOATS);
        if (status == STATUS_OK) status = measure_layout(costs, config, &sample, workers, err);
        struct plan_fragment one = costs->fragments[0];
        for (uint32_t f = 0; f < layout->n_fragments; f++)
            costs->fragments[f] = scaled(&one, layout->fragments[f].count);
        costs->n_fragments = layout->n_fragments;
        layout_finish(&sample);
    }
    if (status == STATUS_OK) status = copy_cost(layout->n_params, &costs->place_s);
    if (status == STATUS_NOMEM) err_set(err, status, "out of memory");
    costs->place_s *= 2;
    disk_cost(costs);
    double saved = vectors * sizeof(float) * (double)layout->n_params;
    costs->save_s = costs->sync_s + (costs->sync_byte_s + costs->byte_s) * saved;
    return status;
}
