/* A worker's own micro-steps: equal samples per step, anything else is refused. */

#include "common/config/config_resolve.h"
#include "tests/lib/test.h"
#include "worker/step_split.h"

static struct config config, own;
static struct config_sources sources, own_sources;
static struct err err;

/* Runs of 8 x 3 samples a step. */
static enum status split(enum config_source source, const char *const *settings)
{
    config_defaults(&config, &sources);
    config_defaults(&own, &own_sources);
    config.train.batch_size = 8;
    config.train.grad_accum = 3;
    for (; *settings; settings++) assert_int_equal(config_set(&own, &own_sources, *settings, source, &err), STATUS_OK);
    return step_split_apply(&config, &sources, &own, &own_sources, &err);
}
#define SPLIT(...) split(CONFIG_FLAG, (const char *const[]){__VA_ARGS__, NULL})

static void assert_split(uint32_t size, uint32_t accum)
{
    assert_int_equal(config.train.batch_size, size);
    assert_int_equal(config.train.grad_accum, accum);
}

TEST(test_equal_products_are_accepted)
{
    assert_int_equal(SPLIT("train.batch_size=4", "train.grad_accum=6"), STATUS_OK);
    assert_split(4, 6);
    assert_int_equal(SPLIT("train.batch_size=24"), STATUS_OK);
    assert_split(24, 1);
    assert_int_equal(SPLIT("train.grad_accum=12"), STATUS_OK);
    assert_split(2, 12);
    assert_int_equal(SPLIT("train.threads=2"), STATUS_OK);
    assert_split(8, 3);
    const char *const settings[] = {"train.batch_size=5", NULL};
    assert_int_equal(split(CONFIG_ENV, settings), STATUS_OK); /* variables may be those of the coordinator */
    assert_split(8, 3);
}

TEST(test_other_products_are_refused)
{
    static const char *const settings[][3] = {{"train.batch_size=4", "train.grad_accum=5"},
                                              {"train.batch_size=5"},
                                              {"train.grad_accum=7"},
                                              {"train.batch_size=48"},
                                              {"train.grad_accum=25"}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        assert_int_equal(split(CONFIG_FLAG, settings[i]), STATUS_INVALID);
        assert_non_null(strstr(err.msg, "a step of the run takes train.batch_size 8 x train.grad_accum 3 = 24"));
        assert_split(8, 3);
    }
    assert_int_equal(SPLIT("train.batch_size=4", "train.grad_accum=5"), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "command line: train.batch_size: 4 x 5 micro-steps are 20 samples"));
}

TEST(test_only_two_keys_split_a_step)
{
    int n = 0;
    for (int i = 0; i < config_keys_count; i++) n += step_split_has(i);
    assert_int_equal(n, 2);
    assert_true(step_split_has(AT(train.batch_size)) && step_split_has(AT(train.grad_accum)));
}

TEST_MAIN(NULL, NULL)
