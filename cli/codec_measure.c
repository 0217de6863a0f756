#include "cli/codec_measure.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "common/base/mem.h"
#include "compress/codec.h"

enum { RUNS_MIN = 3 };

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
