/* atoll-coordinator: serves one training run. Its configuration is the run's; workers get theirs from it. */
#include <stdio.h>
#include <sys/resource.h>

#include "common/base/log.h"
#include "common/config/config.h"
#include "common/config/options.h"
#include "common/os/host_memory.h"
#include "common/os/std_streams.h"
#include "coordinator/server.h"
#include "coordinator/settings.h"

/* Every connection takes a descriptor, and anybody may open some: the journal needs the next one. */
static void allow_open_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit)) log_debug("the limit of open files stays as it is");
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
    std_streams_open();
    enum status status = options_parse(&options, argc, argv, &err);
    if (status == STATUS_END) return std_streams_close(EXIT_DONE);
    if (status == STATUS_OK && !dir) status = err_set(&err, STATUS_INVALID, "--dir is missing: give the run folder");
    if (status == STATUS_OK) status = host_memory_told(&err);
    if (status == STATUS_OK) status = settings_read(&config, &sources, options.args[0], &options, &err);
    if (status != STATUS_OK) {
        options_fail("atoll", &err);
        return EXIT_USAGE;
    }
    log_set_name("coordinator");
    log_set_level((enum log_level)log_level_parse(config.log.level));
    settings_warn(&config, &sources);
    allow_open_files();
    struct server_options server = {.config = &config, .sources = &sources, .run_dir = dir};
    enum exit_code code = server_run(&server, &err);
    if (code == EXIT_RESUMABLE)
        log_info("%s", err.msg);
    else if (code != EXIT_DONE)
        fprintf(stderr, "atoll: %s\n", err.msg);
    return code;
}
