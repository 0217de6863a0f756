/* atoll config print CONFIG: the configuration a run would have, and where each value comes from. atoll config help:
 * every key there is. */
#include <stdio.h>
#include <string.h>

#include "cli/verbs.h"
#include "common/config.h"
#include "common/options.h"

static enum status config_load_all(const struct options *o, struct config *config, struct config_sources *sources,
                                   struct err *err)
{
    config_defaults(config, sources);
    if (o->n_args > 1) TRY(config_load(config, sources, o->args[1], err));
    TRY(config_env(config, sources, err));
    for (size_t i = 0; i < o->n_settings; i++)
        TRY(config_set(config, sources, o->settings[i], CONFIG_FLAG, err));
    return config_resolve(config, sources, err);
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
    struct config config;
    struct config_sources sources;
    struct err err = {0};
    enum status status = options_parse(&o, argc, argv, &err);
    if (status == STATUS_END) return EXIT_DONE;
    if (status == STATUS_OK && !strcmp(o.args[0], "help")) {
        config_help(stdout);
        return EXIT_DONE;
    }
    if (status == STATUS_OK && strcmp(o.args[0], "print"))
        status = err_set(&err, STATUS_INVALID, "unknown word '%s': usage is atoll config %s", o.args[0], o.usage);
    if (status == STATUS_OK && config_load_all(&o, &config, &sources, &err) != STATUS_OK)
        status = err.code = STATUS_INVALID; /* a file that is not there is wrong usage too */
    if (status != STATUS_OK) return options_fail("atoll", &err);
    config_print(&config, &sources, stdout);
    return EXIT_DONE;
}
