/* common/options: the command lines of all programs. */

#include "common/config/options.h"
#include "tests/lib/test.h"

static struct {
    bool quiet;
    const char *dir;
    uint64_t workers, wait;
    double rate;
} got;

static const struct option_spec specs[] = {
    {"quiet", OPTION_FLAG, &got.quiet, NULL, "say less"},     {"dir", OPTION_TEXT, &got.dir, "DIR", "where"},
    {"workers", OPTION_COUNT, &got.workers, "N", "how many"}, {"wait", OPTION_LIMIT, &got.wait, "S", "how long"},
    {"rate", OPTION_REAL, &got.rate, "X", "how fast"},
};

static struct options options;
static struct err err;
static char *argv[16];

/* Parses the words of `line`, split at spaces. */
static enum status parse(const char *line)
{
    static char words[256];
    int argc = 0;
    memset(&got, 0, sizeof got);
    memset(&err, 0, sizeof err);
    options = (struct options){.program = "prog",
                               .usage = "ARG...",
                               .about = "Test.",
                               .specs = specs,
                               .n_specs = 5,
                               .args_min = 1,
                               .args_max = 2,
                               .settings_allowed = true};
    snprintf(words, sizeof words, "prog %s", line);
    for (char *save, *word = strtok_r(words, " ", &save); word; word = strtok_r(NULL, " ", &save)) argv[argc++] = word;
    return options_parse(&options, argc, argv, &err);
}

TEST(test_both_forms_are_accepted_in_any_order)
{
    assert_int_equal(parse("one --dir=a/b --workers 3 two --rate -2.5e-1 --quiet --train.x=1"), STATUS_OK);
    assert_int_equal(options.n_args, 2);
    assert_string_equal(options.args[0], "one");
    assert_string_equal(options.args[1], "two");
    assert_string_equal(got.dir, "a/b");
    assert_int_equal(got.workers, 3);
    assert_true(got.rate == -0.25);
    assert_true(got.quiet);
    assert_int_equal(options.n_settings, 1);
    assert_string_equal(options.settings[0], "--train.x=1");
    assert_int_equal(parse("--train.x 1 one --train.y -2 --train.z=3 two"), STATUS_OK);
    assert_int_equal(options.n_args, 2);
    assert_int_equal(options.n_settings, 3);
    assert_string_equal(options.settings[0], "--train.x=1");
    assert_string_equal(options.settings[1], "--train.y=-2");
    assert_string_equal(options.settings[2], "--train.z=3");
    assert_int_equal(parse("--quiet one --train.x=1 --quiet --train.x=2"), STATUS_OK); /* config_set: the last counts */
}

TEST(test_limits)
{
    assert_int_equal(parse("a --wait 7"), STATUS_OK);
    assert_int_equal(got.wait, 7);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(parse(i ? "a --wait none" : "a --wait=0"), STATUS_OK);
        assert_true(got.wait == OPTION_NO_LIMIT);
    }
    assert_int_equal(parse("a --wait -1"), STATUS_INVALID);
    assert_string_equal(err.msg, "--wait is '-1': give a whole number, or none");
}

TEST(test_two_dashes_end_options)
{
    assert_int_equal(parse("-- --quiet -x"), STATUS_OK);
    assert_int_equal(options.n_args, 2);
    assert_string_equal(options.args[0], "--quiet");
    assert_string_equal(options.args[1], "-x");
    assert_false(got.quiet);
}

TEST(test_unknown_options_are_refused)
{
    static const struct {
        const char *line, *error;
    } cases[] = {
        {"a --worker 3", "did you mean --workers?"},
        {"a --verbose", "--help lists the known ones"},
        {"a --batch_size=3", "unknown option --batch_size: did you mean --train.batch_size?"},
        {"a --batch-size 3", "unknown option --batch-size: did you mean --train.batch_size?"},
        {"a --learning_rate 1", "did you mean --inner.learning_rate or --outer.learning_rate?"},
        {"a --workers", "--workers has no value"},
        {"a --workers --quiet", "--workers has no value: write --workers="}, /* the value would be ignored */
        {"a --rate --train.x=5", "--rate has no value"},
        {"a --train.x", "--train.x has no value: write --train.x=VALUE"},
        {"a --train.x --quiet", "--train.x has no value"},
        {"a --workers x", "--workers is 'x'"},
        {"a --workers -3", "--workers is '-3'"},
        {"a --workers=", "--workers is ''"},
        {"a --workers 99999999999999999999", "whole number"},
        {"a --rate nan", "give a number"},
        {"a --rate 1e999", "give a number"},
        {"a --rate 1x", "give a number"},
        {"a --quiet=1", "takes no value"},
        {"a --train.x", "write --train.x=VALUE"},
        {"a -q", "two dashes"},
        {"--dir a --dir b x", "--dir is given twice, the second time as 'b': remove one"},
        {"--dir=a --workers 3 --dir=a x", "--dir is given twice"},
        {"--quiet", "too few arguments"},
        {"a b c", "unexpected argument 'c'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(parse(cases[i].line), STATUS_INVALID);
        if (!strstr(err.msg, cases[i].error)) fail_msg("'%s' gives: %s", cases[i].line, err.msg);
        assert_null(strchr(err.msg, '\n'));
    }
}

TEST(test_settings_are_accepted_where_allowed)
{
    char *many[OPTIONS_SETTINGS_MAX + 3];
    char program[] = "prog", setting[] = "--a.b=1";
    many[0] = program;
    for (int i = 1; i < OPTIONS_SETTINGS_MAX + 3; i++) many[i] = setting;
    struct options o = {.program = "prog", .usage = "", .about = "", .args_max = 1, .settings_allowed = true};
    assert_int_equal(options_parse(&o, OPTIONS_SETTINGS_MAX + 1, many, &err), STATUS_OK);
    assert_int_equal(options_parse(&o, OPTIONS_SETTINGS_MAX + 2, many, &err), STATUS_INVALID);
    char key[] = "--a.b", value[OPTIONS_JOINED_MAX];
    memset(value, 'v', sizeof value);
    value[sizeof value - sizeof key - 1] = 0; /* with the key, "=" and the terminator: the maximum */
    for (int i = 1; i < 5; i++) many[i] = i % 2 ? key : value;
    assert_int_equal(options_parse(&o, 3, many, &err), STATUS_OK);
    assert_int_equal(strlen(o.settings[0]), OPTIONS_JOINED_MAX - 1);
    many[1] = key, many[2] = value;
    assert_int_equal(options_parse(&o, 5, many, &err), STATUS_INVALID);
    many[1] = setting;
    o.settings_allowed = false;
    assert_int_equal(options_parse(&o, 2, many, &err), STATUS_INVALID);
}

TEST(test_nearest_name_is_suggested)
{
    static const char *const names[] = {"prepare", "launch", "status", "config"};
    assert_string_equal(options_nearest("prepre", names, 4), "prepare");
    assert_string_equal(options_nearest("lanch", names, 4), "launch");
    assert_string_equal(options_nearest("stauts", names, 4), "status");
    assert_null(options_nearest("xyz", names, 4));
    assert_null(options_nearest("", names, 4));
}

TEST(test_exit_codes_follow_status)
{
    assert_non_null(freopen("/dev/null", "w", stderr));
    assert_int_equal(options_fail("p", &(struct err){.code = STATUS_INVALID}), 2);
    assert_int_equal(options_fail("p", &(struct err){.code = STATUS_INTERRUPTED}), 75);
    assert_int_equal(options_fail("p", &(struct err){.code = STATUS_IO}), 1);
    assert_int_equal(options_fail("p", &(struct err){.code = STATUS_UNSUPPORTED}), 1);
    assert_int_equal(exit_code_of(STATUS_OK), 0);
    static const enum status last[] = {STATUS_CORRUPT, STATUS_MISMATCH, STATUS_UNSUPPORTED,
                                       STATUS_REFUSED, STATUS_EXISTS,   STATUS_FULL};
    static const enum status pass[] = {STATUS_NOMEM, STATUS_IO, STATUS_STATE, STATUS_NONFINITE};
    setenv(EXIT_PERMANENT_ENV, "1", 1); /* as launch starts a program: it needs to know whether a restart would help */
    for (size_t i = 0; i < sizeof last / sizeof *last; i++) assert_int_equal(exit_code_of(last[i]), EXIT_PERMANENT);
    for (size_t i = 0; i < sizeof pass / sizeof *pass; i++) assert_int_equal(exit_code_of(pass[i]), 1);
    assert_int_equal(exit_code_of(STATUS_INVALID), 2);
    assert_int_equal(exit_code_of(STATUS_INTERRUPTED), 75);
    unsetenv(EXIT_PERMANENT_ENV);
}

struct outcome {
    enum status status;
    enum exit_code code;
    int calls;
};

static enum status end_as_requested(struct options *o, void *ctx, struct err *e)
{
    struct outcome *outcome = ctx;
    outcome->calls++;
    o->code = outcome->code;
    (void)e; /* a failure without a line: the status has a text and decides about the code */
    return outcome->status;
}

TEST(main_returns_the_exit_code)
{
    char program[] = "prog", wrong[] = "--wrong", version[] = "--version", *none[] = {program, NULL},
         *words[] = {program, wrong, NULL}, *asks[] = {program, version, NULL};
    struct options o = {.program = "prog", .usage = "", .about = ""};
    static const struct {
        struct outcome outcome;
        int code;
    } known[] = {{{STATUS_OK, EXIT_DONE, 0}, 0},           {{STATUS_OK, EXIT_RESUMABLE, 0}, 75},
                 {{STATUS_OK, EXIT_PERMANENT, 0}, 78},     {{STATUS_IO, EXIT_DONE, 0}, 1},
                 {{STATUS_INTERRUPTED, EXIT_DONE, 0}, 75}, {{STATUS_INVALID, EXIT_DONE, 0}, 2}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct outcome outcome = known[i].outcome;
        assert_int_equal(options_main(&o, 1, none, end_as_requested, &outcome), known[i].code);
        assert_int_equal(outcome.calls, 1);
    }
    struct outcome idle = {STATUS_OK, EXIT_FAILED, 0};
    assert_int_equal(options_main(&o, 2, words, end_as_requested, &idle), 2);
    assert_int_equal(options_main(&o, 2, asks, end_as_requested, &idle), 0);
    assert_int_equal(idle.calls, 0);
}

TEST_MAIN(NULL, NULL)
