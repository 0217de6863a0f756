#include "common/os/temporary.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/os/descriptors.h"
#include "common/os/fileio.h"

static const char mark[] = ".tmp-";
enum { PID_DIGITS_MAX = 9 };

/* True for an entry NAME.tmp-PID whose process has ended. */
static bool left_behind(const char *entry, const char *name)
{
    size_t n = strlen(name);
    if (strncmp(entry, name, n) != 0 || strncmp(entry + n, mark, sizeof mark - 1) != 0) return false;
    const char *pid = entry + n + sizeof mark - 1;
    size_t digits = strspn(pid, "0123456789");
    if (!digits || digits > PID_DIGITS_MAX || pid[digits] || atol(pid) < 1) return false;
    return kill((pid_t)atol(pid), 0) != 0 && errno == ESRCH;
}

void temporary_sweep(const char *path)
{
    char at[FILEIO_PATH_MAX];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    int folder = (int)(name - path); /* length with its slash; 0: the current folder */
    snprintf(at, sizeof at, "%.*s.", folder, path);
    DIR *dir = descriptors_opendir(at);
    if (!dir) return; /* the caller's open then fails with the cause */
    for (const struct dirent *e; (e = readdir(dir));) {
        if (!left_behind(e->d_name, name)) continue;
        snprintf(at, sizeof at, "%.*s%s", folder, path, e->d_name);
        if (unlink(at) != 0 && dir_remove_flat(at, NULL) != STATUS_OK)
            continue; /* it stays, which only costs disk space */
    }
    closedir(dir);
}

enum status temporary_name(const char *path, char *out, size_t cap, struct err *err)
{
    temporary_sweep(path);
    if (snprintf(out, cap, "%s%s%ld", path, mark, (long)getpid()) < (int)cap) return STATUS_OK;
    return err_set(err, STATUS_LIMIT, "the path %.300s is too long", path);
}
