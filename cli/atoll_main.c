/* atoll: the front door. Finds the verb and hands over. */
#include <stdio.h>
#include <string.h>

#include "cli/verbs.h"
#include "common/options.h"
#include "common/std_streams.h"

static const struct verb {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
    bool prints; /* what it prints is its result */
} verbs[] = {
    {"prepare", cmd_prepare, "turn text into token shards", false},
    {"launch", cmd_launch, "start a coordinator and workers on this machine", false},
    {"status", cmd_status, "how a run is doing", true},
    {"generate", cmd_generate, "write text with a trained model", true},
    {"export", cmd_export, "copy a checkpoint as a Hugging Face folder", false},
    {"config", cmd_config, "print a resolved configuration, or list all keys", true},
    {"codec", cmd_codec, "list the codecs", true},
};

enum { N_VERBS = sizeof verbs / sizeof *verbs };

static void usage(FILE *out)
{
    fprintf(out, "usage: atoll VERB ...\n\n");
    for (size_t i = 0; i < N_VERBS; i++) fprintf(out, "  %-12s %s\n", verbs[i].name, verbs[i].help);
    fprintf(out, "\n`atoll VERB --help` says more. Programs beside this one: atoll-coordinator, atoll-worker.\n");
}

static int unknown(const char *name)
{
    const char *names[N_VERBS];
    for (size_t i = 0; i < N_VERBS; i++) names[i] = verbs[i].name;
    const char *nearest = options_nearest(name, names, N_VERBS);
    if (nearest)
        fprintf(stderr, "atoll: unknown verb '%s': did you mean %s? (atoll --help lists all)\n", name, nearest);
    else
        fprintf(stderr, "atoll: unknown verb '%s': atoll --help lists the known ones\n", name);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    std_streams_open();
    if (argc < 2) return usage(stderr), EXIT_USAGE;
    const char *name = argv[1];
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) return usage(stdout), EXIT_DONE;
    if (!strcmp(name, "--version")) return printf("atoll %s\n", ATOLL_VERSION), EXIT_DONE;
    for (size_t i = 0; i < N_VERBS; i++) {
        if (strcmp(name, verbs[i].name) != 0) continue;
        int code = verbs[i].run(argc - 1, argv + 1);
        return verbs[i].prints ? std_streams_close(code) : code;
    }
    return unknown(name);
}
