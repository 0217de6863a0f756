/* atoll-coordinator: serves one training run. Its configuration is the run's configuration; workers receive it. */
#include <stdio.h>

#include "common/base/log.h"
#include "common/config/config.h"
#include "common/config/options.h"
#include "common/os/descriptors.h"
#include "common/os/fileio.h"
#include "common/os/host_memory.h"
#include "common/os/std_streams.h"
#include "coordinator/resume.h"
#include "coordinator/server.h"
#include "coordinator/settings.h"

struct arguments {
    const char *dir;
    struct resume resume;
    struct option_texts changes;
};

static enum status run(struct options *options, void *ctx, struct err *err)
{
    static struct config config;
    static struct config_sources sources;
    struct arguments *a = ctx;
    char path[FILEIO_PATH_MAX];
    if (!a->dir) return err_set(err, STATUS_INVALID, "--dir is missing: give the run folder");
    TRY(host_memory_check_env(err));
    TRY(settings_find(options, a->dir, path, sizeof path, err));
    a->resume.dir = a->dir;
    TRY(resume_find(&a->resume, options, err));
    TRY(resume_check(&a->resume, err));
    TRY(settings_read(&config, &sources, path, a->dir, options, err));
    log_set_name("coordinator");
    log_set_level((enum log_level)log_level_parse(config.log.level));
    settings_keep_budget(&config, a->dir);
    settings_warn(&config, &sources);
    descriptors_reserve();
    struct server_options server = {.config = &config,
                                    .sources = &sources,
                                    .run_dir = a->dir,
                                    .changes = a->changes.texts,
                                    .n_changes = a->changes.n};
    options->code = server_run(&server, err);
    return STATUS_OK;
}

int main(int argc, char **argv)
{
    static struct arguments a = {.resume.how = "auto"};
    const struct option_spec specs[] = {
        {"dir", OPTION_TEXT, &a.dir, "RUN", "run folder; continues the run in it, if any"},
        {"resume", OPTION_TEXT, &a.resume.how, "HOW", RESUME_HELP},
        {"change", OPTION_TEXTS, &a.changes, "KEY=VALUE",
         "give the run another value from here on: train.max_steps (only more), inner.learning_rate,\n"
         "                           outer.learning_rate or outer.momentum; may be repeated"},
    };
    struct options options = {
        .program = "atoll-coordinator",
        .usage = "[CONFIG] --dir RUN [--resume HOW] [--change KEY=VALUE ...] [--section.key=value ...]",
        .about = "Serves one training run: accepts workers, merges their deltas, journals and publishes updates.\n"
                 "Without CONFIG it continues the run in RUN. Settings: atoll config print CONFIG.",
        OPTION_SPECS(specs),
        .args_min = 0,
        .args_max = 1,
        .settings_allowed = true,
        .resumable = true,
    };
    std_streams_open();
    return options_main(&options, argc, argv, run, &a);
}
