/* Command lines: one table of options per program or verb drives parsing, --help and errors with the nearest name.
 *
 * - `--name value` and `--name=value` are the same.
 * - `--section.key=value` is a setting of the run's configuration and is passed on unchanged; two words are joined by
 *   '='.
 * - An option with a value may be given once, unless it is a list; of a setting that is given twice the last one
 * counts.
 * - Everything after `--` is an argument. */
#ifndef COMMON_OPTIONS_H
#define COMMON_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum { OPTIONS_SETTINGS_MAX = 128, OPTIONS_JOINED_MAX = 8192, OPTION_TEXTS_MAX = 16 };

/* Set by launch for its children: they may then exit with EXIT_PERMANENT, and they leave advice to launch. A service
 * manager may set it, too. With the value "container", EXIT_PERMANENT and EXIT_USAGE become 0, and
 * so does EXIT_RESUMABLE if the budget of the run is used up. */
#define EXIT_PERMANENT_ENV "ATOLL_SUPERVISED"

enum option_kind {
    OPTION_FLAG,  /* target: bool, set to true */
    OPTION_TEXT,  /* target: const char *, borrowed from argv */
    OPTION_TEXTS, /* target: struct option_texts; may be given several times */
    OPTION_COUNT, /* target: uint64_t */
    OPTION_LIMIT, /* the same; 0 and none: OPTION_NO_LIMIT */
    OPTION_REAL   /* target: double, finite */
};

#define OPTION_NO_LIMIT (UINT64_MAX - 1)

struct option_texts {
    const char *texts[OPTION_TEXTS_MAX]; /* [n], borrowed from argv */
    size_t n;
};

struct option_spec {
    const char *name; /* without the dashes */
    enum option_kind kind;
    void *target;      /* unchanged when the option is absent: initialise it with the default */
    const char *value; /* name of the value in help: "N", "FILE"; NULL for flags */
    const char *help;
};

/* For the initialiser of struct options. */
#define OPTION_SPECS(table) .specs = (table), .n_specs = sizeof(table) / sizeof *(table)

struct options {
    const char *program; /* "atoll launch" */
    const char *usage;   /* "CONFIG --workers N --dir RUN [options]" */
    const char *about;   /* description: one line or more */
    const struct option_spec *specs;
    size_t n_specs;
    size_t args_min, args_max;
    bool settings_allowed; /* --section.key=value */
    bool resumable;        /* it may end with EXIT_RESUMABLE; for the help only */

    /* Results. */
    char **args; /* borrowed from argv, in order */
    size_t n_args;
    const char *settings[OPTIONS_SETTINGS_MAX]; /* "--section.key=value", in order */
    size_t n_settings;
    char joined[OPTIONS_JOINED_MAX]; /* storage of settings given as two words */
    size_t joined_used;
    bool spent;     /* the budget of the run is used up: a restart would end in the same way */
    uint64_t given; /* bit i: option i with a value was given */

    enum exit_code code; /* the run function of options_main may set it; EXIT_DONE otherwise */
};

/* Parse argv[1 ..]; reorders argv. END: --help or --version was printed and the program should end. INVALID: `err` has
 * one line (unknown option with the nearest one, missing or bad value, too few or too many arguments). */
enum status options_parse(struct options *options, int argc, char **argv, struct err *err) MUST_CHECK;

/* The name of names[n] nearest to `text` by edit distance, or NULL when none is near. */
const char *options_nearest(const char *text, const char *const *names, size_t n);

/* EXIT_DONE for OK, EXIT_USAGE for INVALID, EXIT_RESUMABLE for INTERRUPTED. Otherwise EXIT_FAILED, or under
 * EXIT_PERMANENT_ENV EXIT_PERMANENT for a permanent failure. */
enum exit_code exit_code_of(enum status code);
/* Print "program: message" to stderr and return the exit code of err->code. */
int options_fail(const char *program, const struct err *err);

/* The body of a program or verb, called with the parsed command line. On failure it fills err with one line. It may
 * return OK with another options->code than EXIT_DONE; err may then hold the reason, which is printed as an error, or
 * logged for EXIT_RESUMABLE. */
typedef enum status options_run_fn(struct options *options, void *ctx, struct err *err);
/* A complete main or verb: parse, print --help and --version, run, print the error line, return the exit code. */
int options_main(struct options *options, int argc, char **argv, options_run_fn *run, void *ctx);

/* What a program says about its command line, on stdout (options_help.c): --help, for people; --help=man, a manual
 * page, of a verb only its section; --help=words, for shell completion: one "WORD<tab>HELP" a line, where a setting
 * ends with
 * '='. */
void options_help(const struct options *options);
void options_man(const struct options *options);
void options_words(const struct options *options);

/* Parts of a manual page for programs with verbs. `program` is the name, `about` one line. */
void options_man_begin(const char *program, const char *about);
/* Prints text as roff: special characters are escaped, and blanks after a line end are dropped. */
void options_man_text(const char *text);
/* Prints the sections that follow the options; `others` are the pages to see, ended by NULL. */
void options_man_end(bool resumable, const char *const *others);

#endif
