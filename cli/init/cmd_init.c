/* atoll init: asks what a run is about, plans it, writes run.yaml and prints the commands that start it. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "cli/init/init.h"
#include "cli/verbs.h"
#include "common/base/text.h"
#include "common/base/units.h"
#include "coordinator/run_folder.h"

enum { PORT = 29600 };

/* The last part of the folder's path, with the characters that a name may have. */
static void name_of(const char *dir, char name[64])
{
    char *whole = realpath(dir, NULL);
    const char *path = whole ? whole : dir, *slash = strrchr(path, '/');
    snprintf(name, 64, "%s", slash && slash[1] ? slash + 1 : path);
    for (char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("._-", *c)) *c = '-';
    if (!isalnum((unsigned char)name[0])) snprintf(name, 64, "run");
    free(whole);
}

static enum status check_dir(const char *dir, struct err *err)
{
    if (!run_folder_has(dir, "run.yaml")) return STATUS_OK;
    return err_set(err, STATUS_EXISTS, "%.300s/run.yaml exists: give another folder, atoll init DIR", dir);
}

static void print_plan(const struct init_settings *s, const char *dir)
{
    text_print(stdout, "wrote %s/run.yaml: %s and %s of traffic by atoll plan%s%s\n%s\n", dir,
               units_duration(s->seconds).text, units_bytes(s->bytes).text, s->limit[0] ? "; limit: " : "", s->limit,
               s->reason);
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    static struct init_answers answers; /* large, as below */
    static struct init_settings settings;
    static struct progress progress;
    struct init_given *given = ctx;
    char name[64];
    const char *dir = o->n_args ? o->args[0] : ".";
    TRY(check_dir(dir, err));
    TRY(init_ask(&answers, given, err));
    if (answers.model == INIT_SCRIPT) {
        init_script_commands(&answers, given, stdout);
        return STATUS_OK;
    }
    name_of(dir, name);
    progress_begin(&progress, 0);
    enum status status = init_choose(&settings, &answers, name, &progress, err);
    progress_end(&progress);
    TRY(status);
    TRY(check_dir(dir, err));
    TRY(init_write(&settings, dir, err));
    print_plan(&settings, dir);
    init_commands(&answers, dir, stdout);
    return STATUS_OK;
}

int cmd_init(int argc, char **argv)
{
    static struct init_given given = {.port = PORT};
    const struct option_spec specs[] = {
        {"data", OPTION_TEXTS, &given.data, "PATH", "a text file (may be repeated), or a folder of atoll prepare"},
        {"model", OPTION_TEXT, &given.model, "WHAT",
         "tiny, small, gpt2, a Hugging Face folder or a PyTorch script (default tiny)"},
        {"machines", OPTION_TEXT, &given.machines, "N|NAMES",
         "machines that train, this one included, or the ssh names of the others (default 2)"},
        {"link", OPTION_TEXT, &given.link, "SPEC|JOIN",
         "link of a worker, as of atoll launch --link, or a running coordinator to measure (default 100mbit,rtt=30ms)"},
        {"budget", OPTION_TEXT, &given.budget, "LIMIT", "hours, traffic or both: 2h, 10GB, none (default 1h)"},
        {"port", OPTION_COUNT, &given.port, "N", "port of the coordinator, with several machines (default 29600)"},
    };
    struct options o = {
        .resumable = true,
        .program = "atoll init",
        .usage = "[DIR] [options]",
        .about =
            "Ask at most five questions, or take flags, and write DIR/run.yaml, with the settings that atoll plan\n"
            "recommends. Then print the commands for each machine. Without a terminal, defaults answer what no\n"
            "flag does. An existing run.yaml stays. For a PyTorch script, print the lines that it needs.",
        OPTION_SPECS(specs),
        .args_max = 1,
    };
    return options_main(&o, argc, argv, run, &given);
}
