/* The program atoll: finds the verb and runs it. */
#include <stdio.h>
#include <string.h>

#include "cli/verbs.h"
#include "common/config/options.h"
#include "common/config/options_help.h"
#include "common/os/std_streams.h"

static const struct verb {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
    bool ignore_stdout; /* a failed write to stdout does not change the exit code */
} verbs[] = {
    {"prepare", cmd_prepare, "turn text into token shards", false},
    {"launch", cmd_launch, "start a coordinator and workers on this machine", true},
    {"status", cmd_status, "show the state of a run", false},
    {"generate", cmd_generate, "generate text from a checkpoint", false},
    {"export", cmd_export, "export a checkpoint as a Hugging Face folder", false},
    {"repair", cmd_repair, "keep the undamaged rounds of a run", false},
    {"workers", cmd_workers, "list the workers that may join a run, enrol or readmit one", false},
    {"revoke", cmd_revoke, "take a worker's right to join away, and make a new join line", false},
    {"keygen", cmd_keygen, "make the key of a worker before it joins", false},
    {"config", cmd_config, "print the configuration of a run, or list all keys", false},
    {"codec", cmd_codec, "list codecs, or measure one", false},
};

enum { N_VERBS = sizeof verbs / sizeof *verbs };

static const char about[] = "Train one model on machines in different places";

static void usage(FILE *out)
{
    fprintf(out, "usage: atoll VERB ...\n\n%s.\n\n", about);
    for (size_t i = 0; i < N_VERBS; i++) fprintf(out, "  %-12s %s\n", verbs[i].name, verbs[i].help);
    fprintf(
        out,
        "\n`atoll VERB --help` lists the options of a verb. For several machines: atoll-coordinator, atoll-worker.\n");
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
        verbs[i].run(2, words);
    }
    options_man_end(true, others);
}

static int unknown(const char *name)
{
    const char *names[N_VERBS];
    for (size_t i = 0; i < N_VERBS; i++) names[i] = verbs[i].name;
    const char *nearest = options_nearest(name, names, N_VERBS);
    struct err err = {0};
    if (nearest)
        err_set(&err, STATUS_INVALID, "unknown verb '%.200s': did you mean %s? (see atoll --help)", name, nearest);
    else
        err_set(&err, STATUS_INVALID, "unknown verb '%.200s': see atoll --help", name);
    return options_fail("atoll", &err);
}

static const struct verb *find(const char *name)
{
    for (size_t i = 0; i < N_VERBS; i++)
        if (!strcmp(name, verbs[i].name)) return &verbs[i];
    return NULL;
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
    return verb ? verb->run(2, words) : unknown(name);
}

int main(int argc, char **argv)
{
    std_streams_open();
    if (argc < 2) return usage(stderr), EXIT_USAGE;
    const char *name = argv[1];
    const struct verb *verb = find(name);
    if (verb) {
        int code = verb->run(argc - 1, argv + 1);
        return verb->ignore_stdout ? code : std_streams_close(code);
    }
    if (!strcmp(name, "help")) return std_streams_close(help(argv[2]));
    if (!strcmp(name, "--help") || !strcmp(name, "-h")) return std_streams_close(help(NULL));
    if (!strcmp(name, "--help=man")) return man(), std_streams_close(EXIT_DONE);
    if (!strcmp(name, "--help=words")) return words(), std_streams_close(EXIT_DONE);
    if (strcmp(name, "--version") != 0) return unknown(name);
    printf("atoll %s\n", ATOLL_VERSION);
    return std_streams_close(EXIT_DONE);
}
