/* The library (include/atoll.h) in runs of model.family external, whose tensors and data are the program's. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "tests/lib/rigs/api_rig.h"
#include "tests/lib/store/tmpdir.h"
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

/* The run starts from the first worker's parameters. Mean tensors get the plain mean, others the outer optimizer. */
static void test_external_run_starts_from_first_worker(void **state)
{
    (void)state;
    struct atoll_round round;
    enum atoll_action action;
    const struct atoll_step step = {.tokens = 3, .loss = NAN, .lr = NAN, .grad_norm = NAN};
    api_rig_start(
        "{model: {family: external}, outer: {optimizer: sgd, learning_rate: 0.5}, coordinator: {min_workers: 2}}");
    struct atoll *workers[2] = {open_external(0, "w0", 10, 0), NULL};
    enum atoll_event event = ATOLL_WAITING;
    for (int i = 0; i < 20; i++) assert_int_equal(atoll_wait(workers[0], 20, &event, &error), ATOLL_OK);
    workers[1] = open_external(1, "w1", 70, 0);
    api_rig_wait_both(workers, ATOLL_TRAIN);
    for (int w = 0; w < 2; w++) {
        assert_int_equal(atoll_begin(workers[w], &round, &error), ATOLL_OK);
        for (int i = 0; i < 8; i++) assert_true(atoll_params(workers[w])[i] == 10 + (float)i);
        for (uint32_t i = 0; i < round.steps; i++)
            assert_int_equal(atoll_step(workers[w], &step, &action, &error), ATOLL_OK);
        for (int i = 0; i < 8; i++) atoll_params(workers[w])[i] += w ? 2 : 4;
        assert_int_equal(atoll_push(workers[w], &error), ATOLL_OK);
    }
    api_rig_wait_both(workers, ATOLL_TRAIN);
    for (int w = 0; w < 2; w++) {
        assert_int_equal(atoll_begin(workers[w], &round, &error), ATOLL_OK);
        for (int i = 0; i < 8; i++)
            assert_true(atoll_params(workers[w])[i] == 10 + (float)i + (i >= 3 && i < 7 ? 1.5f : 3.0f));
    }
    struct atoll_info info;
    atoll_get_info(workers[1], &info);
    assert_string_equal(info.family, "external");
    for (int w = 0; w < 2; w++) atoll_close(workers[w]);
}

/* Nothing is uploaded: a healthy worker starts the run afterwards. */
static void test_first_worker_is_finite(void **state)
{
    (void)state;
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

static void test_other_tensors_than_the_first_worker(void **state)
{
    (void)state;
    api_rig_start("model: {family: external}");
    struct atoll *a = open_external(0, "w0", 1, 0), *other;
    api_rig_wait(a, ATOLL_TRAIN);
    struct atoll_options options = api_rig_options(1, "w1");
    struct atoll_tensor tensors[3];
    memcpy(tensors, external_tensors, sizeof tensors);
    tensors[1].shape[1] = 3;
    options.tensors = tensors;
    options.n_tensors = 3;
    options.train = (struct atoll_data){.hash = 5, .samples = 50};
    assert_int_equal(atoll_open(&other, &options, &error), ATOLL_OK);
    api_rig_fails(other, ATOLL_REFUSED, "weight");
    atoll_close(other);
    atoll_close(a);
}

/* All validation samples are evaluated at the end, in parts. */
static void test_evaluation(void **state)
{
    (void)state;
    struct atoll_evaluation e;
    double sums[64];
    uint64_t tokens[64], evaluated = 0;
    enum atoll_event event = ATOLL_WAITING;
    api_rig_start("{model: {family: external}, train: {eval_every: 1, eval_tokens: 4}}");
    struct atoll *a = open_external(0, "w0", 1, 11);
    for (int i = 0; i < 2000 && event != ATOLL_DONE; i++) {
        assert_int_equal(atoll_wait(a, 20, &event, &error), ATOLL_OK);
        if (event == ATOLL_TRAIN) {
            struct atoll_round round;
            enum atoll_action action;
            const struct atoll_step step = {.tokens = 3, .loss = 1};
            assert_int_equal(atoll_begin(a, &round, &error), ATOLL_OK);
            for (uint32_t k = 0; k < round.steps; k++)
                assert_int_equal(atoll_step(a, &step, &action, &error), ATOLL_OK);
            for (int k = 0; k < 8; k++) atoll_params(a)[k] += 1;
            assert_int_equal(atoll_push(a, &error), ATOLL_OK);
        } else if (event == ATOLL_EVALUATE) {
            assert_int_equal(atoll_evaluation(a, &e, &error), ATOLL_OK);
            assert_true(e.n_parts == (e.count + e.part - 1) / e.part && e.n_parts <= 64);
            for (uint32_t k = 0; k < e.n_parts; k++) {
                uint64_t n = e.count - k * e.part < e.part ? e.count - k * e.part : e.part;
                tokens[k] = 2 * n;
                sums[k] = 0.5 * (double)tokens[k];
            }
            assert_int_equal(atoll_evaluated(a, NULL, tokens, &error), ATOLL_INVALID);
            assert_int_equal(atoll_evaluated(a, sums, tokens, &error), ATOLL_OK);
            assert_int_equal(atoll_evaluated(a, sums, tokens, &error), ATOLL_ORDER);
            evaluated += e.count;
        }
    }
    assert_int_equal(event, ATOLL_DONE);
    assert_true(evaluated >= 11 + 2); /* after the first rounds 4 tokens, 2 samples; at the end all */
    assert_true(atoll_params(a)[3] == 4 + 3);
    atoll_close(a);
    struct err err = {0};
    void *text;
    size_t size;
    for (int i = 0; i < 200 && !file_exists(tmpdir_path("run/summary.json")); i++) usleep(20000);
    assert_int_equal(file_read(tmpdir_path("run/summary.json"), 10000, &text, &size, &err), STATUS_OK);
    assert_non_null(strstr(text, "\"final_val_loss\": 0.5,"));
    mem_free(text);
}

int main(void)
{
#define RUN(test) cmocka_unit_test_setup_teardown(test, tmpdir_make, stop)
    const struct CMUnitTest tests[] = {
        RUN(test_external_run_starts_from_first_worker),
        RUN(test_first_worker_is_finite),
        RUN(test_other_tensors_than_the_first_worker),
        RUN(test_evaluation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
