#include "tests/lib/rigs/api_rig.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/config/config.h"
#include "coordinator/server.h"
#include "tests/lib/store/tmpdir.h"
#include "worker/model/model.h"

static const char defaults[] =
    "run: {name: rig, seed: 5}\n"
    "model: {family: gpt2, n_layer: 1, n_head: 1, n_embd: 4, block_size: 8, vocab_size: 16}\n"
    "data: {tokenizer: none}\n"
    "coordinator: {listen: \"tcp://127.0.0.1:*\"}\n"
    "codec: {up: fp32, down: fp32}\n"
    "inner: {learning_rate: 10, schedule: constant, warmup_steps: 0}\n" /* large deltas pass */
    "train: {method: local-sgd, max_steps: 6, sync_every: 2, batch_size: 2, eval_every: 0}\n";

static pid_t coordinator;
static char run_dir[64];
static struct config config;
static struct config_sources sources;
static struct layout layout;
static struct atoll_tensor tensors[2][64];
static char dirs[2][64];

static void serve(void)
{
    struct err err = {0};
    struct server_options options = {.config = &config, .sources = &sources, .run_dir = run_dir};
    int out = open(tmpdir_path("coordinator.log"), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    enum exit_code code = server_run(&options, &err);
    if (code != EXIT_DONE) dprintf(STDERR_FILENO, "%s\n", err.msg);
    _exit((int)code);
}

void api_rig_start(const char *settings)
{
    struct err err = {0};
    layout_init(&layout);
    snprintf(run_dir, sizeof run_dir, "%s", tmpdir_path("run"));
    config_defaults(&config, &sources);
    assert_int_equal(config_parse(&config, &sources, defaults, strlen(defaults), "rig", CONFIG_FILE, &err), STATUS_OK);
    assert_int_equal(config_parse(&config, &sources, settings, strlen(settings), "test", CONFIG_FLAG, &err), STATUS_OK);
    if (config_resolve(&config, &sources, &err) != STATUS_OK) fail_msg("%s: %s", settings, err.msg);
    struct model_config model = model_config_of(&config);
    assert_int_equal(model_family_find("gpt2")->layout(&model, &layout, &err), STATUS_OK);
    coordinator = fork();
    assert_true(coordinator >= 0);
    if (!coordinator) serve();
}

void api_rig_stop(void)
{
    if (coordinator > 0) {
        kill(coordinator, SIGKILL);
        waitpid(coordinator, NULL, 0);
    }
    coordinator = 0;
    layout_finish(&layout);
}

const char *api_rig_run(void)
{
    return run_dir;
}

const struct layout *api_rig_layout(void)
{
    return &layout;
}

struct atoll_options api_rig_options(int slot, const char *name)
{
    snprintf(dirs[slot], sizeof dirs[slot], "%s", tmpdir_path(name));
    assert_true(layout.n_tensors <= 64);
    for (uint32_t i = 0; i < layout.n_tensors; i++) {
        const struct tensor *t = &layout.tensors[i];
        tensors[slot][i] = (struct atoll_tensor){.name = t->name, .ndim = t->ndim};
        memcpy(tensors[slot][i].shape, t->shape, t->ndim * sizeof *t->shape);
    }
    return (struct atoll_options){.size = sizeof(struct atoll_options),
                                  .join = run_dir,
                                  .dir = dirs[slot],
                                  .tensors = tensors[slot],
                                  .n_tensors = layout.n_tensors,
                                  .threads = 1,
                                  .train = {.hash = 77, .samples = API_RIG_SAMPLES, .sample_tokens = API_RIG_SEQ}};
}

void api_rig_wait(struct atoll *a, enum atoll_event event)
{
    struct atoll_error error;
    enum atoll_event got = ATOLL_WAITING;
    uint64_t until = clock_monotonic_us() + 20000000;
    while (got == ATOLL_WAITING && clock_monotonic_us() < until) {
        enum atoll_status status = atoll_wait(a, 50, &got, &error);
        if (status != ATOLL_OK) print_error("atoll_wait: %s\n", error.text);
        assert_int_equal(status, ATOLL_OK);
    }
    if (got != event) print_error("waits for %s\n", atoll_text(a));
    assert_int_equal(got, event);
}

enum atoll_status api_rig_round(struct atoll *a, float shift, struct atoll_error *error)
{
    struct atoll_round round;
    enum atoll_action action = ATOLL_CONTINUE;
    uint64_t samples[16];
    const struct atoll_step step = {.tokens = 2 * API_RIG_SEQ, .loss = 2.5, .lr = 0.1, .grad_norm = NAN};
    assert_int_equal(atoll_begin(a, &round, error), ATOLL_OK);
    assert_int_equal(round.step_samples, 2);
    for (uint32_t i = 0; i < round.steps; i++) {
        assert_int_equal(action, ATOLL_CONTINUE);
        assert_int_equal(atoll_samples(a, samples, round.step_samples, error), ATOLL_OK);
        assert_int_equal(atoll_step(a, &step, &action, error), ATOLL_OK);
    }
    assert_int_equal(action, ATOLL_SYNC);
    for (uint64_t i = 0; i < atoll_n_params(a); i++) atoll_params(a)[i] += shift;
    return atoll_push(a, error);
}

void api_rig_fails(struct atoll *a, enum atoll_status expected, const char *what)
{
    struct atoll_error error;
    enum atoll_event event;
    enum atoll_status status = ATOLL_OK;
    for (int i = 0; i < 400 && status == ATOLL_OK; i++) status = atoll_wait(a, 50, &event, &error);
    if (status != expected || !strstr(error.text, what)) print_error("%d: %s\n", (int)status, error.text);
    assert_int_equal(status, expected);
    assert_int_equal(error.status, expected);
    assert_non_null(strstr(error.text, what));
    assert_int_equal(atoll_wait(a, 0, &event, &error), expected); /* it stays so */
}

void api_rig_wait_both(struct atoll *workers[2], enum atoll_event expected)
{
    struct atoll_error error;
    enum atoll_event events[2] = {ATOLL_WAITING, ATOLL_WAITING};
    for (int i = 0; i < 4000 && (events[0] != expected || events[1] != expected); i++) {
        enum atoll_status status = atoll_wait(workers[i % 2], 5, &events[i % 2], &error);
        if (status != ATOLL_OK) print_error("%s\n", error.text);
        assert_int_equal(status, ATOLL_OK);
    }
    assert_true(events[0] == expected && events[1] == expected);
}
