/* Configuration: every source sets every key, invalid input is refused with a helpful line, and the shared text is
 * canonical. */
#include <ctype.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/config/codec_choice.h"
#include "common/config/config.h"
#include "common/config/config_keys.h"
#include "tests/lib/test.h"

static struct config config, other;
static struct config_sources sources, other_sources;
static struct err err;

static enum status parse(const char *text)
{
    config_defaults(&config, &sources);
    return config_parse(&config, &sources, text, strlen(text), "a.yaml", CONFIG_FILE, &err);
}

static void assert_message(const char *part)
{
    if (!strstr(err.msg, part)) fail_msg("\"%s\" does not contain \"%s\"", err.msg, part);
}

/* Every key accepts its printed value from a flag, a file and the environment, and reports the source. */
TEST(test_every_source_sets_every_key)
{
    for (int i = 0; i < config_keys_count; i++) {
        const struct config_key *k = &config_keys[i];
        char value[CONFIG_VALUE_MAX], text[2 * CONFIG_VALUE_MAX], got[CONFIG_VALUE_MAX];
        switch (k->type) { /* a legal value other than the default */
        case CONFIG_TYPE_TEXT: snprintf(value, sizeof value, "a \"b\" \\ c#: \xc3\xa9'"); break;
        case CONFIG_TYPE_WORD:
        case CONFIG_TYPE_CHOICE:
            snprintf(value, sizeof value, "%s",
                     k->choices[strcmp(k->choices[0].name, k->preset) ? 0 : 1].name
                         ? k->choices[strcmp(k->choices[0].name, k->preset) ? 0 : 1].name
                         : k->preset);
            break;
        case CONFIG_TYPE_U32:
        case CONFIG_TYPE_U64: snprintf(value, sizeof value, "%llu", (unsigned long long)(k->hi - 1)); break;
        case CONFIG_TYPE_REAL: snprintf(value, sizeof value, "%.17g", k->min + (k->max - k->min) / 3); break;
        }
        if (strlen(value) >= k->size && k->type == CONFIG_TYPE_TEXT) snprintf(value, sizeof value, "5\"'\\");
        for (int source = 0; source < 3; source++) {
            char name[128];
            config_defaults(&config, &sources);
            if (source == 0) {
                snprintf(text, sizeof text, "--%s.%s=%s", k->section, k->key, value);
                assert_int_equal(config_set(&config, &sources, text, CONFIG_FLAG, &err), STATUS_OK);
            } else if (source == 1) {
                snprintf(name, sizeof name, "ATOLL_%s_%s", k->section, k->key);
                for (char *p = name; *p; p++) *p = (char)(*p >= 'a' && *p <= 'z' ? *p - 32 : *p);
                setenv(name, value, 1);
                assert_int_equal(config_env(&config, &sources, &err), STATUS_OK);
                unsetenv(name);
            } else { /* single quotes: only ' is special */
                int n = snprintf(text, sizeof text, "%s:\n  %s: '", k->section, k->key);
                for (const char *p = value; *p; p++) {
                    if (*p == '\'') text[n++] = '\'';
                    text[n++] = *p;
                }
                memcpy(text + n, "'\n", 3);
                if (config_parse(&config, &sources, text, strlen(text), "x", CONFIG_FILE, &err) != STATUS_OK)
                    fail_msg("%s", err.msg);
            }
            config_value_text(&config, i, got);
            if (k->type == CONFIG_TYPE_REAL)
                assert_true(strtod(got, NULL) == strtod(value, NULL));
            else
                assert_string_equal(got, value);
            for (int j = 0; j < config_keys_count; j++)
                assert_int_equal(sources.of[j], j != i        ? CONFIG_DEFAULT
                                                : source == 0 ? CONFIG_FLAG
                                                : source == 1 ? CONFIG_ENV
                                                              : CONFIG_FILE);
        }
    }
}

TEST(test_invalid_text_is_refused_with_its_place)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"train:\n  max_step: 10\n", "a.yaml:2: unknown key train.max_step; the nearest is train.max_steps"},
        {"\n\ntrain: {max_iters: 10}\n", "a.yaml:3: unknown key train.max_iters; the nearest is train.max_steps"},
        {"train:\n  lr: 1\n", "the nearest is inner.learning_rate"},
        {"tran:\n  max_steps: 10\n", "a.yaml:1: unknown section \"tran\"; the nearest is \"train\""},
        {"max_steps: 10\n", "a.yaml:1: key \"max_steps\" is outside a section; the nearest key is train.max_steps"},
        {"train:\n  max_steps: 10\n  max_steps: 11\n", "a.yaml:3: train.max_steps is set twice, first on line 2"},
        {"train: {max_steps: 10}\nrun: {}\ntrain: {max_steps: 9}\n", "a.yaml:3: train.max_steps is set twice"},
        {"train:\n  max_steps: 0\n", "a.yaml:2: train.max_steps: \"0\" is out of range; allowed: 1 to 4294967295"},
        {"train:\n  max_steps: -5\n", "\"-5\" is out of range"},
        {"train:\n  max_steps: 4294967296\n", "out of range"},
        {"run:\n  seed: 18446744073709551616\n", "out of range"},
        {"train:\n  max_steps: 1e3\n", "\"1e3\" is not a whole number"},
        {"train:\n  max_steps:\n", "\"\" is not a whole number"},
        {"inner:\n  learning_rate: 1e-400\n", "\"1e-400\" is too close to 0; allowed: 0 to 1000"},
        {"inner:\n  beta1: 1\n", "\"1\" is out of range; allowed: 0 to 0.999999"},
        {"inner:\n  eps: nan\n", "\"nan\" is not a number"},
        {"inner:\n  learning_rate: inf\n", "is not a number"},
        {"inner:\n  learning_rate: 1e999\n", "out of range"},
        {"inner:\n  learning_rate: 0x1p3\n", "is not a number"},
        {"inner:\n  learning_rate: 1 2\n", "is not a number"},
        {"inner:\n  learning_rate: .\n", "is not a number"},
        {"train:\n  method: ddq\n", "\"ddq\" is not a choice; allowed: ddp | local-sgd | diloco | streaming | async"},
        {"inner:\n  optimizer: nesterov\n", "allowed: sgd | adamw"},
        {"model:\n  family: mamba\n", "allowed: gpt2 | llama"},
        {"run:\n  name: \"a\\tb\"\n", "control character"},
        {"run:\n  name: \"a\\0b\"\n", "NUL"},
        {"run:\n  name: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n", "is too long"},
        {"run:\n\tname: x\n", "a.yaml:2: YAML does not allow tabs as indentation: use spaces"},
        {"run: [1, 2]\n", "section run must be a mapping"},
        {"run: 5\n", "section run must be a mapping"},
        {"run:\n  name: [a]\n", "run.name must be a simple value, not a list"},
        {"run:\n  name: {a: b}\n", "not a mapping"},
        {"run:\n  name: &x a\n", "not an anchor"},
        {"run:\n  name: ~\n", "a.yaml:2: run.name is ~, which means no value in YAML: remove the key"},
        {"data: {val: null}\n", "a.yaml:1: data.val is null, which means no value"},
        {"train:\n  max_steps: Null\n", "a.yaml:2: train.max_steps is Null, which means no value"},
        {"run:\n  name: *x\n", "a.yaml:2"},
        {"run: &x {name: a}\n", "without anchors"},
        {"run:\n  name: !!str a\n", "not a tag"},
        {"run:\n  <<: *a\n", "a.yaml:2"},
        {"run:\n  ? [a]\n  : b\n", "a key must be a simple value, not a list"},
        {"? {a: b}\n: c\n", "a section's name must be a simple value"},
        {"- a\n- b\n", "the file must be a mapping"},
        {"just text\n", "the file must be a mapping"},
        {"run: {name: a}\n---\nrun: {name: b}\n", "a.yaml:2: a second YAML document"},
        {"run: {name: a\n", "not valid YAML"},
        {"run: {name: \"a}\n", "not valid YAML"},
        {"%YAML 9.9\n---\n", "not valid YAML"},
        {"run: \xff\xfe\n", "not valid YAML"},
        {"\"run\\0x\": {name: a}\n", "NUL"},
    };
    struct config before;
    config_defaults(&before, &sources);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(&err, 0, sizeof err);
        if (parse(cases[i].text) != STATUS_INVALID) fail_msg("accepted: %s", cases[i].text);
        if (!strstr(err.msg, cases[i].message))
            fail_msg("%s gives \"%s\", not \"%s\"", cases[i].text, err.msg, cases[i].message);
        assert_null(strchr(err.msg, '\n'));
        assert_memory_equal(&config, &before, sizeof config); /* a refused text sets no key */
    }
}

/* A coordinator cannot set a worker's local keys. */
TEST(test_shared_text_sets_no_local_key)
{
    const char *text = "data:\n  train: /etc/passwd\n";
    config_defaults(&config, &sources);
    assert_int_equal(config_parse(&config, &sources, text, strlen(text), "coordinator", CONFIG_COORDINATOR, &err),
                     STATUS_INVALID);
    assert_message("data.train is local");
    static const char *const local[] = {"run.max_hours",
                                        "run.max_gb",
                                        "data.train",
                                        "data.val",
                                        "train.recompute",
                                        "train.threads",
                                        "train.ranks",
                                        "train.devices",
                                        "coordinator.listen",
                                        "coordinator.advertise",
                                        "coordinator.quorum",
                                        "coordinator.min_workers",
                                        "coordinator.max_workers",
                                        "coordinator.threads",
                                        "coordinator.evict_after_s",
                                        "log.level"};
    int n = 0;
    for (int i = 0; i < config_keys_count; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.%s", config_keys[i].section, config_keys[i].key);
        bool expected = false;
        for (size_t k = 0; k < sizeof local / sizeof *local; k++) expected = expected || !strcmp(name, local[k]);
        assert_int_equal(config_keys[i].local, expected);
        n += expected;
    }
    assert_int_equal(n, sizeof local / sizeof *local);
}

TEST(test_flags_set_and_refuse_values)
{
    config_defaults(&config, &sources);
    assert_int_equal(config_set(&config, &sources, "train.max_steps=5", CONFIG_FLAG, &err), STATUS_OK);
    assert_int_equal(config.train.max_steps, 5);
    assert_int_equal(config_set(&config, &sources, "--data.train=a=b", CONFIG_FLAG, &err), STATUS_OK);
    assert_string_equal(config.data.train, "a=b");
    static const struct {
        const char *flag, *message;
    } cases[] = {
        {"--train.max_steps", "needs a value"},
        {"--train.max_step=1", "unknown option --train.max_step; the nearest is --train.max_steps"},
        {"--max_steps=1", "the nearest is --train.max_steps"},
        {"--train.max_steps=x", "command line: train.max_steps: \"x\" is not a whole number"},
        {"run.name=a\xe2\x80\xa8"
         "b",
         "control character"}, /* U+2028, a line break in YAML */
        {"run.name=a\xc2\x85", "control character"},
        {"run.name=\xed\xa0\x80", "not UTF-8"}, /* a surrogate */
        {"run.name=\xc0\xaf", "not UTF-8"},
        {"run.name=\xc3", "not UTF-8"},
        {"run.name=\xf4\x90\x80\x80", "not UTF-8"},
        {"--a\n.b\n=1", "unknown option --a?.b?; "},
        {"--", "unknown option"},
        {"", "unknown option"},
        {"=", "unknown option"},
        {".=", "unknown option"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(config_set(&config, &sources, cases[i].flag, CONFIG_FLAG, &err), STATUS_INVALID);
        assert_message(cases[i].message);
    }
    static char longer[5000];
    memset(longer, 'x', sizeof longer - 1);
    assert_int_equal(config_set(&config, &sources, longer, CONFIG_FLAG, &err), STATUS_INVALID);
    setenv("ATOLL_TRAIN_MAX_STEPS", "none", 1);
    assert_int_equal(config_env(&config, &sources, &err), STATUS_INVALID);
    assert_message("environment, ATOLL_TRAIN_MAX_STEPS: train.max_steps: \"none\" is not a whole number");
    unsetenv("ATOLL_TRAIN_MAX_STEPS");
}

static char warnings[2048];

static void keep_warnings(void *ctx, enum log_level level, const char *line)
{
    (void)ctx;
    size_t used = strlen(warnings);
    if (level == LOG_WARN) snprintf(warnings + used, sizeof warnings - used, "%s\n", line);
}

/* A variable that resembles a key is reported as a typo; other variables belong to other programs. */
TEST(test_misspelt_variable_is_reported)
{
    static const struct {
        const char *name, *message;
    } refused[] =
        {
            {"ATOLL_TRAIN_MAXSTEPS", "environment, ATOLL_TRAIN_MAXSTEPS: unknown key; the nearest is "
                                     "ATOLL_TRAIN_MAX_STEPS"},
            {"ATOLL_INNER_LEARNING_RAT", "the nearest is ATOLL_INNER_LEARNING_RATE"},
        },
      warned[] = {
          {"ATOLL_TRIAN_SYNC_EVERY", "ignored unknown variable ATOLL_TRIAN_SYNC_EVERY; did you mean "
                                     "ATOLL_TRAIN_SYNC_EVERY?\n"},
          {"ATOLL_SYNC_EVERY", "did you mean ATOLL_TRAIN_SYNC_EVERY?\n"},
          {"ATOLL_GPU_TIMOUT", "did you mean ATOLL_GPU_TIMEOUT?\n"},
          {"ATOLL_FOO", "ignored unknown variable ATOLL_FOO\n"},
          {"ATOLL_BINS", "ignored unknown variable ATOLL_BINS"},
          {"ATOLL_INNER_", "ignored unknown variable ATOLL_INNER_"},
          {"ATOLL_DATA_DIR", "ignored unknown variable ATOLL_DATA_DIR"},
          {"ATOLL_COORDINATOR_PORT", "ignored unknown variable ATOLL_COORDINATOR_PORT"},
          {"ATOLL_COORDINATOR_SERVICE_HOST", "ignored unknown variable ATOLL_COORDINATOR_SERVICE_HOST"},
          {"ATOLL_COORDINATOR_PORT_29600_TCP_ADDR", "ignored unknown variable ATOLL_COORDINATOR_PORT_29600_TCP_ADDR"},
      };
    static const char *const known[] = {
        "ATOLL_NO_INSTALL", "ATOLL_GPU_TIMEOUT", "ATOLL_STUB_FAIL", "ATOLL_BIN", "ATOLL_", "ATOL"};
    log_set_sink(keep_warnings, NULL);
    config_defaults(&config, &sources);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *before = getenv(known[i]);
        if (!before) assert_int_equal(setenv(known[i], "1", 1), 0);
        assert_int_equal(config_env(&config, &sources, &err), STATUS_OK);
        config_env_warn();
        assert_string_equal(warnings, "");
        if (!before) assert_int_equal(unsetenv(known[i]), 0);
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_int_equal(setenv(refused[i].name, "1", 1), 0);
        assert_int_equal(config_env(&config, &sources, &err), STATUS_INVALID);
        assert_message(refused[i].message);
        assert_int_equal(unsetenv(refused[i].name), 0);
    }
    for (size_t i = 0; i < sizeof warned / sizeof *warned; i++) {
        assert_int_equal(setenv(warned[i].name, "1", 1), 0);
        assert_int_equal(config_env(&config, &sources, &err), STATUS_OK);
        assert_string_equal(warnings, "");
        config_env_warn();
        if (!strstr(warnings, warned[i].message)) fail_msg("%s: %s", warned[i].name, warnings);
        warnings[0] = 0;
        assert_int_equal(unsetenv(warned[i].name), 0);
    }
    log_set_sink(NULL, NULL);
}

/* Draws a random legal value for a key. */
static void random_value(int index, uint64_t *counter, char out[CONFIG_VALUE_MAX])
{
    const struct config_key *k = &config_keys[index];
    uint64_t r = rng_u64(11, RNG_TEST, (*counter)++);
    size_t n = 0;
    switch (k->type) {
    case CONFIG_TYPE_TEXT:
        for (size_t len = r % (k->size < 40 ? k->size - 4 : 40); n < len;) {
            static const char *const pieces[] = {"a", "\"", "\\",       "'", "#", ":", " ",
                                                 "{", "%",  "\xc3\xa9", "~", "*", "&"};
            n += (size_t)sprintf(out + n, "%s", pieces[rng_u64(11, RNG_TEST, (*counter)++) % 13]);
        }
        out[n] = 0;
        break;
    case CONFIG_TYPE_WORD:
    case CONFIG_TYPE_CHOICE:
        while (k->choices[n].name) n++;
        strcpy(out, k->choices[r % n].name);
        break;
    case CONFIG_TYPE_U32:
    case CONFIG_TYPE_U64:
        sprintf(out, "%llu", (unsigned long long)(k->hi == UINT64_MAX ? r : k->lo + r % (k->hi - k->lo + 1)));
        break;
    case CONFIG_TYPE_REAL:
        sprintf(out, "%.17g", k->min + (k->max - k->min) * rng_uniform(11, RNG_TEST, (*counter)++));
        break;
    }
}

/* For random values: text -> parse gives the same bits, text and hash; and a printed configuration is a readable
 * file. */
TEST(test_shared_text_restores_every_value)
{
    static char a[CONFIG_TEXT_MAX], b[CONFIG_TEXT_MAX], printed[CONFIG_TEXT_MAX];
    char value[CONFIG_VALUE_MAX], diff[4096];
    uint64_t counter = 0;
    for (int round = 0; round < 200; round++) {
        config_defaults(&config, &sources);
        for (int i = 0; i < config_keys_count; i++) {
            random_value(i, &counter, value);
            if (config_value_set(&config, i, value, &err) != STATUS_OK) fail_msg("%s", err.msg);
        }
        size_t n = config_shared_text(&config, a, sizeof a);
        assert_true(n > 0);
        assert_int_equal(strlen(a), n);
        config_defaults(&other, &other_sources);
        if (config_parse(&other, &other_sources, a, n, "text", CONFIG_COORDINATOR, &err) != STATUS_OK)
            fail_msg("%s\n%s", err.msg, a);
        assert_int_equal(config_run_diff(&config, &other, false, diff, sizeof diff), 0);
        assert_string_equal(diff, "");
        assert_int_equal(config_shared_text(&other, b, sizeof b), n);
        assert_string_equal(a, b);
        assert_true(config_run_hash(&config) == config_run_hash(&other));
        assert_int_equal(config_shared_text(&config, b, n), 0); /* too small for the terminator */

        FILE *out = fmemopen(printed, sizeof printed, "w");
        config_print(&config, &sources, out);
        long size = ftell(out);
        fclose(out);
        config_defaults(&other, &other_sources);
        if (config_parse(&other, &other_sources, printed, (size_t)size, "print", CONFIG_FILE, &err) != STATUS_OK)
            fail_msg("%s\n%s", err.msg, printed);
        assert_memory_equal(&config, &other, sizeof config); /* local keys too */
    }
}

TEST(test_diff_names_changed_keys)
{
    char diff[256];
    uint64_t hash;
    config_defaults(&config, &sources);
    hash = config_run_hash(&config);
    for (int i = 0; i < config_keys_count; i++) {
        uint64_t counter = 1;
        char value[CONFIG_VALUE_MAX], before[CONFIG_VALUE_MAX], after[CONFIG_VALUE_MAX];
        if (config_keys[i].choices && !config_keys[i].choices[1].name) continue; /* one choice only */
        config_defaults(&other, &other_sources);
        config_value_text(&other, i, before);
        do {
            random_value(i, &counter, value);
            assert_int_equal(config_value_set(&other, i, value, &err), STATUS_OK);
        } while (!strcmp(before, config_value_text(&other, i, after)));
        int of_run = config_key_of_run(i), fixed = of_run && config_keys[i].change == CONFIG_FIXED;
        assert_int_equal(config_run_diff(&config, &other, true, diff, sizeof diff), fixed);
        assert_int_equal(config_run_diff(&config, &other, false, diff, sizeof diff), of_run);
        assert_int_equal(config_run_hash(&other) != hash, of_run);
        if (of_run) assert_non_null(strstr(diff, config_keys[i].key));
        config_take_run(&other, &config);
        assert_int_equal(config_run_diff(&config, &other, false, diff, sizeof diff), 0);
        assert_int_equal(strcmp(config_value_text(&other, i, after), before) == 0, of_run); /* others stay */
    }
    config_defaults(&other, &other_sources);
    other.train.sync_every = 20;
    other.outer.momentum = 0.1;
    assert_int_equal(config_run_diff(&config, &other, false, diff, sizeof diff), 2);
    assert_string_equal(diff, "train.sync_every (30 here, 20 in the run), outer.momentum (0.9 here, 0.1 in the run)");
    char tiny[8];
    assert_int_equal(config_run_diff(&config, &other, false, tiny, sizeof tiny), 2); /* truncated, not overrun */
    assert_int_equal(strlen(tiny), 7);
}

/* A worker that joins again takes what may change, and keeps what belongs to the run or to its machine. */
TEST(test_changes_are_taken)
{
    static char text[CONFIG_TEXT_MAX];
    char changed[200];
    config_defaults(&config, &sources);
    config_defaults(&other, &other_sources);
    other.train.max_steps = 1440;
    other.checkpoint.every = 3;
    other.train.sync_every = 7;
    other.train.threads = 5;
    assert_true(config_shared_text(&other, text, sizeof text) > 0);
    assert_int_equal(config_take_changes(&config, text, changed, sizeof changed, &err), STATUS_OK);
    assert_string_equal(changed, "train.max_steps = 1440, checkpoint.every = 3");
    assert_int_equal(config.train.max_steps, 1440);
    assert_int_equal(config.checkpoint.every, 3);
    assert_int_equal(config.train.sync_every, 30);
    assert_int_equal(config.train.threads, 1);
    assert_int_equal(config_take_changes(&config, text, changed, sizeof changed, &err), STATUS_OK);
    assert_string_equal(changed, "");
    assert_int_equal(config_take_changes(&config, "train: {future_key: 1}\n", changed, sizeof changed, &err),
                     STATUS_INVALID);
}

/* The shared text contains every shared key, also one at its default: the worker's own values must not survive. */
TEST(test_shared_text_contains_every_shared_key)
{
    static char text[CONFIG_TEXT_MAX];
    config_defaults(&config, &sources);
    size_t n = config_shared_text(&config, text, sizeof text);
    for (int i = 0; i < config_keys_count; i++) {
        char line[128];
        snprintf(line, sizeof line, "\n  %s: ", config_keys[i].key);
        if (!config_keys[i].local) assert_non_null(strstr(text, line));
    }
    config_defaults(&other, &other_sources);
    assert_int_equal(config_set(&other, &other_sources, "inner.moments=bf16", CONFIG_FLAG, &err), STATUS_OK);
    assert_int_equal(config_parse(&other, &other_sources, text, n, "text", CONFIG_COORDINATOR, &err), STATUS_OK);
    assert_int_equal(other.inner.moments, PRECISION_FP32);
    assert_true(config_run_hash(&other) == config_run_hash(&config));
}

TEST(test_helpers_follow_configuration)
{
    config_defaults(&config, &sources);
    assert_string_equal(config_method_name(METHOD_LOCAL_SGD), "local-sgd");
    assert_string_equal(config_method_name(METHOD_ASYNC), "async");
    /* The advice after divergence names only keys that drive it. A mean of the workers goes no farther than the
     * workers. */
    struct config c = {.train.method = METHOD_DILOCO, .outer = {.optimizer = OPTIMIZER_NESTEROV, .learning_rate = 0.7}};
    assert_string_equal(config_divergence_advice(&c),
                        "lower inner.learning_rate or outer.learning_rate, or set inner.grad_clip");
    c.inner.grad_clip = 1;
    assert_string_equal(config_divergence_advice(&c), "lower inner.learning_rate or outer.learning_rate");
    c.train.method = METHOD_DDP; /* ddp steps by inner.learning_rate */
    assert_string_equal(config_divergence_advice(&c), "lower inner.learning_rate");
    c.train.method = METHOD_LOCAL_SGD;
    c.outer.optimizer = OPTIMIZER_SGD;
    c.outer.learning_rate = 1;
    assert_string_equal(config_divergence_advice(&c), "lower inner.learning_rate");
    c.outer.learning_rate = 1.1;
    assert_string_equal(config_divergence_advice(&c), "lower inner.learning_rate or outer.learning_rate");
    c.outer.learning_rate = 0.5;
    c.inner.grad_clip = 0;
    assert_string_equal(config_divergence_advice(&c), "lower inner.learning_rate or set inner.grad_clip");
    static char help[CONFIG_TEXT_MAX];
    FILE *out = fmemopen(help, sizeof help, "w");
    config_help(out);
    fclose(out);
    for (int i = 0; i < config_keys_count; i++) assert_non_null(strstr(help, config_keys[i].help));
}

TEST(test_unreadable_file_is_refused)
{
    char path[] = "/tmp/test_config_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "train:\n  max_steps: 0\n", 22), 22);
    close(fd);
    config_defaults(&config, &sources);
    assert_int_equal(config_load(&config, &sources, path, &err), STATUS_INVALID);
    assert_message(path);
    assert_message(":2: train.max_steps");
    unlink(path);
    assert_int_equal(config_load(&config, &sources, path, &err), STATUS_NOTFOUND);
    assert_message("No such file");
    assert_int_equal(config_load(&config, &sources, "/tmp", &err), STATUS_IO);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST_MAIN(NULL, NULL)
