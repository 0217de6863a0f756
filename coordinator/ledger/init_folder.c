#include "coordinator/ledger/init_folder.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/tensor/hf_folder.h"

static enum status fail(struct err *err, const char *what, const char *path)
{
    return err_set(err, STATUS_IO, "cannot %s %.300s: %s", what, path, strerror(errno));
}

enum status init_folder_open(struct init_folder *f, const char *run, struct err *err)
{
    *f = (struct init_folder){.fd = -1};
    if ((size_t)snprintf(f->dir, sizeof f->dir, "%s/init", run) >= sizeof f->dir)
        return err_set(err, STATUS_INVALID, "the path of the run folder is too long");
    snprintf(f->tmp, sizeof f->tmp, "%s.tmp", f->dir);
    return dir_remove_flat(f->tmp, err);
}

static void drop_file(struct init_folder *f)
{
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
    f->name[0] = '\0';
}

void init_folder_close(struct init_folder *f)
{
    struct err err = {0};
    drop_file(f);
    if (f->tmp[0] && dir_remove_flat(f->tmp, &err) != STATUS_OK) log_warn("%s", err.msg);
}

const char *init_folder_path(const struct init_folder *f)
{
    char path[sizeof f->tmp + 32];
    snprintf(path, sizeof path, "%s/model.safetensors", f->dir);
    return file_exists(path) ? f->dir : NULL;
}

enum status init_folder_begin(struct init_folder *f, struct err *err)
{
    drop_file(f);
    TRY(dir_remove_flat(f->tmp, err));
    return dir_make(f->tmp, err);
}

enum status init_folder_sync(struct init_folder *f, struct err *err)
{
    return f->fd >= 0 && fsync(f->fd) ? fail(err, "sync the files of", f->tmp) : STATUS_OK;
}

static enum status finish_file(struct init_folder *f, struct err *err)
{
    TRY(init_folder_sync(f, err));
    drop_file(f);
    return STATUS_OK;
}

static enum status begin_file(struct init_folder *f, const char *name, struct err *err)
{
    char path[sizeof f->tmp + sizeof f->name + 1];
    assert(*name && *name != '.' && !strchr(name, '/') && strlen(name) < sizeof f->name);
    TRY(finish_file(f, err));
    snprintf(path, sizeof path, "%s/%s", f->tmp, name);
    TRY(file_open_plain(path, O_WRONLY | O_CREAT | O_EXCL, FILE_PUBLIC, &f->fd, err));
    snprintf(f->name, sizeof f->name, "%s", name);
    return STATUS_OK;
}

enum status init_folder_write(struct init_folder *f, const char *name, const void *data, size_t size, struct err *err)
{
    if (strcmp(name, f->name) != 0) TRY(begin_file(f, name, err));
    for (size_t done = 0; done < size;) {
        ssize_t n = write(f->fd, (const char *)data + done, size - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail(err, "write to", f->tmp);
        done += (size_t)n;
    }
    return STATUS_OK;
}

enum status init_folder_commit(struct init_folder *f, struct err *err)
{
    char parent[sizeof f->dir];
    TRY(finish_file(f, err));
    TRY(hf_folder_link_adapter(f->tmp, err));
    TRY(dir_sync(f->tmp, err));
    TRY(dir_remove_flat(f->dir, err));
    if (rename(f->tmp, f->dir)) return fail(err, "rename", f->tmp);
    snprintf(parent, sizeof parent, "%.*s", (int)(strrchr(f->dir, '/') - f->dir), f->dir);
    return dir_sync(parent, err);
}

enum status init_folder_remove(struct init_folder *f, struct err *err)
{
    drop_file(f);
    TRY(dir_remove_flat(f->tmp, err));
    return dir_remove_flat(f->dir, err);
}
