/* atoll init: from at most five answers to a run.yaml and the commands that start the run.
 *
 *     init_answers.c  reads and checks the answers: flags, a terminal, or defaults
 *     init_settings.c the settings of the run, in the order of the file, and their plan
 *     init_write.c    run.yaml and the commands */
#ifndef CLI_INIT_H
#define CLI_INIT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "cli/plan/plan.h"
#include "common/os/fileio.h"

enum {
    INIT_FILES_MAX = OPTION_TEXTS_MAX,
    INIT_SETTINGS_MAX = 40,
    INIT_VALUE_MAX = FILEIO_PATH_MAX + 64,
    INIT_COMMENT_MAX = 200,
    OPTION_WORD = INIT_VALUE_MAX + 64,
};

/* --- answers ------------------------------------------------------------------------------------------------------ */

/* As given: a flag, a line of the terminal, or NULL. */
struct init_given {
    struct option_texts data;
    const char *model, *machines, *link, *budget;
    uint64_t port;
};

enum init_model { INIT_TINY, INIT_SMALL, INIT_GPT2, INIT_FOLDER, INIT_SCRIPT };

struct init_answers {
    enum init_model model;
    char model_path[FILEIO_PATH_MAX];            /* FOLDER, SCRIPT: absolute */
    char files[INIT_FILES_MAX][FILEIO_PATH_MAX]; /* [n_files] text: absolute */
    uint32_t n_files;
    char shards[FILEIO_PATH_MAX];             /* folder with train_*.bin, absolute; "": files */
    uint64_t vocab_size;                      /* 0: not known */
    char tokenizer[FILEIO_PATH_MAX];          /* as in meta.json: bytes, or a file */
    double tokens;                            /* of the training data; 0: not known */
    uint32_t machines;                        /* that train, this one included */
    const char *names[PLAN_WORKERS_MAX];      /* [machines - 1] ssh names of the others; NULL: not given */
    char names_text[1024];                    /* holds the names */
    struct link_spec links[PLAN_WORKERS_MAX]; /* [workers], all equal */
    char link[LINK_SPEC_MAX];
    bool measured;                   /* the link, by a probe */
    double hours, gb;                /* 0: no limit */
    uint32_t workers, port, threads; /* threads of a worker here */
};

/* Asks for what is missing if standard input is a terminal, otherwise takes defaults and says so. INVALID: a wrong
 * answer, or no data. Errors of a probe. */
enum status init_ask(struct init_answers *a, struct init_given *given, struct err *err) MUST_CHECK;

/* --- settings ----------------------------------------------------------------------------------------------------- */

struct init_setting {
    char section[16], key[24], value[INIT_VALUE_MAX], comment[INIT_COMMENT_MAX];
    bool text; /* the value is quoted in YAML */
};

struct init_settings {
    struct init_setting rows[INIT_SETTINGS_MAX]; /* [n] by section */
    uint32_t n;
    uint64_t max_steps;
    double seconds, bytes; /* of the run, by the plan */
    char limit[64];        /* what ends the run: "the budget of 2 h" */
    char reason[PLAN_REASON_MAX];
};

/* Chooses the settings by `atoll plan`. name: of the run. INVALID, NOMEM, UNSUPPORTED. */
enum status init_choose(struct init_settings *s, const struct init_answers *a, const char *name,
                        struct progress *progress, struct err *err) MUST_CHECK;

/* --- output ------------------------------------------------------------------------------------------------------- */

/* Writes DIR/run.yaml, which must not exist, after a check that it is valid. EXISTS, IO. */
enum status init_write(const struct init_settings *s, const char *dir, struct err *err) MUST_CHECK;
/* The commands of each machine, 4 spaces in front. dir: of run.yaml. */
void init_commands(const struct init_answers *a, const char *dir, FILE *out);
/* The same for a script. */
void init_script_commands(const struct init_answers *a, const struct init_given *given, FILE *out);

#endif
