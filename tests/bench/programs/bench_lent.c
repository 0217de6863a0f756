/* Host memory of a program with libatoll: the worker of `./run bench lent`.
 *
 * Usage: bench_lent RUN DIR copied|lent WIDTH LAYERS VOCAB
 *
 * The program has the tensors of a GPT-2 and no model: "training" subtracts a pattern from each parameter, so that all
 * memory beyond its start belongs to the outer path.
 * - copied: the library has a buffer for the trained parameters (atoll_params).
 * - lent: the program lends theta and change (options.theta), which are counted.
 * Prints one JSON object: peak of the resident memory, what the library announced, seconds of the last round. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "include/atoll.h"

enum { TENSORS_MAX = 2048, NAME_MAX_BYTES = 64, WAIT_MS = 1000 };

static struct atoll_tensor tensors[TENSORS_MAX];
static char names[TENSORS_MAX][NAME_MAX_BYTES];
static uint32_t n_tensors;
static uint64_t n_params;
static double announced_mib;
static struct atoll_error error;

static void die(const char *what)
{
    fprintf(stderr, "bench_lent: %s: %s\n", what, error.text);
    exit(1);
}

static void on_log(void *ctx, enum atoll_log_level level, const char *line)
{
    const char *total = strstr(line, ", total ");
    (void)ctx;
    if (level <= ATOLL_LOG_WARN) fprintf(stderr, "%s\n", line);
    if (!strncmp(line, "memory of the outer loop", 24) && total) announced_mib = atof(total + 8);
}

static void add(const char *name, int layer, uint64_t rows, uint64_t cols)
{
    if (n_tensors == TENSORS_MAX) die("too many layers");
    struct atoll_tensor *t = &tensors[n_tensors];
    snprintf(names[n_tensors], NAME_MAX_BYTES, "h.%d.%s", layer, name);
    *t = (struct atoll_tensor){.name = names[n_tensors++], .ndim = cols ? 2 : 1, .shape = {rows, cols}};
    n_params += rows * (cols ? cols : 1);
}

static void list_tensors(uint64_t width, int layers, uint64_t vocab)
{
    add("wte", 0, vocab, width);
    add("wpe", 0, 1024, width);
    for (int i = 0; i < layers; i++) {
        add("ln_1", i, 2 * width, 0);
        add("c_attn", i, width, 3 * width);
        add("c_proj", i, width, width);
        add("ln_2", i, 2 * width, 0);
        add("c_fc", i, width, 4 * width);
        add("mlp", i, 4 * width, width);
    }
}

/* A line of /proc/self/status, in bytes. */
static double status_bytes(const char *key)
{
    char line[256];
    double kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key))) kib = atof(line + strlen(key));
    if (f) fclose(f);
    return kib * 1024;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static float pattern(uint64_t i, uint64_t round)
{
    return (float)(((i + 37 * round) * UINT64_C(2654435761) >> 8 & 0xffff)) * 1e-7f - 3e-3f;
}

/* Takes the steps of a round, then hands the trained parameters over. theta NULL: atoll_params. */
static void train(struct atoll *a, const float *theta, float *change)
{
    const struct atoll_step step = {.tokens = 8, .loss = 2, .lr = 1e-3, .grad_norm = 1, .step_us = 1000};
    enum atoll_action action = ATOLL_CONTINUE;
    struct atoll_round round;
    if (atoll_begin(a, &round, &error) != ATOLL_OK) die("begin");
    while (action == ATOLL_CONTINUE)
        if (atoll_step(a, &step, &action, &error) != ATOLL_OK) die("step");
    bool adds = theta && atoll_exchanges(a) == ATOLL_CHANGES;
    float *params = theta ? change : atoll_params(a);
    for (uint64_t i = 0; i < n_params; i++) {
        float trained = (adds ? theta[i] : params[i]) - pattern(i, round.round);
        params[i] = adds ? params[i] + (theta[i] - trained) : trained;
    }
    if (atoll_push(a, &error) != ATOLL_OK) die("push");
}

/* Seconds of a copy of n_params floats. */
static double copy_seconds(void)
{
    size_t half = n_params * sizeof(float) / 16;
    char *from = malloc(half), *to = malloc(half);
    if (!from || !to) die("no memory");
    memset(from, 1, half);
    memset(to, 2, half);
    double started = seconds();
    for (int i = 0; i < 16; i++) {
        memcpy(to, from, half);
        __asm__ volatile("" : : "r"(to) : "memory"); /* each copy is made */
    }
    double took = seconds() - started;
    volatile char seen = to[half / 2];
    (void)seen;
    free(from);
    free(to);
    return took;
}

int main(int argc, char **argv)
{
    if (argc != 7) die("usage");
    bool lent = !strcmp(argv[3], "lent");
    struct atoll *a;
    enum atoll_event event = ATOLL_WAITING;
    list_tensors(strtoull(argv[4], NULL, 10), atoi(argv[5]), strtoull(argv[6], NULL, 10));
    atoll_set_log(on_log, NULL);
    double own = status_bytes("VmRSS:");
    struct atoll_options options = {.size = sizeof options,
                                    .join = argv[1],
                                    .dir = argv[2],
                                    .tensors = tensors,
                                    .n_tensors = n_tensors,
                                    .threads = 1,
                                    .train = {.hash = 1, .samples = 1 << 20}};
    if (lent) {
        options.theta = malloc(n_params * sizeof(float));
        options.change = malloc(n_params * sizeof(float));
        if (!options.theta || !options.change) die("no memory");
    }
    if (atoll_open(&a, &options, &error) != ATOLL_OK) die("open");
    float *first = lent ? options.theta : atoll_params(a);
    for (uint64_t i = 0; i < n_params; i++) first[i] = pattern(i, 1000) * 10;
    while (event != ATOLL_DONE) {
        if (atoll_wait(a, WAIT_MS, &event, &error) != ATOLL_OK) die("wait");
        if (event == ATOLL_TRAIN) train(a, options.theta, options.change);
    }
    double peak = status_bytes("VmHWM:") - own, n = (double)n_params;
    struct atoll_info info;
    atoll_get_info(a, &info);
    printf("{\"params\": %" PRIu64 ", \"peak\": %.3f, \"announced\": %.3f, \"compress_s\": %.4f, \"apply_s\": %.4f, "
           "\"copy_s\": %.4f, \"hash\": \"%016" PRIx64 "\"}\n",
           n_params, peak / n, announced_mib * 1048576 / n, info.compress_s, info.apply_s, copy_seconds(),
           atoll_theta_hash(a));
    atoll_close(a);
    free(options.theta);
    free(options.change);
    return 0;
}
