/* Keys of the outer step and of the schedule that go together, and those that do not. */

#include "common/config/codec_choice.h"
#include "common/config/config.h"
#include "tests/lib/test.h"

static struct config config;
static struct config_sources sources;
static struct err err;

/* Set flags on top of the defaults, then resolve. */
static enum status resolve(const char *const *flags)
{
    config_defaults(&config, &sources);
    for (; *flags; flags++) assert_int_equal(config_set(&config, &sources, *flags, CONFIG_FLAG, &err), STATUS_OK);
    return config_resolve(&config, &sources, &err);
}
#define RESOLVE(...) resolve((const char *const[]){__VA_ARGS__, NULL})

static void assert_message(const char *part)
{
    if (!strstr(err.msg, part)) fail_msg("\"%s\" does not contain \"%s\"", err.msg, part);
}

/* The sequences of a step are counted in 32 bits. */
TEST(test_short_rounds_come_first)
{
    assert_int_equal(RESOLVE("train.method=streaming", "train.start_step=719"), STATUS_OK);
    assert_int_equal(RESOLVE("train.start_step=720"), STATUS_INVALID);
    assert_message("train.start_step: 720 leaves no step of train.max_steps = 720 for longer rounds; nearest: 719");
    assert_int_equal(RESOLVE("train.method=ddp", "train.start_step=1"), STATUS_INVALID);
    assert_message("train.start_step: does not go with train.method ddp, whose rounds have one step");
    assert_int_equal(RESOLVE("train.method=async", "train.start_step=1"), STATUS_INVALID);
    assert_message("train.start_step: does not go with train.method async");
}

TEST(test_workers_may_have_codecs)
{
    char specs[CONFIG_UP_MAX][CODEC_SPEC_MAX];
    assert_int_equal(RESOLVE("codec.up=topk:64/4096", "codec.up_allowed=int8:256, bf16", "outer.optimizer=sgd"),
                     STATUS_OK);
    assert_int_equal(config_up_specs(&config, specs), 3);
    assert_string_equal(specs[0], "topk:64/4096");
    assert_string_equal(specs[1], "int8:256");
    assert_string_equal(specs[2], "bf16");
    assert_string_equal(config_merge_spec(&config, false), "fp32");
    assert_int_equal(config.merge.rule, MERGE_MEAN);
    static const char *const bad[] = {",", "bf16,", "bf16,,fp32", "bf16 fp32", "a,b,c,d,e,f,g,h"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char flag[64];
        snprintf(flag, sizeof flag, "codec.up_allowed=%s", bad[i]);
        assert_int_equal(RESOLVE(flag), STATUS_INVALID);
        assert_message("is not a list of at most 7 codecs");
    }
    assert_int_equal(RESOLVE("codec.up_allowed=bf16", "train.method=ddp"), STATUS_INVALID);
    assert_message("codec.up_allowed: does not go with train.method ddp");
    assert_int_equal(RESOLVE("codec.up_allowed=bf16", "codec.down=relay", "outer.optimizer=sgd"), STATUS_INVALID);
    assert_message("codec.up_allowed: does not go with codec.down relay");
    assert_int_equal(RESOLVE("codec.up_allowed=bf16", "merge.rule=contributors"), STATUS_INVALID);
    assert_message("merge.rule: contributors does not go with codec.up_allowed");
}

TEST(test_rda_needs_dense_deltas_at_the_coordinator)
{
    assert_int_equal(RESOLVE("merge.rule=rda"), STATUS_OK);
    assert_int_equal(RESOLVE("merge.rule=rda", "train.method=async"), STATUS_OK);
    assert_int_equal(RESOLVE("merge.rule=rda", "codec.down=auto"), STATUS_OK); /* the codec of the dense deltas */
    static const struct {
        const char *a, *b, *message;
    } bad[] = {
        {"train.method=ddp", "codec.up=fp32", "merge.rule: rda does not go with train.method ddp"},
        {"train.method=diloco", "codec.up=topk:64/4096", "merge.rule: rda needs a dense codec.up, not topk:64/4096"},
        {"train.method=local-sgd", "codec.down=relay", "merge.rule: rda does not go with codec.down relay"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (RESOLVE("merge.rule=rda", bad[i].a, bad[i].b) != STATUS_INVALID) fail_msg("accepted: %s", bad[i].b);
        assert_message(bad[i].message);
    }
    assert_int_equal(RESOLVE("merge.rule=rda", "train.method=local-sgd", "codec.up=topk:64/4096", "codec.down=union"),
                     STATUS_INVALID);
    assert_message("merge.rule: rda needs a dense codec.up");
    /* Workers' own codecs: the coordinator merges fp32. */
    assert_int_equal(RESOLVE("merge.rule=rda", "codec.up=topk:64/4096", "codec.up_allowed=int8:256"), STATUS_OK);
}

TEST_MAIN(NULL, NULL)
