/* The coordinator reads a run's configuration: it checks codecs, and warns once about unlikely settings. */
#include <unistd.h>

#include "common/base/log.h"
#include "coordinator/settings.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

static struct config config;
static struct config_sources sources;
static struct err err;
static char warnings[4096];

static void keep_warnings(void *ctx, enum log_level level, const char *line)
{
    (void)ctx;
    size_t used = strlen(warnings);
    if (level == LOG_WARN) snprintf(warnings + used, sizeof warnings - used, "%s\n", line);
}

static enum status read_flags(const char *const *flags)
{
    struct options options = {0};
    for (; *flags; flags++) options.settings[options.n_settings++] = *flags;
    return settings_read(&config, &sources, NULL, NULL, &options, &err);
}

/* Returns the warnings of a valid configuration. */
static const char *warned(const char *const *flags)
{
    warnings[0] = 0;
    log_set_sink(keep_warnings, NULL);
    enum status status = read_flags(flags);
    assert_string_equal(warnings, ""); /* resolve gives no warning: workers call it, too */
    if (status == STATUS_OK) settings_warn(&config, &sources);
    log_set_sink(NULL, NULL);
    if (status != STATUS_OK) fail_msg("%s", err.msg);
    return warnings;
}
#define WARNED(...) warned((const char *const[]){__VA_ARGS__, NULL})
#define READ(...) read_flags((const char *const[]){__VA_ARGS__, NULL})

static void assert_one(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("\"%s\" does not contain \"%s\"", text, part);
    const char *end = strchr(text, '\n');
    if (end[1]) fail_msg("more than one warning: %s", text);
}

TEST(test_invalid_codecs_are_refused)
{
    assert_int_equal(READ("--codec.up=int9"), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "command line: codec.up: codec \"int9\""));
    assert_int_equal(READ("--codec.down=int9"), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "codec.down"));
    assert_int_equal(READ("--codec.up=topk:5000/4096"), STATUS_INVALID);
}

TEST(test_usual_settings_give_no_warning)
{
    assert_string_equal(WARNED("--train.max_steps=720"), "");
    assert_string_equal(WARNED("--train.max_steps=1280", "--train.sync_every=20", "--codec.up=topk:64/4096",
                               "--codec.down=auto", "--outer.optimizer=sgd"),
                        ""); /* 64 rounds: each coordinate about once */
}

TEST(test_unlikely_settings_give_one_warning)
{
    assert_one(WARNED("--train.max_steps=50", "--inner.warmup_steps=50"), "inner.warmup_steps: 50");
    assert_one(WARNED("--train.max_steps=1279", "--train.sync_every=20", "--codec.up=topk:64/4096+2bit",
                      "--codec.down=relay", "--outer.optimizer=sgd"),
               "once in 64 rounds, but this run has 63");
    assert_one(
        WARNED("--train.max_steps=4000", "--train.sync_every=20", "--codec.up=topk:128/4096", "--codec.down=int8:256"),
        "outer.momentum: 0.9 overshoots with codec.up topk:128/4096");
}

/* A key that the user set and that has no effect with the others. */
TEST(test_keys_without_effect_are_reported)
{
    static const struct {
        const char *with, *flag, *message;
    } cases[] = {
        {"--train.method=async", "--coordinator.quorum=2", "coordinator.quorum: 2 has no effect: it needs "},
        {"--train.method=diloco", "--outer.max_staleness=2", "outer.max_staleness: 2 has no effect"},
        {"--train.method=local-sgd", "--outer.momentum=0.5", "outer.momentum: 0.5 has no effect"},
        {"--train.method=diloco", "--outer.grace=2", "outer.grace: 2 has no effect: it needs train.method async"},
        {"--train.method=diloco", "--outer.max_staleness=4", "outer.max_staleness: 4 has no effect"}, /* default */
        {"--train.method=ddp", "--train.overlap=0", "train.overlap: 0 has no effect: it needs another train.method"},
        {"--train.method=ddp", "--train.stagger=off", "train.stagger: off has no effect"},
        {"--train.method=ddp", "--train.apply=replace", "train.apply: replace has no effect"},
        {"--train.method=diloco", "--train.apply=correct",
         "train.apply: correct has no effect: it needs train.overlap"},
        {"--train.eval_every=0", "--train.eval_tokens=500", "train.eval_tokens: 500 has no effect"},
        {"--train.eval_every=0", "--train.eval_tokens=400", "it needs train.eval_every above 0"},
        {"--codec.up=int8:64", "--merge.rule=contributors",
         "merge.rule: contributors has no effect: it needs a sparse"},
        {"--inner.optimizer=sgd", "--inner.beta1=0.8", "inner.beta1: 0.8 has no effect"},
        {"--inner.schedule=constant", "--inner.min_lr_fraction=0.2", "inner.min_lr_fraction: 0.2 has no effect"},
        {"--run.seed=2", "--inner.learning_rate=0", "inner.learning_rate: 0 trains nothing"},
        {"--run.seed=2", "--outer.learning_rate=0", "outer.learning_rate: 0 trains nothing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_one(WARNED(cases[i].with, cases[i].flag), cases[i].message);
    assert_one(WARNED("--train.method=local-sgd", "--train.sync_every=1", "--train.start_step=5"),
               "train.start_step: 5 has no effect: it needs train.sync_every above 1");
    assert_string_equal(WARNED("--train.method=diloco", "--train.sync_every=1", "--train.start_step=5"), "");
    assert_string_equal(WARNED("--train.method=diloco", "--train.apply=replace"), "");
    assert_string_equal(WARNED("--train.method=async", "--outer.grace=3", "--train.dynamic_steps=on"), "");
    assert_one(WARNED("--train.method=ddp", "--inner.optimizer=sgd", "--inner.eps=1e-8"),
               "inner.eps: 1e-08 has no effect");
}

/* config.yaml of a run lists all keys: only values other than the defaults count. Its ddp may start again. */
TEST(test_outer_state_without_content_is_reported)
{
    assert_one(WARNED("--outer.state=bf16", "--outer.optimizer=sgd", "--codec.down=relay", "--codec.up=int8"),
               "outer.state: bf16 has no effect: it needs momentum, or a codec.down that loses something");
}

TEST(test_listed_defaults_give_no_warning)
{
    for (int ddp = 0; ddp < 2; ddp++) {
        char *text = NULL;
        size_t size = 0;
        assert_int_equal(READ(ddp ? "--train.method=ddp" : "--train.method=diloco"), STATUS_OK);
        FILE *out = open_memstream(&text, &size);
        config_print(&config, &sources, out);
        fclose(out);
        for (int changed = 0; changed < 2; changed++) {
            const char *flag = ddp ? "--outer.momentum=0.5" : "--outer.grace=2";
            config_defaults(&config, &sources);
            assert_int_equal(config_parse(&config, &sources, text, size, "config.yaml", CONFIG_FILE, &err), STATUS_OK);
            if (changed) assert_int_equal(config_set(&config, &sources, flag, CONFIG_FLAG, &err), STATUS_OK);
            assert_int_equal(config_resolve(&config, &sources, &err), ddp && changed ? STATUS_INVALID : STATUS_OK);
            if (ddp && changed) continue;
            warnings[0] = 0;
            log_set_sink(keep_warnings, NULL);
            settings_warn(&config, &sources);
            log_set_sink(NULL, NULL);
            if (changed) assert_one(warnings, "outer.grace: 2 has no effect");
            if (!changed) assert_string_equal(warnings, "");
        }
        free(text);
    }
}

TEST(test_external_names_keys_without_effect)
{
    assert_string_equal(
        WARNED("--model.family=external", "--train.batch_size=8", "--data.tokenizer=none", "--train.max_steps=50"),
        ""); /* the default of warmup_steps is larger, without effect */
    const char *text = WARNED("--model.family=external", "--model.n_layer=9", "--inner.learning_rate=0",
                              "--inner.beta1=0.5", "--train.precision=bf16", "--model.block_size=64");
    assert_one(text, "no effect with model.family external");
    assert_one(text, ": model.n_layer, model.block_size, train.precision, inner.learning_rate, inner.beta1\n");
}

static const char *scaling_read(const char *run_dir, const char *min_workers, const char *scaling)
{
    struct options options = {.settings = {min_workers, scaling}, .n_settings = 2};
    assert_int_equal(settings_read(&config, &sources, NULL, run_dir, &options, &err), STATUS_OK);
    return config.inner.scaling;
}

/* The number of workers that inner.scaling counts is that of the first start, if no source sets it. */
TEST(test_continued_run_keeps_its_rate)
{
    char dir[] = "/tmp/atoll-settings-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.yaml", dir);
    assert_string_equal(scaling_read(dir, "--coordinator.min_workers=4", "--inner.scaling=sqrt"), "sqrt:4");
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    config_print(&config, &sources, out);
    fclose(out);
    assert_string_equal(scaling_read(dir, "--coordinator.min_workers=2", "--inner.scaling=sqrt"), "sqrt:4");
    assert_string_equal(scaling_read(dir, "--coordinator.min_workers=2", "--inner.scaling=sqrt:3"), "sqrt:3");
    assert_string_equal(scaling_read(dir, "--coordinator.min_workers=2", "--inner.scaling=linear"), "linear:2");
    assert_string_equal(scaling_read(dir, "--coordinator.min_workers=2", "--inner.scaling=none"), "none");
    assert_string_equal(scaling_read(NULL, "--coordinator.min_workers=2", "--inner.scaling=sqrt"), "sqrt:2");
    unlink(path);
    rmdir(dir);
}

static enum outer_form state_read(const char *run_dir, const char *setting)
{
    struct options options = {.settings = {"--train.max_steps=60", setting}, .n_settings = setting ? 2 : 1};
    assert_int_equal(settings_read(&config, &sources, NULL, run_dir, &options, &err), STATUS_OK);
    return config.outer.state;
}

/* A run keeps the form of its outer state. One of a release without the key has fp32. */
TEST(test_continued_run_keeps_its_outer_state)
{
    assert_int_equal(state_read(NULL, NULL), OUTER_BF16);
    tmpdir_put("config.yaml", "train: {method: diloco}\n");
    assert_int_equal(state_read(tmpdir, NULL), OUTER_FP32);
    assert_int_equal(state_read(tmpdir, "--outer.state=auto"), OUTER_FP32);
    assert_int_equal(state_read(tmpdir, "--outer.state=bf16"), OUTER_BF16); /* the engine refuses it */
    tmpdir_put("config.yaml", "train: {method: diloco}\nouter: {state: bf16}\n");
    assert_int_equal(state_read(tmpdir, NULL), OUTER_BF16);
    tmpdir_put("config.yaml", "train: {method: diloco}\nouter: {state: fp32}\n");
    assert_int_equal(state_read(tmpdir, NULL), OUTER_FP32);
    assert_int_equal(state_read(tmpdir, "--train.method=ddp"), OUTER_FP32);
    tmpdir_take("config.yaml");
}

static uint32_t budget_read(const char *dir, const char *method)
{
    struct options options = {.settings = {"--coordinator.min_workers=1", method}, .n_settings = 2};
    assert_int_equal(settings_read(&config, &sources, NULL, dir, &options, &err), STATUS_OK);
    settings_keep_budget(&config, dir);
    return config.coordinator.min_workers;
}

/* An async run that has finished a round keeps the number of workers that its budget counts. */
TEST(test_continued_async_run_keeps_its_budget)
{
    log_set_level(LOG_WARN);
    tmpdir_put("config.yaml", "coordinator: {min_workers: 2}\n");
    assert_int_equal(budget_read(tmpdir, "--train.method=async"), 1);
    tmpdir_put("metrics.jsonl", "{\"event\":\"round\",\"round\":1}\n");
    assert_int_equal(budget_read(tmpdir, "--train.method=async"), 2);
    assert_int_equal(budget_read(tmpdir, "--train.method=diloco"), 1);
    tmpdir_take("config.yaml");
    tmpdir_take("metrics.jsonl");
    log_set_level(LOG_INFO);
}

TEST_MAIN(tmpdir_make, tmpdir_remove_empty)
