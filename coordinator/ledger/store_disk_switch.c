/* Finishes atoll rollback and atoll exclude: coordinator/ledger/history/take_back.h. All renames are within the run
 * folder, so a power cut leaves a prefix of them. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/os/descriptors.h"
#include "common/os/fileio.h"
#include "coordinator/ledger/store_disk.h"

enum { TRIES = 100, DEPTH_MAX = 3, SUFFIX_MAX = 64 };

static const char *const moved[] = {"journal", "checkpoints", "metrics.jsonl"};
enum { MOVED = sizeof moved / sizeof *moved };
static const char summary[] = "summary.json"; /* goes with the old history */

static bool there(const char *path)
{
    struct stat st;
    return !lstat(path, &st);
}

/* RUN/NAME and what follows it */
static void path_in(char out[FILEIO_PATH_MAX], const char *run, const char *name, const char *suffix)
{
    snprintf(out, FILEIO_PATH_MAX, "%.3900s/%s%s", run, name, suffix);
}

/* Removes files that this run has under other names, too, and new ones. */
static enum status remove_tree(const char *path, int depth, struct err *err)
{
    char sub[FILEIO_PATH_MAX];
    struct stat st;
    if (lstat(path, &st)) return STATUS_OK;
    if (!S_ISDIR(st.st_mode)) return unlink(path) ? store_disk_fail(err, "remove", path) : STATUS_OK;
    DIR *dir = depth < DEPTH_MAX ? descriptors_opendir(path) : NULL;
    if (!dir) return store_disk_fail(err, "remove", path);
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

enum status store_disk_switch_suffix(const char *run, char *suffix, size_t cap, struct err *err)
{
    char date[32], path[FILEIO_PATH_MAX];
    time_t now = time(NULL);
    struct tm tm;
    if (!localtime_r(&now, &tm) || !strftime(date, sizeof date, "%Y%m%d-%H%M%S", &tm))
        return err_set(err, STATUS_IO, "cannot read the time");
    for (int i = 0; i < TRIES; i++) {
        bool taken = false;
        snprintf(suffix, cap, i ? ".taken-back-%s-%d" : ".taken-back-%s", date, i);
        for (size_t k = 0; k <= MOVED; k++) {
            path_in(path, run, k < MOVED ? moved[k] : summary, suffix);
            taken = taken || there(path);
        }
        if (!taken) return STATUS_OK;
    }
    return err_set(err, STATUS_IO, "cannot find new names in %.300s", run);
}

enum status store_disk_switch_decide(const char *run, const char *suffix, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    TRY(dir_sync(run, err)); /* the prepared names come first */
    path_in(path, run, STORE_SWITCH, "");
    return file_write(path, suffix, strlen(suffix), err);
}

static enum status rename_in(const char *run, const char *name, const char *from, const char *to, struct err *err)
{
    char before[FILEIO_PATH_MAX], after[FILEIO_PATH_MAX];
    path_in(before, run, name, from);
    path_in(after, run, name, to);
    return rename(before, after) ? store_disk_fail(err, "rename", before) : STATUS_OK;
}

/* Either step may have been done before a crash. */
static enum status exchange(const char *run, const char *name, const char *suffix, struct err *err)
{
    char next[FILEIO_PATH_MAX], now[FILEIO_PATH_MAX];
    path_in(next, run, name, STORE_NEXT);
    path_in(now, run, name, "");
    if (!there(next)) return STATUS_OK;
    if (there(now)) TRY(rename_in(run, name, "", suffix, err));
    return rename_in(run, name, STORE_NEXT, "", err);
}

static enum status read_suffix(const char *path, char suffix[SUFFIX_MAX], struct err *err)
{
    void *text;
    size_t size;
    TRY(file_read(path, SUFFIX_MAX - 1, &text, &size, err));
    memcpy(suffix, text, size);
    suffix[size] = '\0';
    mem_free(text);
    bool ours = !strncmp(suffix, ".taken-back-", strlen(".taken-back-")) && !strchr(suffix, '/');
    return ours ? STATUS_OK : err_set(err, STATUS_CORRUPT, "%.300s is not a file that atoll wrote", path);
}

enum status store_disk_switch(const char *run, bool *switched_p, struct err *err)
{
    char path[FILEIO_PATH_MAX], suffix[SUFFIX_MAX];
    path_in(path, run, STORE_SWITCH, "");
    temporary_sweep(path);
    *switched_p = there(path);
    for (size_t i = 0; i < MOVED && !*switched_p; i++) {
        path_in(path, run, moved[i], STORE_NEXT);
        temporary_sweep(path);
        TRY(remove_tree(path, 0, err));
    }
    if (!*switched_p) return STATUS_OK;
    path_in(path, run, STORE_SWITCH, "");
    TRY(read_suffix(path, suffix, err));
    for (size_t i = 0; i < MOVED; i++) TRY(exchange(run, moved[i], suffix, err));
    path_in(path, run, summary, "");
    if (there(path)) TRY(rename_in(run, summary, "", suffix, err));
    TRY(dir_sync(run, err));
    path_in(path, run, STORE_SWITCH, "");
    if (unlink(path)) return store_disk_fail(err, "remove", path);
    return dir_sync(run, err);
}
