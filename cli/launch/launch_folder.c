#include "cli/launch/launch_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/tensor/hf_folder.h"
#include "coordinator/run_dir.h"
#include "coordinator/run_folder.h"

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

enum status launch_folder_check_init(const struct launch_folder *l, const char *from, struct err *err)
{
    if (l->resume.init_dir[0]) return STATUS_OK;
    if (!strcmp(from, "scratch") || resume_holds_run(l->dir)) return STATUS_OK;
    enum status status = hf_folder_check(from, err);
    if (status != STATUS_OK) err_prefix(err, "model.init_from");
    return status;
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
    run_dir_look(&l->before, l->dir);
    l->had_lock = run_folder_has(l->dir, "launch.lock");
    l->had_workers = run_folder_has(l->dir, "workers");
    TRY(dir_make(l->dir, err));
    TRY(lock(l, n_workers, err));
    /* A coordinator without launch may hold the folder; its workers need the address file, which launch deletes. */
    int served = -1;
    TRY(run_dir_lock(l->dir, &served, err));
    close(served);
    TRY(resume_check(&l->resume, err));
    l->taken = true;
    return STATUS_OK;
}

void launch_folder_undo(const struct launch_folder *l, size_t n_workers)
{
    char path[FILEIO_PATH_MAX], worker[48];
    struct err err = {0};
    if (run_folder_has(l->dir, "journal")) return;
    for (size_t i = 0; !l->had_workers && i <= n_workers; i++) { /* the folder above them at last */
        snprintf(worker, sizeof worker, i < n_workers ? "workers/worker-%zu" : "workers", i);
        if (run_folder_path(path, sizeof path, l->dir, worker, &err) != STATUS_OK ||
            dir_remove_flat(path, &err) != STATUS_OK)
            log_warn("%s", err.msg);
    }
    if (!l->had_lock && run_folder_path(path, sizeof path, l->dir, "launch.lock", NULL) == STATUS_OK) unlink(path);
    run_dir_undo(&l->before, l->dir);
}

void launch_folder_release(struct launch_folder *l)
{
    if (l->lock_fd >= 0) close(l->lock_fd);
}
