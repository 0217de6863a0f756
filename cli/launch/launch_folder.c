#include "cli/launch/launch_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/run_folder.h"
#include "common/base/log.h"
#include "common/tensor/hf_folder.h"
#include "coordinator/run_dir.h"

/* The kernel releases the lock when this process ends. The file holds the process id, for the error message, and the
 * number of workers, for the next launch. */
static enum status lock(struct launch_folder *l, uint64_t n_workers, struct err *err)
{
    char path[FILEIO_PATH_MAX], pid[64] = "?";
    TRY(run_folder_path(path, sizeof path, l->dir, "launch.lock", err));
    TRY(file_open_plain(path, O_RDWR | O_CREAT, FILE_PUBLIC, &l->lock_fd, err));
    if (!file_lock(l->lock_fd, false)) {
        ssize_t got = read(l->lock_fd, pid, sizeof pid - 1);
        if (got > 0) pid[got] = '\0'; /* otherwise the holder has not written it yet */
        pid[strcspn(pid, " ")] = '\0';
        return err_set(err, STATUS_STATE, "the run folder %s is in use by process %s: stop it, or choose another --dir",
                       l->dir, pid);
    }
    int n = snprintf(pid, sizeof pid, "%ld %" PRIu64, (long)getpid(), n_workers);
    if (ftruncate(l->lock_fd, 0) || write(l->lock_fd, pid, (size_t)n) != n)
        return err_set(err, STATUS_IO, "cannot write %s: %s", path, strerror(errno));
    return STATUS_OK;
}

/* A coordinator started without launch may hold the folder; its workers need the address file, which launch deletes. */
static enum status check_served(const struct launch_folder *l, struct err *err)
{
    int fd = -1;
    TRY(run_dir_lock(l->dir, &fd, err));
    close(fd);
    return STATUS_OK;
}

/* A run has begun once its model was read; before that the coordinator accepts other settings. A begun run has a
 * checkpoint, or its events if the checkpoints were removed. */
static bool holds_run(const struct launch_folder *l)
{
    char path[FILEIO_PATH_MAX];
    struct stat events;
    if (run_folder_path(path, sizeof path, l->dir, "journal", NULL) != STATUS_OK || run_folder_empty(path))
        return false;
    if (run_folder_path(path, sizeof path, l->dir, "checkpoints", NULL) != STATUS_OK || !run_folder_empty(path))
        return true;
    if (run_folder_path(path, sizeof path, l->dir, "metrics.jsonl", NULL) != STATUS_OK) return true;
    return stat(path, &events) == 0 && events.st_size > 0;
}

bool launch_folder_config(const struct launch_folder *l, struct config *begun)
{
    char path[FILEIO_PATH_MAX];
    struct config_sources sources;
    if (!holds_run(l)) return false;
    if (run_folder_path(path, sizeof path, l->dir, "config.yaml", NULL) != STATUS_OK) return false;
    int fd;
    if (file_open_plain(path, O_RDONLY, 0, &fd, NULL) != STATUS_OK) return false; /* reading a pipe would wait */
    close(fd);
    config_defaults(begun, &sources);
    return config_load(begun, &sources, path, NULL) == STATUS_OK;
}

/* --resume auto continues a run. never and PATH need a folder without a run; but if the run started from PATH,
 * repeating the command continues it. */
static enum status check_resume(const struct launch_folder *l, struct err *err)
{
    if (!strcmp(l->resume, "auto") || l->begun || !holds_run(l)) return STATUS_OK;
    return err_set(err, STATUS_STATE,
                   "%s already holds a run and --resume is %s: use --resume auto to continue it, or another --dir",
                   l->dir, l->resume);
}

/* Returns true if the run in the folder started from the checkpoint that --resume names, or from any checkpoint of the
 * run that it names, as RUN or RUN/checkpoints/latest: the newest may have changed since. */
static bool init_find_begun(struct launch_folder *l)
{
    char named[FILEIO_PATH_MAX];
    struct config begun;
    const char *from = begun.model.init_from;
    if (!launch_folder_config(l, &begun) || run_folder_name(named, sizeof named, l->resume, NULL) != STATUS_OK)
        return false;
    static const char latest[] = "/checkpoints/latest";
    size_t n = strlen(named), tail = sizeof latest - 1;
    if (n > tail && !strcmp(named + n - tail, latest)) n -= tail;
    if (strncmp(from, named, n) != 0 || (from[n] && strncmp(from + n, "/checkpoints/", 13) != 0)) return false;
    return (size_t)snprintf(l->init_dir, sizeof l->init_dir, "%s", from) < sizeof l->init_dir;
}

enum status launch_folder_find_init(struct launch_folder *l, struct err *err)
{
    if (!strcmp(l->resume, "auto") || !strcmp(l->resume, "never")) return STATUS_OK;
    l->begun = init_find_begun(l);
    if (l->begun) return STATUS_OK;
    if (run_folder_checkpoint(l->resume, l->init_dir, sizeof l->init_dir, err) == STATUS_OK) return STATUS_OK;
    err_prefix(err, "--resume");
    return err->code = STATUS_INVALID;
}

enum status launch_folder_check_init(const struct launch_folder *l, const char *from, struct err *err)
{
    if (l->init_dir[0]) return STATUS_OK;
    if (!strcmp(from, "scratch") || holds_run(l)) return STATUS_OK;
    enum status status = hf_folder_check(from, err);
    if (status != STATUS_OK) err_prefix(err, "model.init_from");
    return status;
}

static bool has_file(const struct launch_folder *l, const char *name)
{
    char path[FILEIO_PATH_MAX];
    return run_folder_path(path, sizeof path, l->dir, name, NULL) == STATUS_OK && file_exists(path);
}

uint64_t launch_folder_workers(const struct launch_folder *l)
{
    char path[FILEIO_PATH_MAX], line[64], *space;
    if (run_folder_path(path, sizeof path, l->dir, "launch.lock", NULL) != STATUS_OK) return 0;
    if (run_folder_read_line(path, line, sizeof line, NULL) != STATUS_OK || !(space = strchr(line, ' '))) return 0;
    return strtoull(space, NULL, 10);
}

enum status launch_folder_take(struct launch_folder *l, uint64_t n_workers, struct err *err)
{
    TRY(run_dir_check_free(l->dir, err));
    l->existing = dir_existing_length(l->dir);
    l->had_lock = has_file(l, "launch.lock");
    l->had_served = has_file(l, "lock");
    l->had_logs = has_file(l, "logs");
    l->had_workers = has_file(l, "workers");
    TRY(dir_make(l->dir, err));
    TRY(lock(l, n_workers, err));
    TRY(check_served(l, err));
    TRY(check_resume(l, err));
    l->taken = true;
    return STATUS_OK;
}

static void remove_flat(const struct launch_folder *l, const char *name)
{
    char path[FILEIO_PATH_MAX];
    struct err err;
    if (run_folder_path(path, sizeof path, l->dir, name, &err) != STATUS_OK || dir_remove_flat(path, &err) != STATUS_OK)
        log_warn("%s", err.msg);
}

void launch_folder_undo(const struct launch_folder *l, size_t n_workers)
{
    char path[FILEIO_PATH_MAX], worker[48];
    if (has_file(l, "journal")) return;
    if (!l->had_logs) remove_flat(l, "logs");
    for (size_t i = 0; !l->had_workers && i <= n_workers; i++) { /* the folder above them at last */
        snprintf(worker, sizeof worker, i < n_workers ? "workers/worker-%zu" : "workers", i);
        remove_flat(l, worker);
    }
    if (!l->had_served && run_folder_path(path, sizeof path, l->dir, "lock", NULL) == STATUS_OK) unlink(path);
    if (!l->had_lock && run_folder_path(path, sizeof path, l->dir, "launch.lock", NULL) == STATUS_OK) unlink(path);
    dir_remove_made(l->dir, l->existing);
}

void launch_folder_release(struct launch_folder *l)
{
    if (l->lock_fd >= 0) close(l->lock_fd);
}
