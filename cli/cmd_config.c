/* atoll config print CONFIG: the configuration a run would have, and where each value comes from. atoll config help:
 * every key there is. */
#include <stdio.h>
#include <string.h>

#include "cli/verbs.h"
#include "common/config/config.h"
#include "common/config/options.h"
#include "coordinator/settings.h"

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
    if (status == STATUS_OK && !strcmp(o.args[0], "help") && o.n_args > 1)
        status = err_set(&err, STATUS_INVALID, "unexpected argument '%s': atoll config help lists all keys", o.args[1]);
    if (status == STATUS_OK && !strcmp(o.args[0], "help")) {
        config_help(stdout);
        return EXIT_DONE;
    }
    if (status == STATUS_OK && strcmp(o.args[0], "print"))
        status = err_set(&err, STATUS_INVALID, "unknown word '%s': usage is atoll config %s", o.args[0], o.usage);
    if (status == STATUS_OK) status = settings_read(&config, &sources, o.n_args > 1 ? o.args[1] : NULL, &o, &err);
    if (status != STATUS_OK) return options_fail("atoll", &err);
    settings_warn(&config, &sources);
    config_print(&config, &sources, stdout);
    return EXIT_DONE;
}
