#include "cli/codec_measure.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/os/fileio.h"
#include "common/tensor/safetensors.h"
#include "compress/codec.h"
#include "compress/codec_simd.h"

enum { RUNS_MIN = 3 };

/* --- input -------------------------------------------------------------------------------------------------------- */

/* The values are one matrix until the caller says more. */
static enum status allocate(struct codec_input *in, size_t n, size_t n_spans, struct err *err)
{
    *in = (struct codec_input){.n = n, .n_spans = n_spans};
    in->x = mem_alloc(n, sizeof *in->x);
    in->spans = mem_alloc(n_spans, sizeof *in->spans);
    if (!in->x || !in->spans) {
        codec_input_finish(in);
        return err_set(err, STATUS_NOMEM, "no memory for %zu values", n);
    }
    in->spans[0] = (struct codec_span){.count = n, .rows = 1, .cols = n, .ndim = 2};
    return STATUS_OK;
}

enum status codec_input_noise(struct codec_input *in, size_t n, struct err *err)
{
    TRY(allocate(in, n, 1, err));
    rng_normal_fill(1, RNG_TEST, 0, 1e-3f, in->x, n);
    return STATUS_OK;
}

static enum status read_raw(struct codec_input *in, const char *path, struct err *err)
{
    struct file_map map;
    TRY(file_map_open(&map, path, err));
    size_t n = map.size / sizeof(float);
    enum status status = STATUS_OK;
    if (!n || map.size % sizeof(float))
        status = err_set(err, STATUS_CORRUPT,
                         "%s: %zu bytes are not a multiple of 4: give raw fp32 or a .safetensors file", path, map.size);
    if (status == STATUS_OK) status = allocate(in, n, 1, err);
    if (status == STATUS_OK) memcpy(in->x, map.data, map.size);
    file_map_close(&map);
    return status;
}

static enum status read_tensors(struct codec_input *in, const struct safetensors *st, const char *path, struct err *err)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < st->n; i++) {
        if (!st->entries[i].count || !st->entries[i].ndim)
            return err_set(err, STATUS_UNSUPPORTED, "%s: tensor %s is empty or a scalar, which codecs do not support",
                           path, st->entries[i].name);
        n += st->entries[i].count;
    }
    if (!n) return err_set(err, STATUS_CORRUPT, "%s has no tensors", path);
    TRY(allocate(in, (size_t)n, st->n, err));
    n = 0;
    for (uint32_t i = 0; i < st->n; i++) {
        const struct safetensors_entry *e = &st->entries[i];
        uint64_t cols = e->shape[e->ndim - 1];
        in->spans[i] = (struct codec_span){
            .offset = n, .count = e->count, .rows = e->count / cols, .cols = cols, .ndim = (uint8_t)e->ndim};
        enum status status = safetensors_read_f32(e, in->x + n, err);
        if (status != STATUS_OK) {
            err_prefix(err, "%.300s", path);
            return status;
        }
        n += e->count;
    }
    return STATUS_OK;
}

static enum status read_file(struct codec_input *in, const char *path, struct err *err)
{
    static const char ending[] = ".safetensors";
    size_t length = strlen(path), tail = sizeof ending - 1;
    if (length < tail || strcmp(path + length - tail, ending)) return read_raw(in, path, err);
    struct safetensors st = {0};
    enum status status = safetensors_open(&st, path, err);
    if (status == STATUS_OK) status = read_tensors(in, &st, path, err);
    safetensors_close(&st);
    return status;
}

enum status codec_input_file(struct codec_input *in, const char *path, const char *minus, struct err *err)
{
    struct codec_input other = {0};
    *in = (struct codec_input){0};
    enum status status = read_file(in, path, err);
    if (status == STATUS_OK && minus) status = read_file(&other, minus, err);
    if (status == STATUS_OK && minus) {
        if (other.n != in->n || other.n_spans != in->n_spans ||
            memcmp(other.spans, in->spans, in->n_spans * sizeof *in->spans) != 0)
            status = err_set(err, STATUS_MISMATCH,
                             "%s and %s have different tensors: give two checkpoints of one model", path, minus);
        for (size_t i = 0; status == STATUS_OK && i < in->n; i++) in->x[i] = in->x[i] - other.x[i];
    }
    size_t bad = status == STATUS_OK ? codec_first_nonfinite(in->x, in->n) : 0;
    if (status == STATUS_OK && bad < in->n)
        status = err_set(err, STATUS_NONFINITE, "%s: value %zu is not finite", path, bad);
    codec_input_finish(&other);
    if (status != STATUS_OK) codec_input_finish(in);
    return status;
}

void codec_input_finish(struct codec_input *in)
{
    mem_free(in->x);
    mem_free(in->spans);
    *in = (struct codec_input){0};
}

/* --- measurement -------------------------------------------------------------------------------------------------- */

double codec_measure_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* State of one measurement. Each payload has its own allocation, like payloads of different workers. */
struct bench {
    struct codec *codec;
    const struct codec_input *in;
    uint8_t *payload[CODEC_MEASURE_WORKERS_MAX], *room[CODEC_MEASURE_WORKERS_MAX];
    unsigned workers;
    size_t size, cap;
    float *acc;
};

static void finish(struct bench *b)
{
    for (unsigned w = 0; w < b->workers; w++) {
        mem_free(b->payload[w]);
        mem_free(b->room[w]);
    }
    mem_free(b->acc);
    codec_destroy(b->codec);
}

static enum status encode(struct bench *b)
{
    return codec_encode(b->codec, b->in->x, b->payload[0], b->cap, &b->size, NULL);
}

static enum status merge(struct bench *b)
{
    struct codec_view view[CODEC_MEASURE_WORKERS_MAX];
    struct codec_addend from[CODEC_MEASURE_WORKERS_MAX];
    for (unsigned w = 0; w < b->workers; w++) {
        TRY(codec_open(b->codec, b->payload[w], b->size, b->room[w], &view[w]));
        from[w] = (struct codec_addend){.view = &view[w], .a = 0.25f};
    }
    for (size_t p = 0, parts = codec_parts(b->codec); p < parts; p++)
        codec_views_add(from, b->workers, p, b->acc + codec_part(b->codec, p).from, NULL);
    return STATUS_OK;
}

/* Sets *best to the shortest run in seconds, after one warm-up run. */
static enum status repeat(struct bench *b, enum status (*run)(struct bench *), double seconds, double *best)
{
    double spent = 0;
    TRY(run(b));
    *best = INFINITY;
    for (int i = 0; i < RUNS_MIN || spent < seconds; i++) {
        double start = codec_measure_clock();
        TRY(run(b));
        double took = codec_measure_clock() - start;
        *best = took < *best ? took : *best;
        spent += took;
    }
    return STATUS_OK;
}

static enum status prepare(struct bench *b, const char *spec, const struct codec_input *in, unsigned workers,
                           struct err *err)
{
    assert(workers > 0 && workers <= CODEC_MEASURE_WORKERS_MAX);
    b->in = in;
    b->workers = workers;
    TRY(codec_create(&b->codec, spec, in->spans, in->n_spans, err));
    b->cap = codec_bound(b->codec);
    b->acc = mem_alloc(in->n, sizeof *b->acc);
    b->payload[0] = mem_alloc(1, b->cap);
    if (!b->acc || !b->payload[0]) return STATUS_NOMEM;
    TRY(encode(b));
    assert(b->size <= b->cap);
    size_t room = codec_open_room(b->codec);
    for (unsigned w = 0; w < workers; w++) {
        if (w) b->payload[w] = mem_alloc(1, b->size);
        if (room) b->room[w] = mem_alloc(1, room);
        if (!b->payload[w] || (room && !b->room[w])) return STATUS_NOMEM;
        if (w) memcpy(b->payload[w], b->payload[0], b->size);
    }
    return STATUS_OK;
}

static double relative_error(const float *x, const float *decoded, size_t n)
{
    double error = 0, whole = 0;
    for (size_t i = 0; i < n; i++) {
        double off = (double)x[i] - (double)decoded[i];
        error += off * off;
        whole += (double)x[i] * (double)x[i];
    }
    return whole > 0 ? sqrt(error / whole) : 0;
}

static enum status run_all(struct bench *b, double seconds, struct codec_figures *f)
{
    struct codec_view view;
    double best, bytes = (double)b->in->n * sizeof(float);
    f->bytes = b->size;
    f->bits_per_param = 8.0 * (double)b->size / (double)b->in->n;
    TRY(codec_open(b->codec, b->payload[0], b->size, NULL, &view));
    f->bound_bits = codec_bound_bits(&view);
    TRY(codec_decode(b->codec, b->payload[0], b->size, b->acc));
    f->rel_error = relative_error(b->in->x, b->acc, b->in->n);
    TRY(repeat(b, encode, seconds, &best));
    f->encode_gbps = bytes / best * 1e-9;
    memset(b->acc, 0, b->in->n * sizeof *b->acc);
    TRY(repeat(b, merge, seconds, &best));
    f->decode_merge_gbps = bytes * b->workers / best * 1e-9;
    return STATUS_OK;
}

enum status codec_measure(const char *spec, const struct codec_input *in, unsigned workers, double seconds,
                          struct codec_figures *figures, struct err *err)
{
    struct bench b = {0};
    struct err inner = {0};
    *figures = (struct codec_figures){0};
    enum status status = prepare(&b, spec, in, workers, &inner);
    if (status == STATUS_OK) {
        snprintf(figures->spec, sizeof figures->spec, "%s", codec_spec(b.codec));
        status = run_all(&b, seconds, figures);
    }
    finish(&b);
    if (status == STATUS_OK) return status;
    if (inner.msg[0]) return err_set(err, status, "%s", inner.msg);
    return err_set(err, status, "codec \"%.64s\" on %zu values: %s", spec, in->n, status_text(status));
}
