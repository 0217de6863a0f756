/* Finishes atoll rollback and atoll exclude: coordinator/ledger/history/take_back.h. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/os/descriptors.h"
#include "common/os/fileio.h"
#include "coordinator/ledger/store_disk.h"

enum { TRIES = 100, DEPTH_MAX = 4 };

/* What both histories have. `summary` goes with the old one. */
static const char *const moved[] = {"journal", "checkpoints", "metrics.jsonl"};
static const char summary[] = "summary.json";

static bool there(const char *path)
{
    struct stat st;
    return !lstat(path, &st);
}

/* RUN/take-back/NAME; "" for the folder itself. */
static void path_in(char out[FILEIO_PATH_MAX], const char *run, const char *folder, const char *name)
{
    snprintf(out, FILEIO_PATH_MAX, "%.3800s/%s%s%s", run, folder, name[0] ? "/" : "", name);
}

/* Removes a folder that holds links to files of the run, and new files. */
static enum status remove_tree(const char *path, int depth, struct err *err)
{
    char sub[FILEIO_PATH_MAX];
    struct stat st;
    if (lstat(path, &st)) return STATUS_OK;
    if (!S_ISDIR(st.st_mode)) return unlink(path) ? store_disk_fail(err, "remove", path) : STATUS_OK;
    DIR *dir = descriptors_opendir(path);
    if (!dir || depth == DEPTH_MAX) {
        if (dir) closedir(dir), errno = ELOOP;
        return store_disk_fail(err, "remove", path);
    }
    enum status status = STATUS_OK;
    for (const struct dirent *e; status == STATUS_OK && (e = readdir(dir));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        if (snprintf(sub, sizeof sub, "%s/%s", path, e->d_name) < (int)sizeof sub)
            status = remove_tree(sub, depth + 1, err);
    }
    closedir(dir);
    if (status == STATUS_OK && rmdir(path)) status = store_disk_fail(err, "remove", path);
    return status;
}

static enum status move(const char *run, const char *from_folder, const char *to_folder, const char *name,
                        struct err *err)
{
    char from[FILEIO_PATH_MAX], to[FILEIO_PATH_MAX], folder[FILEIO_PATH_MAX];
    path_in(from, run, from_folder, name);
    path_in(to, run, to_folder, name);
    if (rename(from, to)) return store_disk_fail(err, "move", from);
    path_in(folder, run, to_folder, "");
    TRY(dir_sync(folder, err));
    path_in(folder, run, from_folder, "");
    return dir_sync(folder, err);
}

/* The old one goes into RUN/take-back, the new one takes its place. Either step may have been done before a crash. */
static enum status exchange(const char *run, const char *name, struct err *err)
{
    char next[FILEIO_PATH_MAX], old[FILEIO_PATH_MAX], now[FILEIO_PATH_MAX];
    path_in(next, run, STORE_SWITCH "/new", name);
    path_in(old, run, STORE_SWITCH, name);
    path_in(now, run, ".", name);
    if (!there(next)) return STATUS_OK;
    if (!there(old) && there(now)) TRY(move(run, ".", STORE_SWITCH, name, err));
    return move(run, STORE_SWITCH "/new", ".", name, err);
}

/* Renames RUN/take-back, which holds the old history now, to taken-back-20261128-143015. */
static enum status name_aside(const char *run, char *aside, size_t cap, struct err *err)
{
    char date[32], from[FILEIO_PATH_MAX], to[FILEIO_PATH_MAX];
    time_t now = time(NULL);
    struct tm tm;
    if (!localtime_r(&now, &tm) || !strftime(date, sizeof date, "%Y%m%d-%H%M%S", &tm))
        return err_set(err, STATUS_IO, "cannot read the time");
    path_in(from, run, STORE_SWITCH, "");
    for (int i = 0; i < TRIES; i++) {
        snprintf(aside, cap, i ? "taken-back-%s-%d" : "taken-back-%s", date, i);
        path_in(to, run, aside, "");
        if (there(to)) continue;
        if (rename(from, to)) return store_disk_fail(err, "rename", from);
        return dir_sync(run, err);
    }
    return err_set(err, STATUS_IO, "cannot find a new name for %.300s", from);
}

enum status store_disk_switch(const char *run, bool *switched_p, char *aside, size_t cap, struct err *err)
{
    char path[FILEIO_PATH_MAX], next[FILEIO_PATH_MAX];
    *switched_p = false;
    path_in(path, run, STORE_SWITCH_TMP, "");
    TRY(remove_tree(path, 0, err));
    path_in(path, run, STORE_SWITCH, "");
    if (!there(path)) return STATUS_OK;
    path_in(next, run, STORE_SWITCH "/new", "");
    if (there(next)) {
        for (size_t i = 0; i < sizeof moved / sizeof *moved; i++) TRY(exchange(run, moved[i], err));
        path_in(path, run, ".", summary);
        if (there(path)) TRY(move(run, ".", STORE_SWITCH, summary, err));
        TRY(remove_tree(next, 0, err));
    }
    TRY(name_aside(run, aside, cap, err));
    *switched_p = true;
    return STATUS_OK;
}
