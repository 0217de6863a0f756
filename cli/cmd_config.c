/* atoll config print CONFIG: prints the configuration of a run and the source of each value. atoll config help: lists
 * all keys. */
#include <stdio.h>
#include <string.h>

#include "cli/verbs.h"
#include "common/config/config.h"
#include "common/config/options.h"
#include "coordinator/settings.h"

static enum status run(struct options *o, void *ctx, struct err *err)
{
    struct config config;
    struct config_sources sources;
    const char *word = o->args[0], *path = o->n_args > 1 ? o->args[1] : NULL;
    (void)ctx;
    if (!strcmp(word, "help") && path)
        return err_set(err, STATUS_INVALID, "unexpected argument '%s': usage: atoll config help", path);
    if (!strcmp(word, "help")) return config_help(stdout), STATUS_OK;
    if (strcmp(word, "print") != 0)
        return err_set(err, STATUS_INVALID, "unknown word '%s': usage: atoll config %s", word, o->usage);
    TRY(settings_read(&config, &sources, path, NULL, o, err));
    settings_warn(&config, &sources);
    config_print(&config, &sources, stdout);
    return STATUS_OK;
}

int cmd_config(int argc, char **argv)
{
    struct options o = {
        .program = "atoll config",
        .usage = "print [CONFIG] [--section.key=value ...] | help",
        .about = "print: the configuration of a run, with the source of each value.\n"
                 "help: all keys, with their defaults.",
        .args_min = 1,
        .args_max = 2,
        .settings_allowed = true,
    };
    return options_main(&o, argc, argv, run, NULL);
}
