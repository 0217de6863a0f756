/* atoll-coordinator: serves one training run. Its configuration is the run's configuration; workers receive it. */
#include <stdio.h>

#include "common/base/log.h"
#include "common/config/config.h"
#include "common/config/options.h"
#include "common/os/descriptors.h"
#include "common/os/host_memory.h"
#include "common/os/std_streams.h"
#include "coordinator/server.h"
#include "coordinator/settings.h"

static enum status run(struct options *options, void *ctx, struct err *err)
{
    static struct config config;
    static struct config_sources sources;
    const char *dir = *(const char **)ctx;
    if (!dir) return err_set(err, STATUS_INVALID, "--dir is missing: give the run folder");
    TRY(host_memory_check_env(err));
    TRY(settings_read(&config, &sources, options->args[0], dir, options, err));
    log_set_name("coordinator");
    log_set_level((enum log_level)log_level_parse(config.log.level));
    settings_warn(&config, &sources);
    descriptors_reserve();
    struct server_options server = {.config = &config, .sources = &sources, .run_dir = dir};
    options->code = server_run(&server, err);
    return STATUS_OK;
}

int main(int argc, char **argv)
{
    const char *dir = NULL;
    const struct option_spec specs[] = {
        {"dir", OPTION_TEXT, &dir, "RUN", "run folder; continues the run in it, if any"},
    };
    struct options options = {
        .program = "atoll-coordinator",
        .usage = "CONFIG --dir RUN [--section.key=value ...]",
        .about = "Serves one training run: accepts workers, merges their deltas, journals and publishes updates.\n"
                 "Settings: atoll config print CONFIG.",
        .specs = specs,
        .n_specs = sizeof specs / sizeof *specs,
        .args_min = 1,
        .args_max = 1,
        .settings_allowed = true,
        .resumable = true,
    };
    std_streams_open();
    return options_main(&options, argc, argv, run, &dir);
}
