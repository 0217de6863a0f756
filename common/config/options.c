#include "common/config/options.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/number.h"
#include "common/base/text.h"
#include "common/config/config_keys.h"
#include "common/os/std_streams.h"

enum { NAME_MAX_LEN = 63 };

const char *options_nearest(const char *text, const char *const *names, size_t n)
{
    const char *best = NULL;
    int best_distance = (int)(strlen(text) / 3) + 2;
    for (size_t i = 0; i < n; i++) {
        int distance = text_distance(text, names[i]);
        if (distance < best_distance && distance < (int)strlen(names[i])) {
            best = names[i];
            best_distance = distance;
        }
    }
    return best;
}

static bool real(const char *text, double *value)
{
    if (!strchr("+-.0123456789", *text) || !*text) return false;
    char *end;
    double parsed = strtod(text, &end);
    if (*end || !isfinite(parsed)) return false;
    *value = parsed;
    return true;
}

static const struct option_spec *find(const struct options *o, const char *name, size_t length)
{
    for (size_t i = 0; i < o->n_specs; i++)
        if (strlen(o->specs[i].name) == length && !strncmp(o->specs[i].name, name, length)) return &o->specs[i];
    return NULL;
}

static bool same_key(const char *name, const char *key)
{
    for (; *name && (*name == '-' ? '_' : *name) == *key; name++) key++;
    return !*name && !*key;
}

/* Finds the settings with this key, for users who omit the section: --batch_size or --batch-size. */
static bool find_settings(const char *name, char *out, size_t cap)
{
    size_t n = 0;
    for (int i = 0; i < config_keys_count; i++)
        if (same_key(name, config_keys[i].key) && n < cap)
            n += (size_t)snprintf(out + n, cap - n, "%s--%s.%s", n ? " or " : "", config_keys[i].section,
                                  config_keys[i].key);
    return n > 0;
}

static enum status unknown(const struct options *o, const char *word, size_t length, struct err *err)
{
    const char *names[64];
    char name[NAME_MAX_LEN + 1], settings[256];
    size_t n = 0;
    for (; n < o->n_specs && n < 62; n++) names[n] = o->specs[n].name;
    names[n++] = "help";
    names[n++] = "version";
    snprintf(name, sizeof name, "%.*s", (int)(length < NAME_MAX_LEN ? length : NAME_MAX_LEN), word);
    if (o->settings_allowed && find_settings(name, settings, sizeof settings))
        return err_set(err, STATUS_INVALID, "unknown option --%s: did you mean %s?", name, settings);
    const char *nearest = options_nearest(name, names, n);
    if (nearest)
        return err_set(err, STATUS_INVALID, "unknown option --%s: did you mean --%s? (%s --help lists all)", name,
                       nearest, o->program);
    return err_set(err, STATUS_INVALID, "unknown option --%s: %s --help lists the known ones", name, o->program);
}

static enum status store(struct options *o, const struct option_spec *spec, const char *value, struct err *err)
{
    uint64_t bit = (uint64_t)1 << (spec - o->specs);
    assert(spec->target && spec->kind != OPTION_FLAG && spec - o->specs < 64);
    if (spec->kind == OPTION_TEXTS) {
        struct option_texts *list = spec->target;
        if (list->n == OPTION_TEXTS_MAX)
            return err_set(err, STATUS_INVALID, "--%s is given more than %d times", spec->name, OPTION_TEXTS_MAX);
        list->texts[list->n++] = value;
        return STATUS_OK;
    }
    if (o->given & bit)
        return err_set(err, STATUS_INVALID, "--%s is given twice, the second time as '%s': remove one", spec->name,
                       value);
    o->given |= bit;
    if (spec->kind == OPTION_LIMIT) {
        uint64_t *limit = spec->target;
        if (strcmp(value, "none") != 0 && !number_whole(value, limit))
            return err_set(err, STATUS_INVALID, "--%s is '%s': give a whole number, or none", spec->name, value);
        if (!strcmp(value, "none") || !*limit) *limit = OPTION_NO_LIMIT;
    }
    if (spec->kind == OPTION_COUNT && !number_whole(value, spec->target))
        return err_set(err, STATUS_INVALID, "--%s is '%s': give a whole number, 0 or more", spec->name, value);
    if (spec->kind == OPTION_REAL && !real(value, spec->target))
        return err_set(err, STATUS_INVALID, "--%s is '%s': give a number", spec->name, value);
    if (spec->kind == OPTION_TEXT) *(const char **)spec->target = value;
    return STATUS_OK;
}

/* Stores "--section.key=value"; joins "--section.key value" to that form. */
static enum status add_setting(struct options *o, int argc, char **argv, int *at, struct err *err)
{
    char *word = argv[*at];
    if (o->n_settings == OPTIONS_SETTINGS_MAX)
        return err_set(err, STATUS_INVALID,
                       "more than %d settings on the command line: put them into the configuration file",
                       OPTIONS_SETTINGS_MAX);
    if (!strchr(word, '=')) {
        const char *value = *at + 1 < argc ? argv[*at + 1] : "--";
        if (!strncmp(value, "--", 2))
            return err_set(err, STATUS_INVALID, "%s has no value: write %s=VALUE", word, word);
        size_t size = strlen(word) + strlen(value) + 2, room = OPTIONS_JOINED_MAX - o->joined_used;
        if (size > room)
            return err_set(err, STATUS_INVALID, "%s and its value are too long: put them into the configuration file",
                           word);
        snprintf(o->joined + o->joined_used, room, "%s=%s", word, value);
        word = o->joined + o->joined_used;
        o->joined_used += size;
        assert(o->joined_used <= OPTIONS_JOINED_MAX);
        ++*at;
    }
    o->settings[o->n_settings++] = word;
    return STATUS_OK;
}

/* Prints the help that "help", "help=man" or "help=words" asks for; false for another word. */
static bool help(const struct options *o, const char *word)
{
    if (!strcmp(word, "help"))
        options_help(o);
    else if (!strcmp(word, "help=man"))
        options_man(o);
    else if (!strcmp(word, "help=words"))
        options_words(o);
    else
        return false;
    return true;
}

/* Parses one word that starts with "--"; advances *at when the value is the next word. */
static enum status parse_option(struct options *o, int argc, char **argv, int *at, struct err *err)
{
    const char *word = argv[*at] + 2, *equals = strchr(word, '=');
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    if (help(o, word)) return STATUS_END;
    if (!strcmp(word, "version")) {
        printf("%s %s\n", o->program, ATOLL_VERSION);
        return STATUS_END;
    }
    const struct option_spec *spec = find(o, word, length);
    if (!spec && o->settings_allowed && memchr(word, '.', length)) return add_setting(o, argc, argv, at, err);
    if (!spec) return unknown(o, word, length, err);
    if (spec->kind == OPTION_FLAG) {
        if (equals) return err_set(err, STATUS_INVALID, "--%s takes no value: remove '%s'", spec->name, equals);
        *(bool *)spec->target = true;
        return STATUS_OK;
    }
    if (equals) return store(o, spec, equals + 1, err);
    /* The next option must not be read as a value. */
    if (*at + 1 >= argc || !strncmp(argv[*at + 1], "--", 2))
        return err_set(err, STATUS_INVALID, "--%s has no value: write --%s=%s", spec->name, spec->name, spec->value);
    return store(o, spec, argv[++*at], err);
}

enum status options_parse(struct options *o, int argc, char **argv, struct err *err)
{
    o->args = argv + 1;
    o->n_args = o->n_settings = o->joined_used = 0;
    o->given = 0;
    bool only_args = false;
    assert(o->args_min <= o->args_max && (o->specs || !o->n_specs));
    for (int i = 1; i < argc; i++) {
        if (!only_args && !strcmp(argv[i], "--"))
            only_args = true;
        else if (!only_args && !strcmp(argv[i], "-h"))
            return options_help(o), STATUS_END;
        else if (!only_args && !strncmp(argv[i], "--", 2))
            TRY(parse_option(o, argc, argv, &i, err));
        else if (!only_args && argv[i][0] == '-' && argv[i][1])
            return err_set(err, STATUS_INVALID,
                           "unknown option %s: options start with two dashes, %s --help lists them", argv[i],
                           o->program);
        else
            o->args[o->n_args++] = argv[i]; /* n_args < i: arguments move to the front of argv */
    }
    if (o->n_args < o->args_min)
        return err_set(err, STATUS_INVALID, "too few arguments: usage is %s %s", o->program, o->usage);
    if (o->n_args > o->args_max)
        return err_set(err, STATUS_INVALID, "unexpected argument '%s': usage is %s %s", o->args[o->args_max],
                       o->program, o->usage);
    return STATUS_OK;
}

static bool supervised(void)
{
    const char *value = getenv(EXIT_PERMANENT_ENV);
    return value && *value;
}

enum exit_code exit_code_of(enum status code)
{
    switch (code) {
    case STATUS_OK: return EXIT_DONE;
    case STATUS_INVALID: return EXIT_USAGE;
    case STATUS_INTERRUPTED:
    case STATUS_SPENT: return EXIT_RESUMABLE;
    default: return status_is_permanent(code) && supervised() ? EXIT_PERMANENT : EXIT_FAILED;
    }
}

/* A message may contain a name from a file, the network or the command line, and a terminal obeys control characters.
 */
static void print_error(const char *program, const char *message)
{
    char line[sizeof((struct err *)0)->msg];
    snprintf(line, sizeof line, "%s", message);
    text_make_clean(line);
    fprintf(stderr, "%s: %s\n", program, line);
    log_copy(line);
}

int options_fail(const char *program, const struct err *err)
{
    print_error(program, err->msg[0] ? err->msg : status_text(err->code));
    return (int)exit_code_of(err->code);
}

static int main_code(struct options *options, int argc, char **argv, options_run_fn *run, void *ctx)
{
    struct err err = {0};
    options->code = EXIT_DONE;
    enum status status = options_parse(options, argc, argv, &err);
    if (status == STATUS_END) return std_streams_close(EXIT_DONE);
    if (status == STATUS_OK) status = run(options, ctx, &err);
    options->spent = err.code == STATUS_SPENT && options->code == EXIT_RESUMABLE;
    err.code = status;
    if (status != STATUS_OK) return options_fail("atoll", &err);
    if (options->code == EXIT_RESUMABLE && err.msg[0])
        log_info("%s%s", err.msg, supervised() || options->spent ? "" : "; start it again the same way to continue");
    else if (options->code != EXIT_DONE && err.msg[0])
        print_error("atoll", err.msg);
    return (int)options->code;
}

/* A container engine restarts every code but 0, so a failure that a restart would repeat ends with 0 there. */
static int container_code(int code, bool spent)
{
    const char *value = getenv(EXIT_PERMANENT_ENV);
    bool repeats = code == EXIT_USAGE || code == EXIT_PERMANENT || spent;
    if (!value || strcmp(value, "container") != 0 || !repeats) return code;
    fprintf(stderr, "atoll: ending with exit code 0 instead of %d, because a restart would fail in the same way\n",
            code);
    return EXIT_DONE;
}

int options_main(struct options *options, int argc, char **argv, options_run_fn *run, void *ctx)
{
    int code = main_code(options, argc, argv, run, ctx);
    return container_code(code, options->spent);
}
