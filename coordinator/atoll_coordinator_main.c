/* atoll-coordinator: serves one training run. Its configuration is the run's configuration; workers receive it. */
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/config/config.h"
#include "common/config/config_keys.h"
#include "common/config/options.h"
#include "common/os/descriptors.h"
#include "common/os/fileio.h"
#include "common/os/host_memory.h"
#include "common/os/std_streams.h"
#include "coordinator/region.h"
#include "coordinator/resume.h"
#include "coordinator/run_folder.h"
#include "coordinator/server.h"
#include "coordinator/settings.h"

struct arguments {
    const char *dir;
    struct resume resume;
    struct option_texts changes;
    const char *upstream;
    uint64_t max_wait_s; /* UINT64_MAX: not given; OPTION_NO_LIMIT */
    struct region *region;
};

/* A region has the settings of the run upstream, and its own of coordinator.* and log.*. */
static enum status check_own(const struct options *options, bool resumes, struct err *err)
{
    if (options->n_args || resumes)
        return err_set(err, STATUS_INVALID, "--upstream: leave CONFIG and --resume out: the run upstream has them");
    for (size_t i = 0; i < options->n_settings; i++) {
        const char *word = options->settings[i] + strspn(options->settings[i], "-"), *dot = strchr(word, '.'),
                   *equals = strchr(word, '=');
        if (!dot || !equals || equals < dot) continue;
        int key = config_key_find(word, (size_t)(dot - word), dot + 1, (size_t)(equals - dot - 1));
        if (key >= 0 && !config_keys[key].local)
            return err_set(err, STATUS_INVALID, "--upstream: %.*s belongs to the run upstream: set it there",
                           (int)(equals - word), word);
    }
    return STATUS_OK;
}

/* Finds the run upstream. Its settings, if the folder holds no run yet, become CONFIG. */
static enum status find_upstream(struct arguments *a, struct options *options, struct err *err)
{
    static char settings[FILEIO_PATH_MAX];
    static char *config[] = {settings};
    bool begun = resume_holds_run(a->dir), was = run_folder_has(a->dir, "upstream");
    if (!a->upstream && !was) return STATUS_OK;
    if (!a->upstream) return err_set(err, STATUS_INVALID, "%.300s is the folder of a region: give --upstream", a->dir);
    if (begun && !was)
        return err_set(err, STATUS_INVALID, "%.300s holds a run of its own: give the region another --dir", a->dir);
    TRY(check_own(options, strcmp(a->resume.how, "auto") != 0, err));
    uint64_t wait = a->max_wait_s < UINT64_MAX / 1000000 ? a->max_wait_s * 1000000
                    : a->max_wait_s == UINT64_MAX        ? UINT64_MAX
                                                         : UINT64_MAX - 1;
    TRY(region_upstream.find(&a->region, (char *)(uintptr_t)a->upstream, a->dir, wait, begun, settings, sizeof settings,
                             err));
    if (!settings[0]) return STATUS_OK;
    options->args = config;
    options->n_args = 1;
    return STATUS_OK;
}

static enum status run(struct options *options, void *ctx, struct err *err)
{
    static struct config config;
    static struct config_sources sources;
    struct arguments *a = ctx;
    char path[FILEIO_PATH_MAX];
    if (!a->dir) return err_set(err, STATUS_INVALID, "--dir is missing: give the run folder");
    TRY(host_memory_check_env(err));
    TRY(find_upstream(a, options, err));
    TRY(settings_find(options, a->dir, path, sizeof path, err));
    a->resume.dir = a->dir;
    TRY(resume_find(&a->resume, options, err));
    TRY(resume_check(&a->resume, err));
    TRY(settings_read(&config, &sources, path, a->dir, options, err));
    if (a->region) TRY(region_upstream.check(&config, err));
    log_set_name("coordinator");
    log_set_level((enum log_level)log_level_parse(config.log.level));
    settings_keep_budget(&config, a->dir);
    settings_warn(&config, &sources);
    descriptors_reserve();
    struct server_options server = {.config = &config,
                                    .sources = &sources,
                                    .run_dir = a->dir,
                                    .changes = a->changes.texts,
                                    .n_changes = a->changes.n,
                                    .region = a->region,
                                    .upstream = &region_upstream};
    options->code = server_run(&server, err);
    return STATUS_OK;
}

int main(int argc, char **argv)
{
    static struct arguments a = {.resume.how = "auto", .max_wait_s = UINT64_MAX};
    const struct option_spec specs[] = {
        {"dir", OPTION_TEXT, &a.dir, "RUN", "run folder; continues the run in it, if any"},
        {"resume", OPTION_TEXT, &a.resume.how, "HOW", RESUME_HELP},
        {"change", OPTION_TEXTS, &a.changes, "KEY=VALUE",
         "give the run another value from here on: train.max_steps (only more), inner.learning_rate,\n"
         "                           outer.learning_rate or outer.momentum; may be repeated"},
        {"upstream", OPTION_TEXT, &a.upstream, "WHERE",
         "serve a region: its workers take part in the run at WHERE as one worker\n"
         "                           (as atoll-worker --join: a file with a join line, -, a run folder)"},
        {"max-wait", OPTION_LIMIT, &a.max_wait_s, "SECONDS",
         "with --upstream: exit with 75 if that run does not answer for this long; none: no limit\n"
         "                           (default 43200, 12 hours)"},
    };
    struct options options = {
        .program = "atoll-coordinator",
        .usage =
            "[CONFIG] --dir RUN [--upstream WHERE] [--resume HOW] [--change KEY=VALUE ...] [--section.key=value ...]",
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
