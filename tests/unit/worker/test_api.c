/* The library (include/atoll.h) against a coordinator in another process. */
#include <math.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/config/options.h"
#include "tests/lib/rigs/api_rig.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"
#include "worker/session/worker_session.h"

static struct atoll_error error;
static char lines[1 << 16];

static int stop(void **state)
{
    api_rig_stop();
    return tmpdir_remove(state);
}

static void keep_line(void *ctx, enum atoll_log_level level, const char *line)
{
    (void)ctx;
    size_t used = strlen(lines);
    snprintf(lines + used, sizeof lines - used, "%d %s\n", (int)level, line);
}

static struct atoll *open_worker(int slot, const char *name)
{
    struct atoll *a;
    struct atoll_options options = api_rig_options(slot, name);
    enum atoll_status status = atoll_open(&a, &options, &error);
    if (status != ATOLL_OK) print_error("%s\n", error.text);
    assert_int_equal(status, ATOLL_OK);
    return a;
}

/* --- atoll_open --------------------------------------------------------------------------------------------------- */

static void refuse_open(const struct atoll_options *options, enum atoll_status expected, const char *what)
{
    struct atoll *a;
    enum atoll_status status = atoll_open(&a, options, &error);
    if (status != expected || !strstr(error.text, what)) print_error("%d: %s\n", (int)status, error.text);
    assert_int_equal(status, expected);
    assert_null(a);
    assert_non_null(strstr(error.text, what));
    assert_int_equal(atoll_open(&a, options, NULL), expected); /* the error is optional */
}

static size_t save_nothing(void *ctx, struct atoll_part *parts, size_t cap)
{
    (void)ctx, (void)parts, (void)cap;
    return 0;
}

TEST_WITH(test_open_refuses_wrong_options, tmpdir_make, stop)
{
    api_rig_start("log: {level: info}");
    const struct atoll_options good = api_rig_options(0, "w0");
    struct atoll_tensor tensors[2] = {{.name = "a", .ndim = 1, .shape = {3}}, {.name = "a", .ndim = 1, .shape = {3}}};
    struct atoll_file file = {.name = "model.safetensors", .data = "", .size = 0};
    struct atoll_options o = good;
    o.size--;
    refuse_open(&o, ATOLL_INVALID, "options.size");
    o = good, o.n_tensors = 0;
    refuse_open(&o, ATOLL_INVALID, "options.tensors is empty");
    o = good, o.tensors = tensors, o.n_tensors = 2;
    refuse_open(&o, ATOLL_INVALID, "two tensors have the name 'a': give tied tensors once");
    tensors[1] = (struct atoll_tensor){.name = "b", .ndim = 2, .shape = {3, 0}};
    refuse_open(&o, ATOLL_INVALID, "tensor 1, 'b'");
    tensors[1].ndim = ATOLL_DIMS_MAX + 1;
    refuse_open(&o, ATOLL_INVALID, "tensor 'b' has 9 dimensions");
    tensors[1] = (struct atoll_tensor){.name = "\n", .ndim = 0};
    refuse_open(&o, ATOLL_INVALID, "must be printable ASCII");
    o = good, o.files = &file, o.n_files = 1;
    file.name = "a\nb";
    refuse_open(&o, ATOLL_INVALID, "options.files: the name of a file is not UTF-8");
    o = good, o.max_wait_s = 1;
    refuse_open(&o, ATOLL_INVALID, "max_wait_s");
    o = good, o.state.save = save_nothing;
    refuse_open(&o, ATOLL_INVALID, "options.state needs both functions");
    o = good, o.name = "a/b", o.dir = NULL;
    refuse_open(&o, ATOLL_INVALID, "name a/b cannot name a folder: give dir too");
    o = good, o.join = NULL;
    refuse_open(&o, ATOLL_INVALID, "join is missing");
    o = good, o.join = "tcp:/127.0.0.1:99";
    refuse_open(&o, ATOLL_INVALID, "join: tcp:");
    o = good, o.dir = api_rig_run();
    tmpdir_put("run/journal/x", "");
    refuse_open(&o, ATOLL_INVALID, "is the folder of a run");
    o = good, o.dir = "/dev/null/w";
    refuse_open(&o, ATOLL_IO, "/dev/null/w");
    for (int n = 1, failed = 0; n < 100; n++) { /* each allocation in turn */
        struct atoll *a;
        mem_fail_after(n);
        enum atoll_status status = atoll_open(&a, &good, &error);
        long left = mem_fail_after(0);
        atoll_close(a);
        if (status == ATOLL_OK && left) return;
        failed += status == ATOLL_NOMEM;
        assert_true(status == ATOLL_OK || (status == ATOLL_NOMEM && strstr(error.text, "memory") && !a));
        assert_true(n < 99 && failed > 0);
    }
}

/* --- the order of calls ------------------------------------------------------------------------------------------- */

TEST_WITH(test_calls_out_of_order_are_refused, tmpdir_make, stop)
{
    api_rig_start("log: {level: info}");
    struct atoll *a = open_worker(0, "w0");
    struct atoll_round round;
    struct atoll_evaluation evaluation;
    enum atoll_event event;
    enum atoll_action action;
    uint64_t samples[3];
    char text[16];
    const struct atoll_data data = {.hash = 77, .samples = API_RIG_SAMPLES, .sample_tokens = API_RIG_SEQ};
    const struct atoll_step step = {.tokens = 2 * API_RIG_SEQ, .loss = NAN, .lr = NAN, .grad_norm = NAN};
    assert_int_equal(atoll_set_data(a, &data, NULL, &error), ATOLL_OK);
    assert_int_equal(atoll_setting(a, "train.sync_every", text, sizeof text, &error), ATOLL_ORDER);
    assert_int_equal(atoll_begin(a, &round, &error), ATOLL_ORDER);
    assert_int_equal(atoll_samples(a, samples, 1, &error), ATOLL_ORDER);
    assert_int_equal(atoll_step(a, &step, &action, &error), ATOLL_ORDER);
    assert_int_equal(atoll_push(a, &error), ATOLL_ORDER);
    assert_int_equal(atoll_evaluation(a, &evaluation, &error), ATOLL_ORDER);
    assert_int_equal(atoll_evaluated(a, NULL, NULL, &error), ATOLL_ORDER);
    api_rig_wait(a, ATOLL_TRAIN);
    assert_int_equal(atoll_set_data(a, &data, NULL, &error), ATOLL_ORDER);
    assert_int_equal(atoll_begin(a, &round, &error), ATOLL_OK);
    assert_int_equal(atoll_begin(a, &round, &error), ATOLL_ORDER);
    assert_int_equal(atoll_wait(a, 0, &event, &error), ATOLL_ORDER);
    assert_non_null(strstr(error.text, "a round is in training"));
    assert_int_equal(atoll_push(a, &error), ATOLL_ORDER);
    assert_int_equal(atoll_samples(a, samples, 3, &error), ATOLL_OK);
    assert_int_equal(atoll_samples(a, samples, 2, &error), ATOLL_EXHAUSTED); /* one is left, and stays */
    assert_non_null(strstr(error.text, "has 1 samples left, fewer than 2"));
    assert_int_equal(atoll_samples(a, samples, 1, &error), ATOLL_OK);
    assert_int_equal(atoll_step(a, &step, &action, &error), ATOLL_OK);
    assert_int_equal(atoll_step(a, &step, &action, &error), ATOLL_OK);
    assert_int_equal(action, ATOLL_SYNC);
    assert_int_equal(atoll_step(a, &step, &action, &error), ATOLL_ORDER);
    assert_int_equal(atoll_push(a, &error), ATOLL_OK);
    assert_int_equal(atoll_push(a, &error), ATOLL_ORDER);
    assert_int_equal(atoll_setting(a, "train.sync_every", text, sizeof text, &error), ATOLL_OK);
    assert_string_equal(text, "2");
    assert_int_equal(atoll_setting(a, "train.sync", text, sizeof text, &error), ATOLL_INVALID);
    assert_int_equal(atoll_setting(a, "train.method", text, 3, &error), ATOLL_INVALID);
    atoll_leave(a, "enough");
    atoll_leave(a, "again");
    assert_int_equal(atoll_wait(a, 0, &event, &error), ATOLL_ORDER);
    assert_non_null(atoll_params(a));
    atoll_close(a);
}

/* The run waits for a worker that is gone without a word, and goes on without one that left. */
TEST_WITH(test_abandoned_worker_has_not_left, tmpdir_make, stop)
{
    char log[8192] = "";
    api_rig_start("log: {level: info}");
    for (int leaves = 0; leaves < 2; leaves++) {
        struct atoll *a = open_worker(0, "w0");
        enum atoll_event event;
        api_rig_wait(a, ATOLL_TRAIN);
        if (leaves)
            atoll_leave(a, "enough");
        else
            atoll_abandon(a);
        atoll_abandon(a);
        assert_int_equal(atoll_wait(a, 0, &event, &error), ATOLL_ORDER);
        atoll_close(a);
    }
    atoll_abandon(NULL);
    const char *left = NULL;
    for (int i = 0; i < 20000 && !left; i++) {
        FILE *file = fopen(tmpdir_path("coordinator.log"), "r");
        assert_non_null(file);
        log[fread(log, 1, sizeof log - 1, file)] = 0;
        fclose(file);
        left = strstr(log, "w0 left");
        if (!left) usleep(1000);
    }
    assert_int_equal(strncmp(left ? left : log, "w0 left: enough", 15), 0);
    assert_null(strstr(left + 1, "w0 left"));
}

TEST_WITH(test_wrong_tokens_are_refused, tmpdir_make, stop)
{
    api_rig_start("log: {level: info}");
    struct atoll *a = open_worker(0, "w0");
    struct atoll_round round;
    enum atoll_action action;
    for (uint64_t tokens = 0; tokens <= 2 * API_RIG_SEQ + 1; tokens += 2 * API_RIG_SEQ + 1) {
        const struct atoll_step step = {.tokens = tokens, .loss = 1};
        api_rig_wait(a, ATOLL_TRAIN);
        assert_int_equal(atoll_begin(a, &round, &error), ATOLL_OK);
        for (uint32_t i = 0; i < round.steps; i++) assert_int_equal(atoll_step(a, &step, &action, &error), ATOLL_OK);
        assert_int_equal(atoll_push(a, &error), ATOLL_INVALID);
        assert_non_null(strstr(error.text, tokens ? "trained on 34 tokens, but it has 4 samples of 8" : "on 0 tokens"));
        atoll_close(a);
        a = open_worker(0, "w0");
    }
    atoll_close(a);
}

/* --- rounds ------------------------------------------------------------------------------------------------------- */

/* The order of the caller's tensors is not that of the run, and names have the prefix of transformers. */
TEST_WITH(test_tensors_in_another_order, tmpdir_make, stop)
{
    static struct atoll_tensor turned[64];
    static char names[64][128];
    struct atoll *a;
    api_rig_start("log: {level: info}");
    struct atoll_options options = api_rig_options(0, "w0");
    uint32_t n = options.n_tensors;
    for (uint32_t i = 0; i < n; i++) {
        turned[i] = options.tensors[n - 1 - i];
        snprintf(names[i], sizeof names[i], "transformer.%s", turned[i].name);
        turned[i].name = names[i];
    }
    options.tensors = turned;
    assert_int_equal(atoll_open(&a, &options, &error), ATOLL_OK);
    api_rig_wait(a, ATOLL_TRAIN);
    assert_int_equal(api_rig_round(a, 0.25f, &error), ATOLL_OK);
    api_rig_wait(a, ATOLL_TRAIN);
    struct atoll_round round;
    assert_int_equal(atoll_begin(a, &round, &error), ATOLL_OK);
    const float *p = atoll_params(a);
    uint64_t at = 0;
    for (uint32_t i = n; i-- > 0;) { /* layer norms start at 1, biases at 0 */
        const struct tensor *t = &api_rig_layout()->tensors[i];
        if (t->init != LAYOUT_INIT_NORMAL)
            for (uint64_t k = 0; k < t->count; k++)
                assert_true(p[at + k] == (t->init == LAYOUT_INIT_ONES ? 1.25f : 0.25f));
        at += t->count;
    }
    assert_int_equal(at, atoll_n_params(a));
    atoll_close(a);
}

TEST_WITH(test_first_different_tensor_is_named, tmpdir_make, stop)
{
    static struct atoll_tensor tensors[64];
    struct atoll *a;
    api_rig_start("log: {level: info}");
    static const char *const what[] = {
        "tensor 'h.0.ln_1.weight' has the shape [5], but the run's has [4]",
        "tensor 'extra' is not a parameter of the run's model (model.family gpt2)",
        "the run's tensor 'ln_f.bias', shape [4], is missing",
        "a sample has 9 tokens, but the run has model.block_size 8",
        "train.samples is 0, but the run has model.family gpt2",
    };
    for (int i = 0; i < 5; i++) {
        struct atoll_options options = api_rig_options(0, "w0");
        memcpy(tensors, options.tensors, options.n_tensors * sizeof *tensors);
        options.tensors = tensors;
        if (i == 0) tensors[2].shape[0]++;
        if (i == 1) tensors[options.n_tensors++] = (struct atoll_tensor){.name = "extra", .ndim = 0};
        if (i == 2) options.n_tensors--;
        if (i == 3) options.train.sample_tokens++;
        if (i == 4) options.train.samples = 0;
        assert_int_equal(atoll_open(&a, &options, &error), ATOLL_OK);
        api_rig_fails(a, ATOLL_INVALID, what[i]);
        atoll_close(a);
    }
}

TEST_WITH(test_run_of_ddp_is_refused, tmpdir_make, stop)
{
    api_rig_start("train: {method: ddp}");
    struct atoll *a = open_worker(0, "w0");
    api_rig_fails(a, ATOLL_INVALID, "train.method ddp");
    atoll_close(a);
}

/* --- faults ------------------------------------------------------------------------------------------------------- */

static uint64_t counter, resets;

static size_t save_counter(void *ctx, struct atoll_part *parts, size_t cap)
{
    (void)ctx;
    assert_true(cap >= 2);
    parts[0] = (struct atoll_part){.data = &counter, .size = 4};
    parts[1] = (struct atoll_part){.data = (char *)&counter + 4, .size = 4};
    return 2;
}

static int load_counter(void *ctx, const void *data, size_t size)
{
    (void)ctx;
    counter = 0;
    resets += !data;
    if (!data) return 0;
    if (size != sizeof counter) return -1;
    memcpy(&counter, data, sizeof counter);
    return 0;
}

static struct atoll *open_with_state(int slot, const char *name)
{
    struct atoll *a;
    struct atoll_options options = api_rig_options(slot, name);
    options.state = (struct atoll_state){.save = save_counter, .load = load_counter};
    assert_int_equal(atoll_open(&a, &options, &error), ATOLL_OK);
    return a;
}

TEST_WITH(test_nan_resets_and_third_ends, tmpdir_make, stop)
{
    api_rig_start("log: {level: info}");
    resets = 0;
    struct atoll *a = open_with_state(0, "w0");
    for (int i = 1; i <= 3; i++) {
        api_rig_wait(a, ATOLL_TRAIN);
        counter = 9;
        assert_int_equal(api_rig_round(a, NAN, &error), i < 3 ? ATOLL_NONFINITE : ATOLL_FAILED);
        if (i < 3) assert_non_null(strstr(error.text, " values that are NaN or infinite: the round is dropped"));
        assert_int_equal(counter, 0);
        assert_int_equal(resets, i);
    }
    assert_non_null(strstr(error.text, "training diverges to NaN or infinity"));
    api_rig_fails(a, ATOLL_FAILED, "training diverges");
    atoll_close(a);
}

TEST_WITH(test_infinite_loss_is_not_finite, tmpdir_make, stop)
{
    api_rig_start("log: {level: info}");
    struct atoll *a = open_worker(0, "w0");
    struct atoll_round round;
    enum atoll_action action;
    const struct atoll_step step = {.tokens = 2 * API_RIG_SEQ, .loss = INFINITY};
    api_rig_wait(a, ATOLL_TRAIN);
    assert_int_equal(atoll_begin(a, &round, &error), ATOLL_OK);
    for (uint32_t i = 0; i < round.steps; i++) assert_int_equal(atoll_step(a, &step, &action, &error), ATOLL_OK);
    assert_int_equal(atoll_push(a, &error), ATOLL_NONFINITE);
    assert_non_null(strstr(error.text, "round 1: the loss is NaN or infinite: the round is dropped"));
    atoll_close(a);
}

/* A coordinator that never comes, and one that is gone. */
TEST_WITH(test_unreachable_coordinator, tmpdir_make, stop)
{
    struct atoll *a;
    enum atoll_event event;
    api_rig_start("log: {level: info}");
    struct atoll_options options = api_rig_options(0, "w0");
    options.join = tmpdir_path("nothing");
    assert_int_equal(atoll_open(&a, &options, &error), ATOLL_OK);
    assert_int_equal(atoll_wait(a, 0, &event, &error), ATOLL_OK);
    assert_int_equal(event, ATOLL_WAITING);
    assert_non_null(strstr(atoll_text(a), "nothing/address does not exist: start a coordinator"));
    atoll_close(a);
    options.join = "tcp://no-such-host.invalid:29600/"
                   "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    enum atoll_status status = atoll_open(&a, &options, &error);
    atoll_close(a);
    assert_true(status == ATOLL_UNREACHABLE || (status == ATOLL_OK && a)); /* OK: the name service does not answer */
    options.join = "tcp://127.0.0.1:9/"
                   "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    assert_int_equal(atoll_open(&a, &options, &error), ATOLL_OK);
    api_rig_fails(a, ATOLL_UNREACHABLE, "cannot join: tcp://127.0.0.1:9 refused the connection");
    atoll_close(a);
}

/* --- log and token shards ----------------------------------------------------------------------------------------- */

TEST_WITH(test_lines_go_to_the_function_or_nowhere, tmpdir_make, stop)
{
    api_rig_start("log: {level: info}");
    int before = dup(STDERR_FILENO), file = fileno(tmpfile());
    dup2(file, STDERR_FILENO);
    for (int logged = 0; logged < 2; logged++) {
        atoll_set_log(logged ? keep_line : NULL, NULL);
        struct atoll *a = open_worker(0, "w0");
        api_rig_wait(a, ATOLL_TRAIN);
        atoll_close(a);
    }
    atoll_set_log(NULL, NULL);
    dup2(before, STDERR_FILENO);
    assert_int_equal(lseek(file, 0, SEEK_END), 0); /* nothing was printed */
    assert_non_null(strstr(lines, "2 rig: 348 parameters in 1 fragment, local-sgd, H 2, up fp32, down fp32\n"));
    assert_non_null(strstr(lines, "2 memory of the outer loop in MiB: "));
    close(before);
    close(file);
}

TEST_WITH(test_token_shards, tmpdir_make, stop)
{
    struct atoll_tokens *t;
    struct atoll_data data;
    uint32_t out[5];
    uint16_t tokens[11];
    int32_t head[256] = {20240520, 1, 11};
    for (uint16_t i = 0; i < 11; i++) tokens[i] = (uint16_t)(100 + i);
    FILE *f = fopen(tmpdir_path("t_000000.bin"), "wb");
    assert_true(fwrite(head, 1, sizeof head, f) == sizeof head && fwrite(tokens, 1, sizeof tokens, f) == sizeof tokens);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(atoll_tokens_open(&t, tmpdir_path("none_*.bin"), 4, &data, &error), ATOLL_INVALID);
    assert_int_equal(atoll_tokens_open(&t, tmpdir_path("t_*.bin"), 0, &data, &error), ATOLL_INVALID);
    assert_int_equal(atoll_tokens_open(&t, tmpdir_path("t_*.bin"), 11, &data, &error), ATOLL_INVALID);
    assert_non_null(strstr(error.text, "has no shard of more than 11 tokens"));
    assert_int_equal(atoll_tokens_open(&t, tmpdir_path("t_*.bin"), 4, &data, &error), ATOLL_OK);
    assert_true(data.samples == 2 && data.sample_tokens == 4 && data.hash);
    assert_int_equal(atoll_tokens_read(t, 1, out, &error), ATOLL_OK);
    for (uint32_t i = 0; i < 5; i++) assert_int_equal(out[i], 104 + i);
    assert_int_equal(atoll_tokens_read(t, 2, out, &error), ATOLL_INVALID);
    assert_int_equal(truncate(tmpdir_path("t_000000.bin"), 1030), 0);
    assert_int_equal(atoll_tokens_read(t, 1, out, &error), ATOLL_IO);
    atoll_tokens_close(t);
    atoll_tokens_close(NULL);
}

TEST(test_wait_for_a_lost_coordinator)
{
    struct worker_session_options o = {.max_wait_us = worker_session_max_wait_us(UINT64_MAX)}; /* not given */
    assert_int_equal(worker_session_limit_us(&o, false), UINT64_MAX);
    assert_int_equal(worker_session_limit_us(&o, true), UINT64_C(43200000000)); /* 12 hours */
    o.max_wait_us = worker_session_max_wait_us(60);
    assert_int_equal(worker_session_limit_us(&o, false), 60000000);
    assert_int_equal(worker_session_limit_us(&o, true), 60000000);
    o.max_wait_us = worker_session_max_wait_us(OPTION_NO_LIMIT);
    assert_true(worker_session_limit_us(&o, true) > UINT64_C(1) << 63);
    assert_true(o.max_wait_us != UINT64_MAX); /* it also retries the first connection */
}

TEST_MAIN(NULL, NULL)
