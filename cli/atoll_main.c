/* The program atoll: finds the verb and runs it. */
#include <stdio.h>
#include <string.h>

#include "cli/package_verb.h"
#include "cli/verbs.h"
#include "common/config/options.h"
#include "common/os/std_streams.h"

static const struct verb {
    const char *name;
    int (*run)(int argc, char **argv); /* NULL: a program of the Python package */
    const char *help;
    bool ignore_stdout; /* a failed write to stdout does not change the exit code */
} verbs[] = {
    {"init", cmd_init, "ask five questions, write run.yaml, say the commands of each machine", false},
    {"prepare", cmd_prepare, "turn text into token shards", false},
    {"launch", cmd_launch, "start a coordinator and workers on this machine", true},
    {"plan", cmd_plan, "plan a run: memory, bytes, time, and better settings", false},
    {"status", cmd_status, "show the state of a run", false},
    {"page", cmd_page, "serve a web page about a run, also for Prometheus", true},
    {"alert", cmd_alert, "run a command when a run needs a person", true},
    {"relay", cmd_relay, "emulate a slow link on one machine", false},
    {"probe", cmd_probe, "measure the link to a running coordinator", false},
    {"generate", cmd_generate, "generate text from a checkpoint", false},
    {"export", cmd_export, "export a checkpoint as a Hugging Face folder", false},
    {"follow", cmd_follow, "keep the newest model of a run as a Hugging Face folder", false},
    {"repair", cmd_repair, "keep the undamaged rounds of a run", false},
    {"audit", cmd_audit, "compute every update of a run again from its deltas", false},
    {"rollback", cmd_rollback, "take the newest rounds of a run back", false},
    {"exclude", cmd_exclude, "take the deltas of a worker out of a run", false},
    {"workers", cmd_workers, "list the workers that may join a run, enrol or readmit one", false},
    {"revoke", cmd_revoke, "take a worker's right to join away, and make a new join line", false},
    {"keygen", cmd_keygen, "make the key of a worker, or of a run, beforehand", false},
    {"config", cmd_config, "print the configuration of a run, or list all keys", false},
    {"codec", cmd_codec, "list codecs, or measure one", false},
    /* Programs of the Python package. Any other program atoll-VERB on PATH is a verb, too. */
    {"board", NULL, "follow a run in TensorBoard, W&B or trackio", false},
    {"compare", NULL, "train the arms of a grid and compare them", false},
    {"report", NULL, "write a page about a comparison or a run", false},
};

enum { N_VERBS = sizeof verbs / sizeof *verbs };

static const char about[] = "Train one model on machines in different places";

static void usage(FILE *out)
{
    fprintf(out, "usage: atoll VERB ...\n\n%s.\n\n", about);
    for (size_t i = 0; i < N_VERBS; i++) {
        if (i && verbs[i - 1].run && !verbs[i].run) fprintf(out, "\nof the Python package (" PACKAGE_INSTALL "):\n\n");
        fprintf(out, "  %-12s %s\n", verbs[i].name, verbs[i].help);
    }
    fprintf(
        out,
        "\n`atoll VERB --help` lists the options of a verb. For several machines: atoll-coordinator, atoll-worker.\n"
        "A program atoll-NAME on PATH is the verb NAME.\n");
}

/* The manual page: each verb prints its own section. */
static void man(void)
{
    static const char *const others[] = {"atoll-coordinator", "atoll-worker", NULL};
    char option[] = "--help=man", name[32], *words[] = {name, option, NULL};
    options_man_begin("atoll", about);
    printf("VERB ...\n.SH VERBS\n");
    for (size_t i = 0; i < N_VERBS; i++) {
        snprintf(name, sizeof name, "%s", verbs[i].name);
        if (verbs[i].run) {
            verbs[i].run(2, words);
            continue;
        }
        printf(".SS atoll %s\n", name);
        options_man_text(verbs[i].help);
        printf(". Part of the Python package; atoll %s \\-\\-help lists its options.\n", name);
    }
    options_man_end(true, others);
}

static const struct verb *find(const char *name)
{
    for (size_t i = 0; i < N_VERBS; i++)
        if (!strcmp(name, verbs[i].name)) return &verbs[i];
    return NULL;
}

/* Runs the program of a verb that is not built in; returns only on failure. words[0]: the verb; the last one: NULL. */
static int other_verb(char **words)
{
    const char *name = words[0], *names[N_VERBS];
    struct err err = {0};
    if (package_run(name, words, &err) == STATUS_IO) return options_fail("atoll", &err);
    for (size_t i = 0; i < N_VERBS; i++) names[i] = verbs[i].name;
    const char *nearest = options_nearest(name, names, N_VERBS);
    if (find(name))
        err_set(&err, STATUS_INVALID, "atoll %s is part of the Python package: " PACKAGE_INSTALL, name);
    else if (nearest)
        err_set(&err, STATUS_INVALID, "unknown verb '%.200s': did you mean %s? (see atoll --help)", name, nearest);
    else
        err_set(&err, STATUS_INVALID, "unknown verb '%.200s': see atoll --help", name);
    return options_fail("atoll", &err);
}

static void words(void)
{
    for (size_t i = 0; i < N_VERBS; i++) printf("%s\t%s\n", verbs[i].name, verbs[i].help);
    printf("help\tthis text, or that of a verb\n--help\tthis text\n--version\tthe version\n");
}

/* `atoll help VERB` is the same as `atoll VERB --help`. */
static int help(char *name)
{
    char option[] = "--help", *words[] = {name, option, NULL};
    if (!name) return usage(stdout), EXIT_DONE;
    const struct verb *verb = find(name);
    return verb && verb->run ? verb->run(2, words) : other_verb(words);
}

int main(int argc, char **argv)
{
    std_streams_open();
    if (argc < 2) return usage(stderr), EXIT_USAGE;
    const char *name = argv[1];
    const struct verb *verb = find(name);
    if (verb && verb->run) {
        package_keep_words(argc - 1, argv + 1);
        int code = verb->run(argc - 1, argv + 1);
        return verb->ignore_stdout ? code : std_streams_close(code);
    }
    if (!strcmp(name, "help")) return std_streams_close(help(argv[2]));
    if (!strcmp(name, "--help") || !strcmp(name, "-h")) return std_streams_close(help(NULL));
    if (!strcmp(name, "--help=man")) return man(), std_streams_close(EXIT_DONE);
    if (!strcmp(name, "--help=words")) return words(), std_streams_close(EXIT_DONE);
    if (strcmp(name, "--version") != 0) return other_verb(argv + 1);
    printf("atoll %s\n", ATOLL_VERSION);
    return std_streams_close(EXIT_DONE);
}
