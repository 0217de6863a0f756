/* A worker that uses libatoll, for the end-to-end tests: its model is that of lib.sh's write_config, GPT-2 with one
 * layer, and its "training" moves each parameter by a function of the samples.
 *
 *     e2e_library JOIN DIR DATA [WORD...]
 *
 * Words: reverse (tensors in another order), prefix (names as in transformers), wrong (one shape differs), nan (the
 * first round has NaN), tokens (counts too few tokens), slow (20 ms a step). It prints "samples N ..." for each step,
 * "state COUNT" when its state is restored, "theta HASH" at the end. Errors go to standard error, with exit code 10 +
 * status. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "include/atoll.h"

enum { EMBED = 16, BLOCK = 32, VOCAB = 256, TENSORS = 16, SAMPLES_MAX = 64 };

static struct atoll_error error;
static uint64_t steps_done; /* the program's state */

static void check(enum atoll_status status)
{
    if (status == ATOLL_OK) return;
    fprintf(stderr, "error %d: %s\n", (int)status, error.text);
    exit(10 + (int)status);
}

static int has(int argc, char **argv, const char *word)
{
    for (int i = 4; i < argc; i++)
        if (!strcmp(argv[i], word)) return 1;
    return 0;
}

static size_t save(void *ctx, struct atoll_part *parts, size_t cap)
{
    if (!cap) return 0;
    parts[0] = (struct atoll_part){ctx, sizeof steps_done};
    return 1;
}

static int load(void *ctx, const void *data, size_t size)
{
    if (data && size != sizeof steps_done) return -1;
    memset(ctx, 0, sizeof steps_done);
    if (data) memcpy(ctx, data, size);
    printf("state %" PRIu64 "\n", steps_done);
    return 0;
}

static void log_line(void *ctx, enum atoll_log_level level, const char *line)
{
    (void)ctx;
    if (level <= ATOLL_LOG_INFO) fprintf(stderr, "%s\n", line);
}

static uint32_t make_tensors(struct atoll_tensor *tensors, char (*names)[64], int argc, char **argv)
{
    static const struct {
        const char *name;
        uint32_t ndim;
        uint64_t shape[2];
    } all[TENSORS] = {
        {"wte.weight", 2, {VOCAB, EMBED}},
        {"wpe.weight", 2, {BLOCK, EMBED}},
        {"h.0.ln_1.weight", 1, {EMBED}},
        {"h.0.ln_1.bias", 1, {EMBED}},
        {"h.0.attn.c_attn.weight", 2, {EMBED, 3 * EMBED}},
        {"h.0.attn.c_attn.bias", 1, {3 * EMBED}},
        {"h.0.attn.c_proj.weight", 2, {EMBED, EMBED}},
        {"h.0.attn.c_proj.bias", 1, {EMBED}},
        {"h.0.ln_2.weight", 1, {EMBED}},
        {"h.0.ln_2.bias", 1, {EMBED}},
        {"h.0.mlp.c_fc.weight", 2, {EMBED, 4 * EMBED}},
        {"h.0.mlp.c_fc.bias", 1, {4 * EMBED}},
        {"h.0.mlp.c_proj.weight", 2, {4 * EMBED, EMBED}},
        {"h.0.mlp.c_proj.bias", 1, {EMBED}},
        {"ln_f.weight", 1, {EMBED}},
        {"ln_f.bias", 1, {EMBED}},
    };
    for (uint32_t i = 0; i < TENSORS; i++) {
        uint32_t from = has(argc, argv, "reverse") ? TENSORS - 1 - i : i;
        snprintf(names[i], 64, "%s%s", has(argc, argv, "prefix") ? "transformer." : "", all[from].name);
        tensors[i] = (struct atoll_tensor){.name = names[i], .ndim = all[from].ndim};
        memcpy(tensors[i].shape, all[from].shape, sizeof all[from].shape);
        if (from == 6 && has(argc, argv, "wrong")) tensors[i].shape[1]++;
    }
    return TENSORS;
}

static void train_step(struct atoll *a, struct atoll_tokens *data, const struct atoll_round *round, uint32_t tokens,
                       enum atoll_action *action)
{
    uint64_t samples[SAMPLES_MAX];
    uint32_t window[BLOCK + 1], sum = 0;
    float *params = atoll_params(a);
    check(atoll_samples(a, samples, round->step_samples, &error));
    printf("samples");
    for (uint32_t i = 0; i < round->step_samples; i++) {
        check(atoll_tokens_read(data, samples[i], window, &error));
        for (int t = 0; t <= BLOCK; t++) sum += window[t];
        printf(" %" PRIu64, samples[i]);
    }
    printf("\n");
    for (uint64_t i = 0; i < atoll_n_params(a); i++) params[i] += 5e-6f * (float)((sum + i) % 1000);
    steps_done++;
    const struct atoll_step step = {
        .tokens = tokens, .loss = 5.0 + (double)(sum % 100) / 100, .lr = 1e-3, .grad_norm = NAN};
    check(atoll_step(a, &step, action, &error));
}

static void train(struct atoll *a, struct atoll_tokens *data, int argc, char **argv)
{
    static int rounds;
    struct atoll_round round;
    enum atoll_action action;
    check(atoll_begin(a, &round, &error));
    uint32_t tokens = round.step_samples * BLOCK - has(argc, argv, "tokens");
    do {
        train_step(a, data, &round, tokens, &action);
        if (has(argc, argv, "slow")) usleep(20000);
    } while (action == ATOLL_CONTINUE);
    if (action != ATOLL_SYNC) return;
    if (has(argc, argv, "nan") && !rounds++) {
        atoll_params(a)[3] = NAN;
        enum atoll_status status = atoll_push(a, &error);
        printf("nan %d\n", (int)status);
    } else {
        check(atoll_push(a, &error));
    }
}

int main(int argc, char **argv)
{
    struct atoll *a;
    struct atoll_tokens *data;
    struct atoll_tensor tensors[TENSORS];
    char names[TENSORS][64];
    struct atoll_info info;
    enum atoll_event event;
    if (argc < 4) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    atoll_set_log(log_line, NULL);
    struct atoll_options options = {.size = sizeof options,
                                    .join = argv[1],
                                    .dir = argv[2],
                                    .tensors = tensors,
                                    .n_tensors = make_tensors(tensors, names, argc, argv),
                                    .state = {.ctx = &steps_done, .save = save, .load = load},
                                    .threads = 1};
    check(atoll_tokens_open(&data, argv[3], BLOCK, &options.train, &error));
    check(atoll_open(&a, &options, &error));
    for (;;) {
        check(atoll_wait(a, 1000, &event, &error));
        if (event == ATOLL_DONE) break;
        if (event == ATOLL_TRAIN) train(a, data, argc, argv);
    }
    atoll_get_info(a, &info);
    printf("done %s\nrounds %" PRIu64 "\ntheta %016" PRIx64 "\n", atoll_text(a), info.round, atoll_theta_hash(a));
    atoll_close(a);
    atoll_tokens_close(data);
    return 0;
}
