/* atoll launch: runs a coordinator and workers on this machine. This file builds their command lines from its own
 * command line and the configuration. launch_folder.c checks the run folder; supervisor.c starts, restarts and stops
 * the processes. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/launch/launch_folder.h"
#include "cli/launch/supervisor.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "common/base/log.h"
#include "common/config/config.h"
#include "common/config/config_keys.h"
#include "common/config/config_resolve.h"
#include "common/config/gpu_share.h"
#include "common/config/link_spec.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "common/os/host_memory.h"
#include "common/os/json_file.h"
#include "common/os/log_file.h"
#include "coordinator/outer/outer_state.h"
#include "coordinator/run_folder.h"
#include "coordinator/settings.h"
#include "wire/endpoint.h"
#include "wire/zmq/backlog.h"
#include "worker/replica/memory_plan.h"
#include "worker/replica_setup.h"
#include "worker/train_data.h"

struct launch {
    char config_path[FILEIO_PATH_MAX];
    struct option_texts changes;
    struct launch_folder folder;
    uint64_t n_workers, max_restarts;
    double stop_timeout_s;
    bool quiet;
    const char *link; /* --link; NULL: not given */

    struct link_spec links[SUPERVISOR_WORKERS_MAX]; /* if `link` is set */
    struct config config;
    struct config_sources sources;
    char bin_dir[PATH_MAX], logs[FILEIO_PATH_MAX], address[FILEIO_PATH_MAX], count[FILEIO_PATH_MAX],
        lock[FILEIO_PATH_MAX], join_files[FILEIO_PATH_MAX]; /* join_files: RUN/links; "": no --link */
    struct supervisor supervisor;
};

/* --- command lines ------------------------------------------------------------------------------------------------ */

static enum status find_programs(struct launch *l, struct err *err)
{
    const char *given = getenv("ATOLL_BIN_DIR");
    if (given && *given) {
        if (snprintf(l->bin_dir, sizeof l->bin_dir, "%s", given) >= (int)sizeof l->bin_dir)
            return err_set(err, STATUS_LIMIT, "ATOLL_BIN_DIR: longer than %zu bytes", sizeof l->bin_dir - 1);
        return STATUS_OK;
    }
    ssize_t n = readlink("/proc/self/exe", l->bin_dir, sizeof l->bin_dir - 1);
    if (n <= 0)
        return err_set(err, STATUS_IO,
                       "cannot find atoll-coordinator: mount /proc, or set ATOLL_BIN_DIR to its folder");
    l->bin_dir[n] = '\0';
    *strrchr(l->bin_dir, '/') = '\0';
    return STATUS_OK;
}

static enum config_source source_of(const struct launch *l, size_t offset)
{
    return l->sources.of[config_key_at(offset)];
}

static void coordinator_build(struct launch *l, const struct options *o)
{
    struct child *child = &l->supervisor.children[0];
    child_arg(child, "%s/atoll-coordinator", l->bin_dir);
    child_arg(child, "%s", l->config_path);
    child_arg(child, "--dir=%s", l->folder.dir); /* `=` because the folder may begin with a dash */
    for (size_t i = 0; i < l->changes.n; i++) child_arg(child, "--change=%s", l->changes.texts[i]);
    for (size_t i = 0; i < o->n_settings; i++) child_arg(child, "%s", o->settings[i]);
    /* The first round waits for all workers, unless the configuration sets a number. */
    if (source_of(l, offsetof(struct config, coordinator.min_workers)) == CONFIG_DEFAULT)
        child_arg(child, "--coordinator.min_workers=%" PRIu64, l->n_workers);
    /* All processes run on this machine, so a free port is chosen unless the configuration sets one. */
    if (source_of(l, offsetof(struct config, coordinator.listen)) == CONFIG_DEFAULT)
        child_arg(child, "--coordinator.listen=tcp://127.0.0.1:*");
}

/* The relay writes a join file (mode 0600, because the join line is a secret), with which its worker joins. */
static void relay_build(struct launch *l, size_t i, const struct child *worker)
{
    struct child *child = &l->supervisor.children[l->supervisor.n++];
    char name[32], file[48], line[LINK_SPEC_MAX + 64], spec[LINK_SPEC_MAX];
    snprintf(name, sizeof name, "relay-%zu", i);
    snprintf(file, sizeof file, "%s.join", worker->name);
    child_init(child, name, "", false);
    child->args = run_folder_path(child->ready_path, sizeof child->ready_path, l->join_files, file, NULL);
    child_arg(child, "%s/atoll", l->bin_dir);
    child_arg(child, "relay");
    child_arg(child, "%s", link_spec_print(&l->links[i], spec));
    child_arg(child, "--join=%s", l->folder.dir);
    child_arg(child, "--join-file=%s", child->ready_path);
    int n = snprintf(line, sizeof line, "%s joins over an emulated link: %s", worker->name, spec);
    terminal_line("launch: ", line, (size_t)n);
}

/* A worker gets shared keys from the coordinator; local keys go on its command line. */
static void worker_build(struct launch *l, size_t i)
{
    char value[CONFIG_VALUE_MAX];
    struct child *child = &l->supervisor.children[1 + i];
    const char *join = l->folder.dir;
    if (l->link && !link_spec_is_none(&l->links[i])) {
        relay_build(l, i, child);
        join = l->supervisor.children[l->supervisor.n - 1].ready_path;
    }
    child_arg(child, "%s/atoll-worker", l->bin_dir);
    /* Pass a path instead of the address, which may contain the key of the run: command lines are public. */
    child_arg(child, "--join=%s", join);
    child_arg(child, "--dir=%s/workers/%s", l->folder.dir, child->name);
    child_arg(child, "--name");
    child_arg(child, "%s", child->name);
    for (int k = 0; k < config_keys_count; k++) {
        const struct config_key *key = &config_keys[k];
        if (!config_key_of_worker(k) || l->sources.of[k] <= CONFIG_PRESET) continue;
        child_arg(child, "--%s.%s=%s", key->section, key->key, config_value_text(&l->config, k, value));
    }
}

/* --- the environment ---------------------------------------------------------------------------------------------- */

static void export_number(const char *name, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, value);
    setenv(name, text, 1);
}

/* Without this each worker would take all GPUs (common/config/gpu_share.h), and settings_read would check for that. */
static void export_worker_count(const struct launch *l)
{
    export_number(WORKERS_HERE_ENV, l->n_workers);
    unsetenv(WORKER_INDEX_ENV);
}

/* Host memory for the workers' plans (worker/replica/memory_plan.h): the free bytes now, and those of the coordinator
 * with its queues; 0 for an invalid model, which the workers then report. */
static void export_memory(const struct config *config, uint32_t workers)
{
    const struct model_family *family;
    struct layout layout;
    uint64_t free_bytes, total, coordinator;
    layout_init(&layout);
    host_memory(&free_bytes, &total);
    bool known = replica_layout_of(config, &layout, &family, NULL) == STATUS_OK &&
                 outer_state_bytes(&coordinator, config, &layout, workers, NULL) == STATUS_OK;
    if (known) coordinator += BACKLOG_BYTES + outer_buffer_bytes(workers, layout.n_params);
    layout_finish(&layout);
    export_number(MEMORY_HOST_ENV, free_bytes);
    export_number(MEMORY_COORDINATOR_ENV, known ? coordinator : 0);
}

/* The coordinator's stdout is a pipe; a variable tells it that launch shows a progress bar on a terminal. The
 * processes' output goes to RUN/logs, and needs no copies in their own folders. */
static void export_output(void)
{
    if (terminal_interactive()) setenv("ATOLL_PROGRESS_BAR", "1", 1);
    setenv(LOGGED_ENV, "1", 1);
}

/* --- the run ------------------------------------------------------------------------------------------------------ */

/* Returns the number of worker restarts in earlier launches of this run. */
static uint64_t restarts_before(const struct launch *l)
{
    char journal[FILEIO_PATH_MAX], line[64];
    if (run_folder_path(journal, sizeof journal, l->folder.dir, "journal", NULL) != STATUS_OK ||
        run_folder_empty(journal) || run_folder_read_line(l->count, line, sizeof line, NULL) != STATUS_OK)
        return 0;
    return strtoull(line, NULL, 10);
}

/* Adds worker restarts to summary.json: the coordinator wrote its own, and only the supervisor counts workers. */
static enum status summary_add_restarts(const struct launch *l, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    json_error_t error;
    TRY(run_folder_path(path, sizeof path, l->folder.dir, "summary.json", err));
    if (!l->supervisor.finished || !l->supervisor.worker_restarts || !file_exists(path)) return STATUS_OK;
    json_t *summary = json_load_file(path, 0, &error);
    if (!summary) return err_set(err, STATUS_CORRUPT, "%s is not valid JSON: %s", path, error.text);
    json_int_t own = json_integer_value(json_object_get(summary, "restarts"));
    json_int_t all = own + (json_int_t)l->supervisor.worker_restarts;
    bool set = !json_object_set_new(summary, "restarts", json_integer(all));
    enum status status = json_file_write(path, set ? summary : NULL, JSON_INDENT(2) | JSON_REAL_PRECISION(17), err);
    json_decref(summary);
    return status;
}

/* Checks the data once here, instead of failing in every worker with one line each. */
static enum status check_data(const struct launch *l, struct err *err)
{
    struct config config = l->config;
    struct tokens train, val;
    TRY(train_data_open(&train, &val, &config, err));
    enum status status = train_data_check(&train, &val, &config, err);
    tokens_close(&train);
    tokens_close(&val);
    return status;
}

/* Returns true if other machines can join. */
static bool is_network(const struct launch *l)
{
    struct endpoint parsed;
    struct endpoint_found found;
    return source_of(l, offsetof(struct config, coordinator.listen)) != CONFIG_DEFAULT &&
           endpoint_parse(&parsed, l->config.coordinator.listen, true, NULL) == STATUS_OK &&
           endpoint_find(&found, &parsed, NULL) == STATUS_OK && !found.loopback;
}

/* A first round that waits for more workers than can join would wait without end. */
static enum status check_min_workers(struct launch *l, struct err *err)
{
    const struct config_resolve r = {&l->config, &l->sources, err};
    uint32_t least = l->config.coordinator.min_workers;
    if (source_of(l, offsetof(struct config, coordinator.min_workers)) == CONFIG_DEFAULT || least <= l->n_workers ||
        is_network(l))
        return STATUS_OK;
    json_t *round = run_folder_last_event(l->folder.dir, "round");
    json_decref(round);
    if (round) return STATUS_OK; /* the first round is over */
    return config_refuse(&r, KEYS(AT(coordinator.min_workers)),
                         "the first round would wait for %u workers, but --workers is %" PRIu64
                         " and others cannot join on %s: lower it, or set coordinator.listen to tcp://0.0.0.0:29600",
                         least, l->n_workers, l->config.coordinator.listen);
}

/* Checks before any process starts and any folder is created. */
static enum status check_start(struct launch *l, struct err *err)
{
    uint32_t max = l->config.coordinator.max_workers;
    if (config_is_external(&l->config))
        return err_set(err, STATUS_INVALID,
                       "model.family: atoll launch starts atoll-worker, which has no model of family external: start "
                       "atoll-coordinator, and the workers' programs with its join line (Python: atoll.launch)");
    if (l->n_workers > max)
        return err_set(err, STATUS_INVALID,
                       "--workers is %" PRIu64
                       " and coordinator.max_workers is %u: lower the first or raise the second",
                       l->n_workers, max);
    TRY(check_min_workers(l, err));
    if (source_of(l, offsetof(struct config, coordinator.listen)) != CONFIG_DEFAULT)
        TRY(endpoint_check_own(l->config.coordinator.listen, err));
    return check_data(l, err);
}

static enum status folder_prepare(struct launch *l, struct err *err)
{
    TRY(launch_folder_take(&l->folder, l->n_workers, err));
    TRY(run_folder_path(l->logs, sizeof l->logs, l->folder.dir, "logs", err));
    TRY(run_folder_path(l->lock, sizeof l->lock, l->folder.dir, "launch.lock", err));
    TRY(run_folder_path(l->address, sizeof l->address, l->folder.dir, "address", err));
    TRY(run_folder_path(l->count, sizeof l->count, l->folder.dir, "worker-restarts", err));
    TRY(dir_make(l->logs, err));
    if (!l->link) return STATUS_OK;
    TRY(run_folder_path(l->join_files, sizeof l->join_files, l->folder.dir, "links", err));
    return dir_make(l->join_files, err);
}

static enum status children_build(struct launch *l, const struct options *o, struct err *err)
{
    struct supervisor *s = &l->supervisor;
    for (; s->n_workers < l->n_workers; s->n_workers++) {
        char name[32], prefix[32];
        struct child *child = &s->children[s->n++];
        snprintf(name, sizeof name, "worker-%zu", s->n_workers);
        snprintf(prefix, sizeof prefix, "[w%zu] ", s->n_workers);
        child_init(child, name, prefix, !l->quiet);
        child->env_name = WORKER_INDEX_ENV;
        child->env_value = (uint32_t)s->n_workers;
    }
    coordinator_build(l, o);
    for (size_t i = 0; i < s->n_workers; i++) worker_build(l, i);
    for (size_t i = 0; i < s->n; i++) {
        if (s->children[i].args != STATUS_OK)
            return err_set(err, s->children[i].args,
                           "the command line is too long: put settings into %s, or choose a shorter --dir",
                           l->config_path);
        TRY(child_log_open(&s->children[i], l->logs, err));
    }
    return STATUS_OK;
}

static enum status launch(struct launch *l, struct options *o, struct err *err)
{
    struct supervisor *s = &l->supervisor;
    log_set_level(LOG_ERROR); /* the coordinator prints the warnings about this configuration */
    export_worker_count(l);
    l->folder.resume.dir = l->folder.dir;
    TRY(resume_find(&l->folder.resume, o, err));
    TRY(settings_read(&l->config, &l->sources, l->config_path, l->folder.dir, o, err));
    if (l->link && link_specs_parse(l->links, l->n_workers, l->link, err) != STATUS_OK)
        return err_prefix(err, "--link");
    TRY(launch_folder_check_init(&l->folder, l->config.model.init_from, err));
    TRY(check_start(l, err));
    TRY(find_programs(l, err));
    TRY(folder_prepare(l, err));
    TRY(children_build(l, o, err));
    s->address_path = l->address;
    s->show_join_line = is_network(l);
    s->count_path = l->count;
    s->lock_path = l->lock;
    s->lock_fd = l->folder.lock_fd;
    s->worker_restarts = restarts_before(l);
    s->max_restarts = l->max_restarts;
    s->stop_timeout_s = l->stop_timeout_s;
    bool never = !strcmp(l->folder.resume.how, "never");
    s->resume_command = never ? "the same command with --resume auto" : "the same command";
    export_output();
    export_memory(&l->config, (uint32_t)l->n_workers);
    TRY(supervisor_init(s, err));
    TRY(supervisor_run(s, err));
    unlink(l->address); /* the coordinator has ended */
    return summary_add_restarts(l, err);
}

/* Returns true if launch took the folder, and the coordinator then failed for good. */
static bool failed_for_good(const struct launch *l, int code)
{
    int ended = l->supervisor.children[0].code;
    bool tried = l->supervisor.children[0].started_us > 0;
    return code != EXIT_DONE && l->folder.taken && !l->supervisor.removed &&
           (!tried || ended == EXIT_USAGE || ended == EXIT_PERMANENT);
}

static void launch_finish(struct launch *l, int code)
{
    struct supervisor *s = &l->supervisor;
    struct err err;
    if (l->join_files[0] && !s->removed && dir_remove_flat(l->join_files, &err) != STATUS_OK) log_warn("%s", err.msg);
    if (failed_for_good(l, code)) launch_folder_undo(&l->folder, s->n_workers);
    supervisor_finish(s);
    for (size_t i = 0; i < s->n; i++) child_finish(&s->children[i]);
    launch_folder_release(&l->folder);
}

static enum status check(const struct launch *l, struct err *err)
{
    if (l->n_workers < 1 || l->n_workers > SUPERVISOR_WORKERS_MAX)
        return err_set(err, STATUS_INVALID, "--workers is %s: give 1 to %d",
                       l->n_workers ? "too large" : "missing or 0", SUPERVISOR_WORKERS_MAX);
    if (!(l->stop_timeout_s >= 0 && l->stop_timeout_s < 1e6))
        return err_set(err, STATUS_INVALID, "--stop-timeout is %g: give seconds, 0 or more", l->stop_timeout_s);
    return STATUS_OK;
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    struct launch *l = ctx;
    if (!l->folder.dir) return err_set(err, STATUS_INVALID, "--dir is missing: give the run folder");
    TRY(settings_find(o, l->folder.dir, l->config_path, sizeof l->config_path, err));
    if (!l->n_workers && !o->n_args) l->n_workers = launch_folder_workers(&l->folder);
    TRY(check(l, err));
    TRY(launch(l, o, err));
    o->code = (enum exit_code)l->supervisor.exit_code;
    if (l->supervisor.failure[0]) err_set(err, STATUS_STATE, "%s", l->supervisor.failure);
    return STATUS_OK;
}

int cmd_launch(int argc, char **argv)
{
    static struct launch l; /* large */
    l.folder.resume.how = "auto";
    l.folder.lock_fd = l.supervisor.signal_fd = -1;
    l.max_restarts = 10;
    l.stop_timeout_s = 60;
    child_init(&l.supervisor.children[l.supervisor.n++], "coordinator", "", true);
    const struct option_spec specs[] = {
        {"workers", OPTION_COUNT, &l.n_workers, "N", "number of worker processes; without CONFIG as before"},
        {"dir", OPTION_TEXT, &l.folder.dir, "RUN", "run folder; created if missing"},
        {"resume", OPTION_TEXT, &l.folder.resume.how, "HOW", RESUME_HELP},
        {"change", OPTION_TEXTS, &l.changes, "KEY=VALUE",
         "give the run another value from here on: see atoll-coordinator --help"},
        {"max-restarts", OPTION_COUNT, &l.max_restarts, "N", "restarts in total before launch gives up (default 10)"},
        {"stop-timeout", OPTION_REAL, &l.stop_timeout_s, "S", "seconds from Ctrl-C to SIGKILL (default 60)"},
        {"link", OPTION_TEXT, &l.link, "SPEC",
         "put a slow link between each worker and the coordinator; one SPEC for\n"
         "                           all, or one each, joined by ;. Like 100mbit,rtt=50ms: see atoll relay --help.\n"
         "                           Not modelled: packet loss, and TCP's slow start over the long path"},
        {"quiet", OPTION_FLAG, &l.quiet, NULL, "do not print the workers' lines; their logs keep them"},
    };
    struct options o = {
        .program = "atoll launch",
        .usage = "[CONFIG --workers N] --dir RUN [options]",
        .about =
            "Start a coordinator and N workers on this machine, restart failed processes, stop all on Ctrl-C.\n"
            "Without CONFIG continue the run in RUN with its settings and as many workers.\n"
            "Each worker gets its own GPUs if there are enough (train.devices auto, cuda or a list); else they share.\n"
            "Output also goes to RUN/logs/.",
        OPTION_SPECS(specs),
        .args_min = 0,
        .args_max = 1,
        .settings_allowed = true,
        .resumable = true,
    };
    int code = options_main(&o, argc, argv, run, &l);
    launch_finish(&l, code);
    return code;
}
