#include "cli/launch_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/run_folder.h"
#include "common/tensor/hf_folder.h"
#include "coordinator/run_dir.h"

/* The lock dies with this process, however it dies; the number in the file is only for the message. */
static enum status lock(struct launch_folder *l, struct err *err)
{
    char path[FILEIO_PATH_MAX], pid[32] = "?";
    TRY(run_folder_path(path, sizeof path, l->dir, "launch.lock", err));
    l->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (l->lock_fd < 0)
        return err_set(err, STATUS_IO, "cannot write into the run folder %s: %s", l->dir, strerror(errno));
    if (!file_lock(l->lock_fd, false)) {
        ssize_t got = read(l->lock_fd, pid, sizeof pid - 1);
        if (got > 0) pid[got] = '\0'; /* else it has yet to write it */
        return err_set(err, STATUS_STATE, "the run folder %s is in use by process %s: stop it, or choose another --dir",
                       l->dir, pid);
    }
    int n = snprintf(pid, sizeof pid, "%ld", (long)getpid());
    if (ftruncate(l->lock_fd, 0) || write(l->lock_fd, pid, (size_t)n) != n)
        return err_set(err, STATUS_IO, "cannot write %s: %s", path, strerror(errno));
    return STATUS_OK;
}

/* A coordinator that somebody started by hand has the folder, and its workers need the address in it. */
static enum status check_served(const struct launch_folder *l, struct err *err)
{
    int fd = -1;
    TRY(run_dir_lock(l->dir, &fd, err));
    close(fd);
    return STATUS_OK;
}

/* The journal of a run whose model was never read is no run yet: the coordinator lets other settings take the place of
 * its own. One that began has a checkpoint, or, where somebody removed these, its events. */
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

bool launch_folder_config(const struct launch_folder *l, struct config *then)
{
    char path[FILEIO_PATH_MAX];
    struct config_sources sources;
    if (!holds_run(l)) return false;
    if (run_folder_path(path, sizeof path, l->dir, "config.yaml", NULL) != STATUS_OK) return false;
    config_defaults(then, &sources);
    return config_load(then, &sources, path, NULL) == STATUS_OK;
}

/* --resume auto continues the run there; never wants a folder without one, and so does PATH, unless the run there began
 * with it: a command that is given again continues its run. */
static enum status check_resume(const struct launch_folder *l, struct err *err)
{
    if (!strcmp(l->resume, "auto") || l->begun || !holds_run(l)) return STATUS_OK;
    return err_set(err, STATUS_STATE,
                   "%s already holds a run and --resume is %s: use --resume auto to continue it, or "
                   "another --dir",
                   l->dir, l->resume);
}

/* Did the run in the folder start from the checkpoint --resume names, or from one in the run it names? The newest there
 * may be another one by now. */
static bool init_find_begun(struct launch_folder *l)
{
    char named[FILEIO_PATH_MAX];
    struct config then;
    const char *from = then.model.init_from;
    if (!launch_folder_config(l, &then) || run_folder_name(named, sizeof named, l->resume, NULL) != STATUS_OK)
        return false;
    size_t n = strlen(named);
    if (strncmp(from, named, n) != 0 || (from[n] && strncmp(from + n, "/checkpoints/", 13) != 0)) return false;
    return (size_t)snprintf(l->init_dir, sizeof l->init_dir, "%s", from) < sizeof l->init_dir;
}

enum status launch_folder_find_init(struct launch_folder *l, const char *from, struct err *err)
{
    if (strcmp(l->resume, "auto") != 0 && strcmp(l->resume, "never") != 0) {
        l->begun = init_find_begun(l);
        if (l->begun) return STATUS_OK;
        if (run_folder_checkpoint(l->resume, l->init_dir, sizeof l->init_dir, err) == STATUS_OK) return STATUS_OK;
        err_prefix(err, "--resume");
        return err->code = STATUS_INVALID;
    }
    if (!strcmp(from, "scratch") || holds_run(l)) return STATUS_OK;
    enum status status = hf_folder_check(from, err);
    if (status != STATUS_OK) err_prefix(err, "model.init_from");
    return status;
}

enum status launch_folder_take(struct launch_folder *l, struct err *err)
{
    TRY(run_dir_check_free(l->dir, err));
    TRY(dir_make(l->dir, err));
    TRY(lock(l, err));
    TRY(check_served(l, err));
    return check_resume(l, err);
}

void launch_folder_release(struct launch_folder *l)
{
    if (l->lock_fd >= 0) close(l->lock_fd);
}
