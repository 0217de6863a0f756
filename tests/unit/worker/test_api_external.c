/* The library (include/atoll.h) in runs of model.family external, whose tensors and data are the program's. */
#include <math.h>
#include <sys/stat.h>

#include "tests/lib/rigs/api_rig.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

static struct atoll_error error;

static int stop(void **state)
{
    api_rig_stop();
    return tmpdir_remove(state);
}

static const struct atoll_tensor external_tensors[] = {
    {.name = "norm.running_mean", .flags = ATOLL_MEAN, .ndim = 1, .shape = {3}},
    {.name = "weight", .flags = ATOLL_DECAY, .ndim = 2, .shape = {2, 2}},
    {.name = "steps", .flags = ATOLL_MEAN},
};

/* Opens an external worker whose parameters are first, first + 1, ... */
static struct atoll *open_external(int slot, const char *name, float first, uint64_t val_samples)
{
    struct atoll *a;
    struct atoll_options options = api_rig_options(slot, name);
    const struct atoll_file file = {.name = "config.json", .data = "{\"a\": 1}\n", .size = 9};
    options.tensors = external_tensors;
    options.n_tensors = 3;
    options.files = &file;
    options.n_files = 1;
    options.train = (struct atoll_data){.hash = 5, .samples = 50};
    options.val = (struct atoll_data){.hash = 6, .samples = val_samples, .sample_tokens = 2};
    assert_int_equal(atoll_open(&a, &options, &error), ATOLL_OK);
    assert_int_equal(atoll_n_params(a), 8);
    for (int i = 0; i < 8; i++) atoll_params(a)[i] = first + (float)i;
    return a;
}

/* Sets the variances of worker w in round r: positive, some tiny. */
static void set_variances(float *params, int w, uint32_t r)
{
    params[0] = w ? 3e-9f : 1e-7f;
    params[1] = (w ? 0.25f : 3.5f) / (float)(r + 1);
    params[2] = w ? 400.0f : 7e-3f;
    params[7] = 1e-3f * (float)(r + 1);
}

static void expect_means(const float *params, float own[2][8], const char *codecs)
{
    static const int of[] = {0, 1, 2, 7};
    for (int i = 0; i < 4; i++) {
        double got = (double)params[of[i]], mean = ((double)own[0][of[i]] + (double)own[1][of[i]]) / 2;
        if (!(got > 0) || fabs(got - mean) > 1e-6 * mean)
            fail_msg("%s: mean %d is %.9g, not %.9g", codecs, of[i], got, mean);
    }
}

static void check_exact_means(const char *codecs)
{
    enum atoll_action action;
    struct atoll_round round;
    char text[400];
    float own[2][8];
    const struct atoll_step step = {.tokens = 3, .loss = NAN, .lr = NAN, .grad_norm = NAN};
    snprintf(text, sizeof text, "{model: {family: external}, coordinator: {min_workers: 2}, %s}", codecs);
    api_rig_start(text);
    struct atoll *workers[2] = {open_external(0, "w0", 1, 0), NULL};
    enum atoll_event event = ATOLL_WAITING;
    for (int i = 0; i < 20; i++) assert_int_equal(atoll_wait(workers[0], 20, &event, &error), ATOLL_OK);
    workers[1] = open_external(1, "w1", 1, 0);
    for (uint32_t r = 0; r < 3; r++) {
        api_rig_wait_both(workers, ATOLL_TRAIN);
        for (int w = 0; w < 2; w++) {
            float *params = atoll_params(workers[w]);
            assert_int_equal(atoll_begin(workers[w], &round, &error), ATOLL_OK);
            if (r) expect_means(params, own, codecs);
            for (uint32_t i = 0; i < round.steps; i++)
                assert_int_equal(atoll_step(workers[w], &step, &action, &error), ATOLL_OK);
            for (int k = 3; k < 7; k++) params[k] -= 0.25f * (float)(w + k);
            set_variances(params, w, r);
        }
        for (int w = 0; w < 2; w++) {
            memcpy(own[w], atoll_params(workers[w]), sizeof own[w]);
            assert_int_equal(atoll_push(workers[w], &error), ATOLL_OK);
        }
    }
    api_rig_wait_both(workers, ATOLL_DONE);
    expect_means(atoll_params(workers[0]), own, codecs);
    for (int w = 0; w < 2; w++) atoll_close(workers[w]);
}

TEST_WITH(test_means_are_exact_beside_any_codec, tmpdir_make, tmpdir_remove)
{
    static const char *const codecs[] = {
        "codec: {up: int8, down: int8}",
        "outer: {optimizer: sgd}, codec: {up: 'topk:64/256+sign', down: union}",
        "outer: {optimizer: sgd}, codec: {up: int8, down: relay}",
        "codec: {up: int8, up_allowed: bf16, down: int4}",
    };
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
        check_exact_means(codecs[i]);
        api_rig_stop();
        tmpdir_clear(tmpdir);
        assert_int_equal(mkdir(tmpdir, 0777), 0);
    }
}

/* The saved state has no residual of means, which have none, and their delta in fp32. */
TEST_WITH(test_means_are_exact_after_a_restart, tmpdir_make, stop)
{
    enum atoll_action action;
    struct atoll_round round;
    float own[2][8];
    const struct atoll_step step = {.tokens = 3, .loss = NAN, .lr = NAN, .grad_norm = NAN};
    api_rig_start("{model: {family: external}, codec: {up: int8, down: int8}}");
    struct atoll *a = open_external(0, "w0", 1, 0);
    for (uint32_t r = 0; r < 3; r++) {
        api_rig_wait(a, ATOLL_TRAIN);
        assert_int_equal(atoll_begin(a, &round, &error), ATOLL_OK);
        if (r) expect_means(atoll_params(a), own, "one worker");
        assert_true(fabs(round.epoch - 4 * r / 50.0) < 1e-12);
        for (uint32_t i = 0; i < round.steps; i++) assert_int_equal(atoll_step(a, &step, &action, &error), ATOLL_OK);
        set_variances(atoll_params(a), 0, r);
        for (int w = 0; w < 2; w++) memcpy(own[w], atoll_params(a), sizeof own[w]);
        assert_int_equal(atoll_push(a, &error), ATOLL_OK);
        if (r == 2) continue;
        api_rig_wait(a, ATOLL_TRAIN);
        atoll_close(a);
        a = open_external(0, "w0", 1, 0);
    }
    atoll_close(a);
}

static void count_warnings(void *ctx, enum atoll_log_level level, const char *line)
{
    if (level == ATOLL_LOG_WARN && strstr(line, "coordinator: w0 and w1 send nearly the same delta")) ++*(int *)ctx;
}

/* The coordinator's warnings reach the programs, and so does the rate that the workers reported. */
TEST_WITH(test_workers_are_told, tmpdir_make, stop)
{
    enum atoll_action action;
    struct atoll_round round;
    int told = 0;
    const struct atoll_step step = {.tokens = 3, .loss = NAN, .lr = 0.125, .grad_norm = NAN};
    api_rig_start("{model: {family: external}, train: {max_steps: 12}, coordinator: {min_workers: 2}}");
    atoll_set_log(count_warnings, &told);
    struct atoll *workers[2] = {open_external(0, "w0", 1, 0), NULL};
    enum atoll_event event = ATOLL_WAITING;
    for (int i = 0; i < 20; i++) assert_int_equal(atoll_wait(workers[0], 20, &event, &error), ATOLL_OK);
    workers[1] = open_external(1, "w1", 1, 0);
    for (uint32_t r = 0; r < 6; r++) {
        api_rig_wait_both(workers, ATOLL_TRAIN);
        assert_int_equal(told, r >= 3 ? 2 : 0); /* once by each worker */
        for (int w = 0; w < 2; w++) {
            assert_int_equal(atoll_begin(workers[w], &round, &error), ATOLL_OK);
            assert_true(r ? round.lr == 0.125 : isnan(round.lr));
            for (uint32_t i = 0; i < round.steps; i++)
                assert_int_equal(atoll_step(workers[w], &step, &action, &error), ATOLL_OK);
            for (int k = 3; k < 7; k++) atoll_params(workers[w])[k] -= 0.25f * (float)k;
            assert_int_equal(atoll_push(workers[w], &error), ATOLL_OK);
        }
    }
    for (int w = 0; w < 2; w++) atoll_close(workers[w]);
    atoll_set_log(NULL, NULL);
}

/* Nothing is uploaded: a healthy worker starts the run afterwards. */
TEST_WITH(test_first_worker_is_finite, tmpdir_make, stop)
{
    api_rig_start("model: {family: external}");
    struct atoll *a = open_external(0, "w0", 1, 0);
    atoll_params(a)[1] = NAN;
    atoll_params(a)[2] = INFINITY;
    atoll_params(a)[4] = NAN;
    api_rig_fails(a, ATOLL_NONFINITE, "tensor 'weight' has 1 value that is NaN or infinite");
    atoll_close(a);
    a = open_external(0, "w0", 1, 0);
    atoll_params(a)[1] = NAN;
    atoll_params(a)[2] = -INFINITY;
    api_rig_fails(a, ATOLL_NONFINITE, "tensor 'norm.running_mean' has 2 values that are NaN or infinite");
    atoll_close(a);
    a = open_external(0, "w0", 1, 0);
    api_rig_wait(a, ATOLL_TRAIN);
    atoll_close(a);
}

TEST_MAIN(NULL, NULL)
