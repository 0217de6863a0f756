/* atoll-coordinator: serves one training run. Its configuration is the run's; workers get theirs from it. */
#include <stdio.h>

#include "common/config.h"
#include "common/log.h"
#include "common/options.h"
#include "compress/codec.h"
#include "coordinator/server.h"

static enum status read_config(const struct options *options, struct config *config, struct config_sources *sources,
                               struct err *err)
{
    config_defaults(config, sources);
    TRY(config_load(config, sources, options->args[0], err));
    TRY(config_env(config, sources, err));
    for (size_t i = 0; i < options->n_settings; i++)
        TRY(config_set(config, sources, options->settings[i], CONFIG_FLAG, err));
    TRY(config_resolve(config, sources, err));
    if (codec_spec_check(config->codec.up, err) != STATUS_OK) return err_prefix(err, "codec.up");
    if (codec_spec_check(config->codec.down, err) != STATUS_OK) return err_prefix(err, "codec.down");
    return STATUS_OK;
}

int main(int argc, char **argv)
{
    static struct config config;
    static struct config_sources sources;
    const char *dir = NULL;
    struct err err = {0};
    const struct option_spec specs[] = {
        {"dir", OPTION_TEXT, &dir, "RUN", "run folder; a run found there is continued"},
    };
    struct options options = {
        .program = "atoll-coordinator",
        .usage = "CONFIG --dir RUN [--section.key=value ...]",
        .about = "Serves one training run: workers join it, deltas are merged, updates are journaled and published.\n"
                 "Settings: atoll config print CONFIG.",
        .specs = specs,
        .n_specs = sizeof specs / sizeof *specs,
        .args_min = 1,
        .args_max = 1,
        .settings_allowed = true,
    };
    enum status status = options_parse(&options, argc, argv, &err);
    if (status == STATUS_END) return EXIT_DONE;
    if (status == STATUS_OK && !dir)
        status = err_set(&err, STATUS_INVALID, "--dir is missing: give the run folder");
    if (status == STATUS_OK) status = read_config(&options, &config, &sources, &err);
    if (status != STATUS_OK) {
        options_fail("atoll", &err);
        return EXIT_USAGE; /* also when the file cannot be read: nothing has begun */
    }
    log_set_name("coordinator");
    log_set_level((enum log_level)log_level_parse(config.log.level));
    struct server_options server = {.config = &config, .sources = &sources, .run_dir = dir};
    enum exit_code code = server_run(&server, &err);
    if (code == EXIT_RESUMABLE)
        log_info("%s", err.msg);
    else if (code != EXIT_DONE)
        fprintf(stderr, "atoll: %s\n", err.msg);
    return code;
}
