/* atoll config print CONFIG: the configuration a run would have, and where each value comes from. atoll config help:
 * every key there is. */
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
        return err_set(err, STATUS_INVALID, "unexpected argument '%s': atoll config help lists all keys", path);
    if (!strcmp(word, "help")) return config_help(stdout), STATUS_OK;
    if (strcmp(word, "print") != 0)
        return err_set(err, STATUS_INVALID, "unknown word '%s': usage is atoll config %s", word, o->usage);
    TRY(settings_read(&config, &sources, path, o, err));
    settings_warn(&config, &sources);
    config_print(&config, &sources, stdout);
    return STATUS_OK;
}

int cmd_config(int argc, char **argv)
{
    struct options o = {
        .program = "atoll config",
        .usage = "print [CONFIG] [--section.key=value ...] | help",
        .about = "print: the resolved configuration with the source of each value. help: all keys with their defaults.",
        .args_min = 1,
        .args_max = 2,
        .settings_allowed = true,
    };
    return options_main(&o, argc, argv, run, NULL);
}
