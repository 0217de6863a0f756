/* How fast the coordinator merges: decoding deltas into the accumulator, the outer step, and publishing, beside memcpy
 * in the same run. Usage: bench_merge [--params N] [--workers N] [--seconds S] [--json FILE]
 *
 * "GB/s" is fp32 gigabytes of deltas a second (4 bytes a parameter and worker), so all codecs compare with memcpy of the
 * same floats; "payload GB/s" counts the encoded bytes. Median and best of the repetitions. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/mem.h"
#include "common/options.h"
#include "common/rng.h"
#include "compress/codec.h"
#include "compress/feedback.h"
#include "coordinator/merge.h"
#include "coordinator/outer_opt.h"
#include "coordinator/publish.h"

enum { RUNS_MAX = 1000, RUNS_MIN = 5 };

struct bench {
    uint64_t n, workers;
    double seconds;
    float *x, *acc, *theta, *v;
    uint8_t *payload, *out;
    size_t size, cap;
    struct codec *codec;
    struct feedback fb;
    json_t *rows;
};

typedef void (*run_fn)(struct bench *b);

static void die(const char *what)
{
    fprintf(stderr, "bench_merge: %s\n", what);
    exit(1);
}

static void must(enum status status)
{
    if (status != STATUS_OK) die(status_text(status));
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* bytes: fp32 bytes of one run; payload: encoded bytes, 0: none. */
static void measure(struct bench *b, const char *what, const char *codec, run_fn run, double bytes, double payload)
{
    double times[RUNS_MAX];
    int n = 0;
    uint64_t start = clock_monotonic_us();
    while (n < RUNS_MAX && (n < RUNS_MIN || (double)(clock_monotonic_us() - start) < b->seconds * 1e6)) {
        uint64_t t = clock_monotonic_us();
        run(b);
        times[n++] = (double)(clock_monotonic_us() - t + 1) * 1e-6;
    }
    qsort(times, (size_t)n, sizeof *times, by_value);
    double median = times[n / 2], best = times[0];
    printf("%-22s %-10s %8.2f %8.2f %10.2f %10.1f %5d\n", what, codec, bytes / median * 1e-9, bytes / best * 1e-9,
           payload / median * 1e-9, median * 1e3, n);
    json_array_append_new(b->rows, json_pack("{s:s,s:s,s:f,s:f,s:f,s:f,s:i}", "what", what, "codec", codec, "gb_per_s",
                                             bytes / median * 1e-9, "best_gb_per_s", bytes / best * 1e-9,
                                             "payload_gb_per_s", payload / median * 1e-9, "median_s", median, "runs", n));
}

static void run_memcpy(struct bench *b)
{
    for (uint64_t w = 0; w < b->workers; w++) memcpy(b->acc, b->x, b->n * sizeof *b->x);
}

static void run_merge(struct bench *b)
{
    struct merge merge;
    merge_start(&merge, b->acc, b->n, b->workers * 1000);
    for (uint64_t w = 0; w < b->workers; w++) must(merge_add(&merge, b->codec, 1000, b->payload, b->size));
}

/* What a delta costs when it arrives: its checksum, and a decode that proves it finite. */
static void run_check(struct bench *b)
{
    if (crc32c(0, b->payload, b->size) == 1) die("cannot be");
    must(codec_decode(b->codec, b->payload, b->size, b->acc));
}

static void run_nesterov(struct bench *b)
{
    struct outer_in in = {.theta = b->theta, .acc = b->acc, .n = b->n, .increment = true};
    memcpy(b->acc, b->x, b->n * sizeof *b->x);
    outer_nesterov(&in, b->v, 0.7, 0.9);
}

static void run_publish(struct bench *b)
{
    size_t size;
    uint64_t hash;
    memcpy(b->acc, b->x, b->n * sizeof *b->x);
    must(publish_step(b->codec, &b->fb, false, b->acc, b->theta, b->n, b->out, b->cap, &size, &hash));
}

static void run_whole(struct bench *b)
{
    struct outer_in in = {.theta = b->theta, .acc = b->acc, .n = b->n, .increment = true};
    size_t size;
    uint64_t hash;
    run_merge(b);
    outer_nesterov(&in, b->v, 0.7, 0.9);
    must(publish_step(b->codec, &b->fb, false, b->acc, b->theta, b->n, b->out, b->cap, &size, &hash));
}

static void bench_codec(struct bench *b, const char *spec)
{
    struct codec_span span = {.count = b->n, .rows = 1, .cols = b->n, .ndim = 1};
    struct err err = {0};
    double bytes = (double)b->n * sizeof(float), all = bytes * (double)b->workers;
    if (codec_create(&b->codec, spec, &span, 1, &err) != STATUS_OK) die(err.msg);
    b->cap = codec_bound(b->codec);
    b->payload = mem_alloc(1, b->cap);
    b->out = mem_alloc(1, b->cap);
    if (!b->payload || !b->out) die("no memory");
    must(feedback_init(&b->fb, b->n, 1, !codec_lossless(b->codec)));
    must(codec_encode(b->codec, b->x, b->payload, b->cap, &b->size, NULL));
    double payload = (double)b->size;
    measure(b, "check on arrival", spec, run_check, bytes, payload);
    measure(b, "merge", spec, run_merge, all, payload * (double)b->workers);
    measure(b, "publish", spec, run_publish, bytes, payload);
    measure(b, "merge + step + publish", spec, run_whole, all, payload * (double)b->workers);
    feedback_finish(&b->fb);
    codec_destroy(b->codec);
    mem_free(b->payload);
    mem_free(b->out);
    memset(b->theta, 0, b->n * sizeof *b->theta);
}

static json_t *machine(void)
{
    char line[256], model[200] = "unknown";
    FILE *f = fopen("/proc/cpuinfo", "r");
    int cores = 0;
    while (f && fgets(line, sizeof line, f)) {
        cores += !strncmp(line, "processor", 9);
        const char *colon = strchr(line, ':');
        if (colon && !strncmp(line, "model name", 10)) snprintf(model, sizeof model, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
    }
    if (f) fclose(f);
    return json_pack("{s:s,s:i}", "cpu", model, "cores", cores);
}

int main(int argc, char **argv)
{
    static const char *const codecs[] = {"fp32", "bf16", "int8:256"};
    struct bench b = {.n = 16 << 20, .workers = 4, .seconds = 2};
    const char *json = NULL;
    struct err err = {0};
    const struct option_spec specs[] = {
        {"params", OPTION_COUNT, &b.n, "N", "parameters of the fragment (16 Mi)"},
        {"workers", OPTION_COUNT, &b.workers, "N", "deltas merged (4)"},
        {"seconds", OPTION_REAL, &b.seconds, "S", "least time of each row (2)"},
        {"json", OPTION_TEXT, &json, "FILE", "write the rows there too"},
    };
    struct options options = {.program = "bench_merge", .usage = "[options]", .about = "Coordinator merge speed.",
                              .specs = specs, .n_specs = sizeof specs / sizeof *specs};
    enum status status = options_parse(&options, argc, argv, &err);
    if (status != STATUS_OK) return status == STATUS_END ? EXIT_DONE : options_fail("bench_merge", &err);
    if (!b.n || !b.workers) die("--params and --workers must not be 0");
    b.x = mem_alloc(b.n, sizeof *b.x);
    b.acc = mem_alloc(b.n, sizeof *b.acc);
    b.theta = mem_alloc(b.n, sizeof *b.theta);
    b.v = mem_alloc(b.n, sizeof *b.v);
    b.rows = json_array();
    if (!b.x || !b.acc || !b.theta || !b.v || !b.rows) die("no memory");
    rng_normal_fill(1, RNG_TEST, 0, 1e-3f, b.x, b.n);
    double bytes = (double)b.n * sizeof(float);
    printf("%llu parameters, %llu workers\n\n%-22s %-10s %8s %8s %10s %10s %5s\n", (unsigned long long)b.n,
           (unsigned long long)b.workers, "", "codec", "GB/s", "best", "payload", "ms", "runs");
    measure(&b, "memcpy", "-", run_memcpy, bytes * (double)b.workers, 0);
    measure(&b, "outer Nesterov", "-", run_nesterov, bytes, 0);
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) bench_codec(&b, codecs[i]);
    json_t *out = json_pack("{s:s,s:o,s:i,s:i,s:o}", "name", "merge", "machine", machine(), "params", (int)b.n, "workers",
                            (int)b.workers, "rows", b.rows);
    if (json && (!out || json_dump_file(out, json, JSON_INDENT(2) | JSON_REAL_PRECISION(6)))) die("cannot write the rows");
    json_decref(out);
    return 0;
}
