#include "cli/run_folder.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/fileio.h"
#include "common/mem.h"

enum { LINE_FILE_MAX = 65536 };

enum status run_path(char *out, size_t cap, const char *dir, const char *name, struct err *err)
{
    if (snprintf(out, cap, "%s/%s", dir, name) >= (int)cap)
        return err_set(err, STATUS_LIMIT, "the path %s/%s is too long", dir, name);
    return STATUS_OK;
}

enum status run_line(const char *path, char *out, size_t cap, struct err *err)
{
    void *data;
    size_t size;
    TRY(file_read(path, LINE_FILE_MAX, &data, &size, err));
    size_t length = strcspn(data, "\r\n");
    bool fits = length < cap;
    if (fits && length) memcpy(out, data, length), out[length] = '\0';
    mem_free(data);
    if (!fits) return err_set(err, STATUS_LIMIT, "the first line of %s is too long", path);
    return length ? STATUS_OK : err_set(err, STATUS_NOTFOUND, "%s is empty", path);
}

enum status run_folder_name(char *out, size_t cap, const char *path, struct err *err)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    if (n >= cap) return err_set(err, STATUS_LIMIT, "the path %s is too long", path);
    memcpy(out, path, n);
    out[n] = '\0';
    return STATUS_OK;
}

enum status run_checkpoint(const char *path, char *out, size_t cap, struct err *err)
{
    char folder[FILEIO_PATH_MAX], probe[FILEIO_PATH_MAX], checkpoints[FILEIO_PATH_MAX], latest[FILEIO_PATH_MAX];
    char name[256];
    struct stat st;
    if (stat(path, &st)) return err_set(err, STATUS_NOTFOUND, "there is no %s: give a run or checkpoint folder", path);
    TRY(run_folder_name(folder, sizeof folder, path, err));
    TRY(run_path(probe, sizeof probe, folder, "config.json", err));
    if (file_exists(probe)) return run_folder_name(out, cap, folder, err);
    TRY(run_path(checkpoints, sizeof checkpoints, folder, "checkpoints", err));
    TRY(run_path(latest, sizeof latest, checkpoints, "latest", err));
    if (run_line(latest, name, sizeof name, NULL) != STATUS_OK)
        return err_set(err, STATUS_NOTFOUND,
                       "no checkpoint in %s: it has neither config.json nor checkpoints/latest; wait for the first one",
                       folder);
    return run_path(out, cap, checkpoints, name, err);
}

bool run_folder_empty(const char *path)
{
    DIR *dir = opendir(path);
    if (!dir) return true;
    bool empty = true;
    for (struct dirent *entry; empty && (entry = readdir(dir));)
        empty = !strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..");
    closedir(dir);
    return empty;
}
