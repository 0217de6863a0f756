/* Benchmark of the coordinator between the last delta and the update: open, merge, outer step, publish.
 *
 * Usage: bench_merge [--params N] [--workers N] [--threads N] [--up SPEC] [--down SPEC] [--method NAME] [--clip CLIP]
 *        [--state TYPE] [--seconds S] [--json FILE]
 *
 * Without --up it measures:
 * - the dense codecs on 16 Mi parameters and 4 workers, with one thread and with all threads;
 * - topk:64/4096+sign on 124 M parameters and 16 workers, with SGD and with Nesterov as the outer optimizer.
 *
 * Columns:
 * - "GB/s": fp32 gigabytes of deltas per second (4 bytes per parameter and worker), median and best of the
 *   repetitions. All codecs compare with memcpy of as many floats in the same run.
 * - "cpu": CPU milliseconds, summed over the threads. Other load disturbs it less than wall time.
 * - "outer step": open, merge, optimizer, publish, hash of theta: all work between the last delta and the journal. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/config/options.h"
#include "compress/merge.h"
#include "coordinator/outer/delta_measure.h"
#include "coordinator/outer/outer_state.h"
#include "tests/bench/lib/machine.h"

enum { RUNS_MAX = 1000, RUNS_MIN = 3, WORKERS_MAX = 256, SHIFT = 4099 };

struct bench {
    uint64_t params, workers, threads;
    double seconds;
    const char *up, *down, *rule, *clip, *state, *method;
    struct config config;
    struct layout layout;
    struct outer_state outer;
    struct merge_delta *deltas; /* [fragments][workers] */
    float *noise;               /* [largest fragment + WORKERS_MAX * SHIFT] */
    uint64_t version, largest, payload;
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

static double cpu_seconds(void)
{
    struct timespec t;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t)) die("cannot read the CPU clock");
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void measure(struct bench *b, const char *what, run_fn run)
{
    double times[RUNS_MAX], cpu[RUNS_MAX], bytes = (double)b->params * (double)b->workers * sizeof(float);
    int n = 0;
    run(b);
    uint64_t start = clock_monotonic_us();
    while (n < RUNS_MAX && (n < RUNS_MIN || (double)(clock_monotonic_us() - start) < b->seconds * 1e6)) {
        uint64_t t = clock_monotonic_us();
        double used = cpu_seconds();
        run(b);
        cpu[n] = cpu_seconds() - used;
        times[n++] = (double)(clock_monotonic_us() - t + 1) * 1e-6;
    }
    qsort(times, (size_t)n, sizeof *times, by_value);
    qsort(cpu, (size_t)n, sizeof *cpu, by_value);
    double median = times[n / 2], best = times[0];
    printf("%-18s %-18s %-18s %-9s %7llu %8.2f %8.2f %9.1f %9.1f %5d\n", what, b->up, b->down, b->method,
           (unsigned long long)b->threads, bytes / median * 1e-9, bytes / best * 1e-9, median * 1e3, cpu[n / 2] * 1e3,
           n);
    fflush(stdout);
    json_array_append_new(b->rows, json_pack("{s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:I,s:i}", "what", what,
                                             "codec", b->up, "down", b->down, "method", b->method, "params",
                                             (json_int_t)b->params, "workers", (json_int_t)b->workers, "threads",
                                             (json_int_t)b->threads, "gb_per_s", bytes / median * 1e-9, "best_gb_per_s",
                                             bytes / best * 1e-9, "median_s", median, "best_s", best, "cpu_s",
                                             cpu[n / 2], "payload_bytes", (json_int_t)b->payload, "runs", n));
}

static uint64_t count_of(const struct bench *b, uint32_t f)
{
    return b->layout.fragments[f].count;
}

static void run_memcpy(struct bench *b)
{
    for (uint32_t f = 0; f < b->layout.n_fragments; f++)
        for (uint64_t w = 0; w < b->workers; w++)
            memcpy(b->outer.acc, b->noise + w * SHIFT, count_of(b, f) * sizeof(float));
}

/* Cost of a delta on arrival: a checksum, and checks that the payload is complete and finite. */
static void run_check(struct bench *b)
{
    for (uint32_t f = 0; f < b->layout.n_fragments; f++)
        for (uint64_t w = 0; w < b->workers; w++) {
            struct merge_delta *d = &b->deltas[f * b->workers + w];
            if (crc32c(0, d->payload, d->size) == 1) die("unexpected checksum");
            must(merge_open(b->outer.fragments[f].up, d));
        }
}

/* The rest of that cost: norm and direction of the decoded values. */
static void run_measure(struct bench *b)
{
    for (uint32_t f = 0; f < b->layout.n_fragments; f++)
        for (uint64_t w = 0; w < b->workers; w++)
            if (!delta_measure(&b->outer, f, &b->deltas[f * b->workers + w].view).in_range) die("out of range");
}

static void merge_fragment(struct bench *b, uint32_t f)
{
    struct merge merge;
    for (uint64_t w = 0; w < b->workers; w++) b->outer.tokens[w] = 1000;
    must(merge_start(&merge, &b->outer.merger, &b->layout, f, b->outer.fragments[f].up,
                     b->outer.theta + b->layout.fragments[f].offset, b->outer.acc, b->outer.tokens,
                     (uint32_t)b->workers));
    if (merge_needs_norms(&merge)) merge_compute_norms(&merge, b->deltas + f * b->workers, (uint32_t)b->workers);
    merge_add(&merge, b->deltas + f * b->workers, (uint32_t)b->workers);
}

static void run_merge(struct bench *b)
{
    for (uint32_t f = 0; f < b->layout.n_fragments; f++) merge_fragment(b, f);
}

static void run_step(struct bench *b)
{
    b->payload = 0;
    b->version++;
    for (uint32_t f = 0; f < b->layout.n_fragments; f++) {
        struct outer_step step = {.fragment = f, .version = b->version, .members = (uint32_t)b->workers};
        size_t size;
        must(outer_state_step(&b->outer, &step, 4096, &size));
        b->payload += size;
    }
}

/* One outer step, from the deltas in memory to the update in memory. */
static void run_outer(struct bench *b)
{
    b->payload = 0;
    b->version++;
    for (uint32_t f = 0; f < b->layout.n_fragments; f++) {
        struct outer_step step = {.fragment = f, .version = b->version, .members = (uint32_t)b->workers};
        size_t size;
        for (uint64_t w = 0; w < b->workers; w++)
            must(merge_open(b->outer.fragments[f].up, &b->deltas[f * b->workers + w]));
        merge_fragment(b, f);
        must(outer_state_step(&b->outer, &step, 4096, &size));
        b->payload += size;
    }
}

/* Build the layout of a GPT: one large embedding, then blocks of matrices and vectors. */
static void make_layout(struct bench *b)
{
    uint64_t left = b->params, width = 768, shape[2] = {left / 4 / width, width};
    char name[32];
    layout_init(&b->layout);
    if (shape[0]) must(layout_add(&b->layout, "embedding", 2, shape, LAYOUT_INIT_ZEROS, 0, true));
    left -= shape[0] * width;
    for (uint32_t i = 0; left; i++) {
        uint64_t vector = width < left ? width : left;
        snprintf(name, sizeof name, "block.%u.bias", i);
        must(layout_add(&b->layout, name, 1, &vector, LAYOUT_INIT_ZEROS, 0, false));
        left -= vector;
        shape[0] = left / width < 4 * width ? left / width : 4 * width;
        if (!shape[0]) continue;
        snprintf(name, sizeof name, "block.%u.weight", i);
        must(layout_add(&b->layout, name, 2, shape, LAYOUT_INIT_ZEROS, 0, true));
        left -= shape[0] * width;
    }
    must(layout_split(&b->layout, 0));
    b->largest = 0;
    for (uint32_t f = 0; f < b->layout.n_fragments; f++)
        if (count_of(b, f) > b->largest) b->largest = count_of(b, f);
}

static void set(struct bench *b, struct config_sources *sources, const char *key, const char *value)
{
    char text[160];
    struct err err = {0};
    snprintf(text, sizeof text, "%s=%s", key, value);
    if (config_set(&b->config, sources, text, CONFIG_FLAG, &err) != STATUS_OK) die(err.msg);
}

static void setup(struct bench *b)
{
    struct config_sources sources;
    struct err err = {0};
    char threads[24];
    config_defaults(&b->config, &sources);
    snprintf(threads, sizeof threads, "%llu", (unsigned long long)b->threads);
    set(b, &sources, "coordinator.threads", threads);
    set(b, &sources, "train.method", b->method);
    set(b, &sources, "codec.up", b->up);
    set(b, &sources, "codec.down", b->down);
    if (b->rule) set(b, &sources, "merge.rule", b->rule);
    if (b->clip) set(b, &sources, "merge.clip", b->clip);
    if (b->state) set(b, &sources, "outer.state", b->state);
    if (config_resolve(&b->config, &sources, &err) != STATUS_OK) die(err.msg);
    make_layout(b);
    if (outer_state_init(&b->outer, &b->config, &b->layout, &err) != STATUS_OK) die(err.msg);
    uint64_t noise = b->largest + b->workers * SHIFT;
    b->noise = mem_alloc(noise, sizeof *b->noise);
    b->deltas = mem_alloc(b->layout.n_fragments * b->workers, sizeof *b->deltas);
    if (!b->noise || !b->deltas) die("no memory");
    rng_normal_fill(1, RNG_TEST, 0, 1e-3f, b->noise, noise);
    for (uint32_t f = 0; f < b->layout.n_fragments; f++)
        for (uint64_t w = 0; w < b->workers; w++) {
            struct codec *up = b->outer.fragments[f].up;
            size_t bound = codec_bound(up), size = 0;
            uint8_t *made = mem_alloc(1, bound), *payload;
            if (!made) die("no memory");
            must(codec_encode(up, b->noise + w * SHIFT, made, bound, &size, NULL));
            payload = mem_alloc(1, size);
            if (!payload) die("no memory");
            memcpy(payload, made, size);
            mem_free(made);
            b->deltas[f * b->workers + w] = (struct merge_delta){
                .payload = payload, .size = size, .tokens = 1000, .room = mem_alloc(1, codec_open_room(up))};
        }
}

static void finish(struct bench *b)
{
    for (uint64_t i = 0; i < b->layout.n_fragments * b->workers; i++) {
        mem_free((void *)(uintptr_t)b->deltas[i].payload);
        mem_free(b->deltas[i].room);
    }
    mem_free(b->deltas);
    mem_free(b->noise);
    outer_state_finish(&b->outer);
    layout_finish(&b->layout);
}

/* Measure one codec pair. method NULL: local-sgd for topk, diloco otherwise. */
static void bench_one(struct bench *b, const char *up, const char *down, const char *method, uint64_t threads)
{
    b->up = up;
    b->down = down;
    b->threads = threads;
    b->method = method ? method : strncmp(up, "topk", 4) ? "diloco" : "local-sgd";
    setup(b);
    measure(b, "memcpy", run_memcpy);
    measure(b, "check on arrival", run_check);
    measure(b, "measure on arrival", run_measure);
    measure(b, "merge", run_merge);
    measure(b, "step + publish", run_step);
    measure(b, "outer step", run_outer);
    printf("%-18s %llu parameters, %llu workers, %.1f MB down: %.3f bits per parameter\n\n", "",
           (unsigned long long)b->params, (unsigned long long)b->workers, (double)b->payload * 1e-6,
           (double)b->payload * 8 / (double)b->params);
    finish(b);
}

static void bench_all(struct bench *b, uint64_t threads)
{
    static const char *const dense[] = {"fp32", "bf16", "int8:256"};
    static const char *const sparse = "topk:64/4096+sign";
    uint64_t params = b->params, workers = b->workers;
    b->params = params ? params : 16 << 20;
    b->workers = workers ? workers : 4;
    for (size_t i = 0; i < sizeof dense / sizeof *dense; i++) {
        bench_one(b, dense[i], dense[i], NULL, 1);
        if (threads > 1) bench_one(b, dense[i], dense[i], NULL, threads);
    }
    b->params = params ? params : 124 * 1000 * 1000;
    b->workers = workers ? workers : 16;
    bench_one(b, sparse, sparse, "local-sgd", threads);
    bench_one(b, sparse, sparse, "diloco", threads);
}

int main(int argc, char **argv)
{
    static struct bench b = {.seconds = 2};
    const char *json = NULL, *up = NULL, *down = NULL, *method = NULL;
    uint64_t threads = 0;
    struct err err = {0};
    const struct option_spec specs[] = {
        {"params", OPTION_COUNT, &b.params, "N", "parameters (16 Mi; sparse: 124 M)"},
        {"workers", OPTION_COUNT, &b.workers, "N", "deltas merged (4; sparse: 16)"},
        {"threads", OPTION_COUNT, &threads, "N", "threads of the coordinator (all cores)"},
        {"up", OPTION_TEXT, &up, "SPEC", "codec of the deltas (a fixed list)"},
        {"down", OPTION_TEXT, &down, "SPEC", "with --up: codec of the update (that of --up)"},
        {"method", OPTION_TEXT, &method, "NAME", "with --up: local-sgd (default for topk) or diloco"},
        {"rule", OPTION_TEXT, &b.rule, "RULE", "merge.rule (default of the codec)"},
        {"clip", OPTION_TEXT, &b.clip, "CLIP", "merge.clip (auto)"},
        {"state", OPTION_TEXT, &b.state, "TYPE", "outer.state (auto)"},
        {"seconds", OPTION_REAL, &b.seconds, "S", "minimum time per row (2)"},
        {"json", OPTION_TEXT, &json, "FILE", "also write the rows as JSON"},
    };
    struct options options = {.program = "bench_merge",
                              .usage = "[options]",
                              .about = "Merge speed of the coordinator.",
                              .specs = specs,
                              .n_specs = sizeof specs / sizeof *specs};
    enum status status = options_parse(&options, argc, argv, &err);
    if (status != STATUS_OK) return status == STATUS_END ? EXIT_DONE : options_fail("bench_merge", &err);
    if (b.workers > WORKERS_MAX) die("--workers: at most 256");
    if (!threads) threads = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
    b.rows = json_array();
    if (!b.rows) die("no memory");
    printf("%-18s %-18s %-18s %-9s %7s %8s %8s %9s %9s %5s\n", "", "codec", "down", "method", "threads", "GB/s", "best",
           "ms", "cpu", "runs");
    if (up) {
        if (!b.params) b.params = 16 << 20;
        if (!b.workers) b.workers = 4;
        bench_one(&b, up, down ? down : up, method, threads);
    } else {
        bench_all(&b, threads);
    }
    json_t *out = json_pack("{s:s,s:o,s:o}", "name", "merge", "machine", machine_json(), "rows", b.rows);
    if (json && (!out || json_dump_file(out, json, JSON_INDENT(2) | JSON_REAL_PRECISION(6))))
        die("cannot write the rows");
    json_decref(out);
    return 0;
}
