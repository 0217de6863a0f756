/* atoll-worker: joins a run and trains. The coordinator sends the run's settings; the command line gives the
 * coordinator's address and the settings of this worker. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/config/config.h"
#include "common/config/config_keys.h"
#include "common/config/config_resolve.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "common/os/log_file.h"
#include "common/os/std_streams.h"
#include "worker/session/worker_dir.h"
#include "worker/step_split.h"
#include "worker/train.h"
#include "worker/train_data.h"

enum {
    ADDRESS_POLL_US = 200000,
    ADDRESS_WAIT_S = 60,
    ABOUT_MAX = 1024,
    MAX_WAIT_MIN_S = 5, /* the coordinator answers one heartbeat per second (worker/link/heartbeat.h) */
};

struct arguments {
    const char *join, *dir, *name, *train, *val;
    uint64_t max_wait_s; /* UINT64_MAX: not given; OPTION_NO_LIMIT */
    struct config config;
    struct config_sources sources;
};

/* Returns whether this worker may set the key: it is local, its own split of a step, or its own codec. */
static bool is_own_key(int key)
{
    return config_key_of_worker(key) || step_split_has(key) || key == AT(codec.up);
}

/* Writes what --help says: the table of keys decides. */
static const char *describe(char out[ABOUT_MAX])
{
    enum { WIDTH = 105 };
    size_t n = (size_t)snprintf(out, ABOUT_MAX,
                                "Joins a training run and trains until the run is done. The coordinator sends the "
                                "settings of the run.\nA worker has these of its own:");
    size_t line = strlen("A worker has these of its own:");
    for (int i = 0; i < config_keys_count; i++) {
        const struct config_key *key = &config_keys[i];
        size_t width = strlen(key->section) + strlen(key->key) + 3;
        if (!is_own_key(i)) continue;
        if (line + width > WIDTH) line = 0;
        assert(n + width < ABOUT_MAX);
        n += (size_t)snprintf(out + n, ABOUT_MAX - n, "%s%s.%s,", line ? " " : "\n", key->section, key->key);
        line += width;
    }
    snprintf(out + n - 1, ABOUT_MAX - n + 1, ".\ncodec.up must be one of the run's codec.up_allowed.");
    return out;
}

static enum status set_local(struct arguments *a, const char *setting, struct err *err)
{
    const char *word = setting + strspn(setting, "-"), *dot = strchr(word, '.'), *equals = strchr(word, '=');
    if (dot && equals && dot < equals) {
        int key = config_key_find(word, (size_t)(dot - word), dot + 1, (size_t)(equals - dot - 1));
        if (key >= 0 && !is_own_key(key))
            return err_set(err, STATUS_INVALID, "%.*s belongs to the run, not to one worker: set it at the coordinator",
                           (int)(equals - word), word);
    }
    return config_set(&a->config, &a->sources, setting, CONFIG_FLAG, err);
}

/* Warns instead of refusing: a shell may export the variable for several programs. */
static void warn_shared_keys(const struct config_sources *sources)
{
    char name[128];
    for (int i = 0; i < config_keys_count; i++)
        if (sources->of[i] == CONFIG_ENV && !config_key_of_worker(i))
            log_warn("environment: %s belongs to the run, not to one worker, and is ignored: set it at the coordinator",
                     config_env_name(i, name));
}

static enum status read_settings(struct arguments *a, const struct options *options, struct err *err)
{
    char data[CONFIG_PATH_MAX + 32];
    config_defaults(&a->config, &a->sources);
    TRY(config_env(&a->config, &a->sources, err));
    if (!getenv(EXIT_PERMANENT_ENV)) warn_shared_keys(&a->sources); /* under launch the coordinator reads them */
    for (size_t i = 0; i < options->n_settings; i++) TRY(set_local(a, options->settings[i], err));
    const char *const paths[][2] = {{"train", a->train}, {"val", a->val}};
    for (int i = 0; i < 2; i++) {
        if (!paths[i][1]) continue;
        if ((size_t)snprintf(data, sizeof data, "data.%s=%s", paths[i][0], paths[i][1]) >= sizeof data)
            return err_set(err, STATUS_INVALID, "--data.%s is too long", paths[i][0]);
        TRY(set_local(a, data, err));
    }
    return STATUS_OK;
}

static enum status check_arguments(struct arguments *a, const struct options *options, struct err *err)
{
    if (a->max_wait_s < MAX_WAIT_MIN_S)
        return err_set(err, STATUS_INVALID, "--max-wait must be %d seconds or more, or none", MAX_WAIT_MIN_S);
    if (a->name) TRY(worker_name_check(a->name, a->dir != NULL, err));
    if (!getenv(EXIT_PERMANENT_ENV)) config_env_warn(); /* under launch the coordinator warns */
    return read_settings(a, options, err);
}

static enum status read_join(const char *join, struct worker_session_options *o, struct err *err)
{
    static struct join_target target;
    enum status status = join_target_read(&target, (char *)(uintptr_t)join, err); /* a word of argv */
    if (status == STATUS_NOTFOUND)
        return err_set(err, STATUS_INVALID,
                       "--join is missing: give the coordinator's join line or its run folder, also in " JOIN_ENV);
    if (status != STATUS_OK && join) err_prefix(err, "--join");
    TRY(status);
    worker_session_set_target(o, &target);
    return STATUS_OK;
}

/* Waits until the coordinator has written its address to the run folder. END: the run is complete. */
static enum status await_coordinator(struct worker_session_options *o, struct err *err)
{
    bool missing = !file_exists(o->run_dir);
    for (int i = 0;; i++) {
        TRY(train_check_stop(err));
        enum status status = worker_session_read_address(o, err);
        if (status != STATUS_NOTFOUND || i * (ADDRESS_POLL_US / 1000) >= ADDRESS_WAIT_S * 1000) return status;
        if (i == (missing ? 0 : 10)) /* log a missing folder at once: it may be a typing error */
            log_info("waiting up to %d s for a coordinator to write %s%s", ADDRESS_WAIT_S, o->address_file,
                     missing ? " (the folder does not exist yet)" : "");
        usleep(ADDRESS_POLL_US);
    }
}

/* Exits when a GPU hangs: threads that wait for it never end. All files are complete at any time, as for a killed
 * worker. Prints without the log, because one of these threads may hold its lock. */
static void exit_now(const char *line)
{
    dprintf(STDERR_FILENO, "atoll: %s\n", line);
    _exit(EXIT_FAILED);
}

static enum status find_host(const struct worker_session_options *o, struct err *err)
{
    bool logged = false;
    uint64_t since = clock_monotonic_us();
    for (;;) {
        enum status status = worker_session_resolve(o, err);
        if (status != STATUS_AGAIN) return status;
        if (clock_monotonic_us() - since >= o->max_wait_us) return err->code = STATUS_INTERRUPTED;
        if (!logged) log_warn("retrying: %s", err->msg);
        logged = true;
        TRY(train_check_stop(err));
        usleep(ADDRESS_POLL_US);
    }
}

/* Reports errors of arguments and data before it waits for a coordinator or makes the worker's folder. */
static enum status check_early(struct arguments *a, struct worker_session_options *o, struct err *err)
{
    struct config config = a->config;
    struct tokens train, val;
    TRY(read_join(a->join, o, err));
    TRY(train_data_open(&train, &val, &config, err));
    tokens_close(&train);
    tokens_close(&val);
    if (o->run_dir[0]) TRY(await_coordinator(o, err));
    return find_host(o, err);
}

static enum exit_code run_worker(struct arguments *a, struct err *err)
{
    static struct train_options o;
    struct worker_session_options *session = &o.session;
    struct worker_dir dir;
    o.local = &a->config;
    o.sources = &a->sources;
    o.end = exit_now;
    session->supervised = getenv(EXIT_PERMANENT_ENV) != NULL;
    session->max_wait_us = worker_session_max_wait_us(a->max_wait_s);
    session->max_wait_by = "--max-wait";
    train_catch_signals();
    if (a->name) snprintf(session->self.name, sizeof session->self.name, "%s", a->name);
    enum status status = check_early(a, session, err);
    if (status == STATUS_END) return log_info("%s", err->msg), EXIT_DONE;
    if (status == STATUS_OK) status = worker_dir_open_named(&dir, a->dir, session->self.name, err);
    if (status != STATUS_OK) return exit_code_of(status);
    snprintf(session->dir, sizeof session->dir, "%s", dir.path);
    session->self.key = dir.key;
    session->self.fresh = dir.key_is_new;
    session->unnamed = dir.base[0] ? &dir : NULL;
    log_set_name(session->self.name);
    log_file_open(dir.path, "worker.log");
    enum exit_code code = train_run(&o, err);
    worker_dir_close(&dir);
    return code;
}

static enum status run(struct options *options, void *ctx, struct err *err)
{
    struct arguments *a = ctx;
    TRY(check_arguments(a, options, err));
    log_set_level((enum log_level)log_level_parse(a->config.log.level));
    options->code = run_worker(a, err);
    return STATUS_OK;
}

int main(int argc, char **argv)
{
    static struct arguments a = {.max_wait_s = UINT64_MAX};
    char about[ABOUT_MAX];
    const struct option_spec specs[] = {
        {"join", OPTION_TEXT, &a.join, "WHERE",
         "the coordinator: a file with its join line, - for standard input, its run\n"
         "                           folder on this machine, or the line itself (default: ATOLL_JOIN)"},
        {"dir", OPTION_TEXT, &a.dir, "DIR", "the worker's own folder (default ./atoll-worker-NAME)"},
        {"name", OPTION_TEXT, &a.name, "NAME",
         "unique in the run (default: the last part of --dir, else the host's name)"},
        {"data.train", OPTION_TEXT, &a.train, "GLOB", "token shards to train on"},
        {"data.val", OPTION_TEXT, &a.val, "GLOB",
         "token shards to evaluate on (default: --data.train with \"val\" for \"train\")"},
        {"max-wait", OPTION_LIMIT, &a.max_wait_s, "SECONDS",
         "retry to join, and exit with 75 if the coordinator does not answer for this long; none: no limit "
         "(default: no retry of the first connection, then 43200, 12 hours)"},
    };
    struct options options = {
        .program = "atoll-worker",
        .usage = "--join WHERE [--dir DIR] [--name NAME] [--data.train GLOB] [--max-wait SECONDS] "
                 "[--section.key=value ...]",
        .about = describe(about),
        OPTION_SPECS(specs),
        .settings_allowed = true,
        .resumable = true,
    };
    std_streams_open();
    return options_main(&options, argc, argv, run, &a);
}
