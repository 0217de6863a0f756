#include "common/os/log_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/log.h"
#include "common/os/fileio.h"

static enum status open_file(const char *dir, const char *name, int *fd_p, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return err_set(err, STATUS_LIMIT, "the path %.200s is too long", dir);
    TRY(dir_make(dir, err));
    return file_open_plain(path, O_WRONLY | O_CREAT | O_APPEND, FILE_PUBLIC, fd_p, err);
}

void log_file_open(const char *dir, const char *name)
{
    struct err err = {0};
    const char *logged = getenv(LOGGED_ENV);
    int fd = -1;
    if (logged && *logged) return;
    if (open_file(dir, name, &fd, &err) != STATUS_OK)
        log_warn("no log file: %s", err.msg);
    else
        log_set_copy(fd);
}
