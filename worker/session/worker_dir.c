#include "worker/session/worker_dir.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/number.h"
#include "common/base/text.h"
#include "common/os/fileio.h"
#include "common/os/fork_close.h"
#include "common/os/lock_holder.h"

enum { DIGITS = 2 * WIRE_KEY, NAMES_MAX = 64, FOLDER_NAME_MAX = 60, LOCK_WAIT_S = 15, LOCK_TRIES_A_S = 10 };

static enum status key_make(struct worker_dir *d, const char *path, struct err *err)
{
    char text[DIGITS + 2];
    TRY(transport_key_make(&d->key, err));
    d->key_is_new = true;
    number_hex_text(d->key.secret, WIRE_KEY, text);
    text[DIGITS] = '\n';
    enum status status = file_write_private(path, text, DIGITS + 1, err);
    explicit_bzero(text, sizeof text);
    return status;
}

enum status worker_dir_read_key(struct transport_key *key, const char *folder, struct err *err)
{
    char path[CONFIG_PATH_MAX + 8];
    void *data;
    size_t size;
    if ((size_t)snprintf(path, sizeof path, "%s/key", folder) >= sizeof path)
        return err_set(err, STATUS_INVALID, "--dir is longer than %d bytes", CONFIG_PATH_MAX - 1);
    TRY(file_read(path, 4096, &data, &size, err));
    bool good = size == DIGITS + 1 && number_hex(data, key->secret, WIRE_KEY);
    explicit_bzero(data, size);
    mem_free(data);
    if (!good)
        return err_set(err, STATUS_CORRUPT,
                       "%s is not a worker's key: restore it, or remove the folder to start as a "
                       "new worker",
                       path);
    return transport_key_complete(key, err);
}

static enum status key_open(struct worker_dir *d, struct err *err)
{
    char path[CONFIG_PATH_MAX + 8];
    snprintf(path, sizeof path, "%s/key", d->path);
    temporary_sweep(path);
    d->key_is_new = false;
    return file_exists(path) ? worker_dir_read_key(&d->key, d->path, err) : key_make(d, path, err);
}

/* The holder has ended: its lock is free soon, and with it this worker's saved state. */
static bool await_lock(const struct worker_dir *d, long pid)
{
    long now;
    log_info("waiting up to %d s for %s: process %ld has ended, but its lock is not free yet", LOCK_WAIT_S, d->path,
             pid);
    for (int tries = LOCK_WAIT_S * LOCK_TRIES_A_S; tries && !lock_holder_runs(d->lock_fd, &now); tries--)
        if (file_lock(d->lock_fd, false)) return true;
    log_warn("%s is still locked, by a process that %ld started or by another machine", d->path, pid);
    return false;
}

static enum status take_lock(struct worker_dir *d, bool patient, struct err *err)
{
    long pid;
    char holder[64] = "";
    bool taken = file_lock(d->lock_fd, patient);
    if (!taken && errno == EWOULDBLOCK && !lock_holder_runs(d->lock_fd, &pid)) taken = await_lock(d, pid);
    if (taken) {
        lock_holder_note(d->lock_fd);
        return STATUS_OK;
    }
    if (lock_holder_runs(d->lock_fd, &pid) && pid) snprintf(holder, sizeof holder, " (process %ld)", pid);
    return err_set(err, STATUS_EXISTS, "another worker runs in %s%s: give this one its own --dir", d->path, holder);
}

static enum status open_dir(struct worker_dir *d, const char *path, bool wait, struct err *err)
{
    char file[CONFIG_PATH_MAX + 16];
    d->lock_fd = -1;
    d->base[0] = '\0';
    if ((size_t)snprintf(d->path, sizeof d->path, "%s", path) >= sizeof d->path)
        return err_set(err, STATUS_INVALID, "--dir is longer than %d bytes", CONFIG_PATH_MAX - 1);
    snprintf(file, sizeof file, "%s/journal", d->path);
    if (file_exists(file))
        return err_set(err, STATUS_INVALID, "%s is the folder of a run: give this worker a --dir of its own", d->path);
    TRY(dir_make(d->path, err));
    snprintf(file, sizeof file, "%s/lock", d->path);
    TRY(file_open_plain(file, O_RDWR | O_CREAT, FILE_PUBLIC, &d->lock_fd, err));
    fork_close_add(d->lock_fd); /* a child must not hold the lock of a worker that was killed */
    enum status status = take_lock(d, wait, err);
    if (status == STATUS_OK) status = key_open(d, err);
    if (status != STATUS_OK) worker_dir_close(d);
    return status;
}

enum status worker_dir_open(struct worker_dir *d, const char *path, struct err *err)
{
    return open_dir(d, path, true, err);
}

/* The name goes into messages, files and metrics: keep characters that are safe there. */
static void host_name(char out[WIRE_NAME_MAX])
{
    char host[256] = "";
    size_t n = 0;
    if (gethostname(host, sizeof host - 1)) host[0] = '\0';
    for (const char *p = host; *p && *p != '.' && n < WIRE_NAME_MAX - 8; p++)
        if (strspn(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")) out[n++] = *p;
    out[n] = '\0';
    if (!n) snprintf(out, WIRE_NAME_MAX, "worker");
}

/* The base is set; a name that worker_dir_rename gave replaces `name`. */
static enum status name_kept(struct worker_dir *d, const char *base, char name[WIRE_NAME_MAX], struct err *err)
{
    char path[CONFIG_PATH_MAX + 8];
    void *data;
    size_t size;
    snprintf(d->base, sizeof d->base, "%s", base);
    snprintf(path, sizeof path, "%s/name", d->path);
    enum status status = file_read(path, WIRE_NAME_MAX, &data, &size, err);
    if (status == STATUS_NOTFOUND) return STATUS_OK;
    if (status == STATUS_OK) {
        char *text = data;
        text[strcspn(text, "\n")] = '\0';
        bool good = text[0] && strlen(text) < WIRE_NAME_MAX && text_is_name(text, strlen(text));
        if (good) snprintf(name, WIRE_NAME_MAX, "%s", text);
        mem_free(data);
        if (good) return STATUS_OK;
        status = err_set(err, STATUS_CORRUPT, "%s holds no worker's name: remove it, or give --name", path);
    }
    worker_dir_close(d);
    return status;
}

enum status worker_dir_rename(struct worker_dir *d, char name[WIRE_NAME_MAX], struct err *err)
{
    char path[CONFIG_PATH_MAX + 8], stem[WIRE_NAME_MAX], line[WIRE_NAME_MAX + 1];
    unsigned long number = 2;
    assert(d->base[0] && d->lock_fd >= 0);
    snprintf(stem, sizeof stem, "%.56s-", d->base);
    if (!strncmp(name, stem, strlen(stem))) number = strtoul(name + strlen(stem), NULL, 10) + 1;
    if (number < 2 || number > NAMES_MAX)
        return err_set(err, STATUS_EXISTS, "the names up to %s are taken: give --name", name);
    snprintf(path, sizeof path, "%s/key", d->path);
    TRY(key_make(d, path, err));
    snprintf(path, sizeof path, "%s/name", d->path);
    int size = snprintf(line, sizeof line, "%s%lu\n", stem, number);
    TRY(file_write(path, line, (size_t)size, err));
    snprintf(name, WIRE_NAME_MAX, "%.*s", size - 1, line);
    return STATUS_OK;
}

enum status worker_dir_choose(struct worker_dir *d, char name[WIRE_NAME_MAX], struct err *err)
{
    char host[WIRE_NAME_MAX], path[WIRE_NAME_MAX + 32];
    bool given = name[0] != '\0';
    host_name(host);
    for (int i = 1; i <= NAMES_MAX; i++) {
        if (!given && i == 1) snprintf(name, WIRE_NAME_MAX, "%s", host);
        if (!given && i > 1) snprintf(name, WIRE_NAME_MAX, "%.50s-%d", host, i);
        snprintf(path, sizeof path, "./atoll-worker-%s", name);
        enum status status = open_dir(d, path, given, err);
        if (status == STATUS_OK && i > 1 && !given)
            log_info("./atoll-worker-%s is in use: this worker is %s", host, name);
        if (status == STATUS_OK && !given) status = name_kept(d, host, name, err);
        if (status != STATUS_EXISTS || given) return status;
    }
    return err_set(err, STATUS_EXISTS, "%d workers run in this folder already: give --dir and --name", NAMES_MAX);
}

enum status worker_name_check(const char *name, bool has_dir, struct err *err)
{
    if (!name[0] || strlen(name) >= WIRE_NAME_MAX)
        return err_set(err, STATUS_INVALID, "--name must have 1 to %d bytes", WIRE_NAME_MAX - 1);
    if (!text_is_name(name, strlen(name)))
        return err_set(err, STATUS_INVALID, "--name must be UTF-8 without control or invisible characters");
    if (!has_dir && strchr(name, '/'))
        return err_set(err, STATUS_INVALID, "--name %s cannot name a folder: give --dir too", name);
    return STATUS_OK;
}

/* The last part of the folder's path, which is unique on this host. */
static enum status name_after_folder(char name[WIRE_NAME_MAX], const char *dir, struct err *err)
{
    char path[PATH_MAX];
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    const char *slash = memrchr(dir, '/', n), *base = slash ? slash + 1 : dir;
    n -= (size_t)(base - dir);
    bool is_dots = !n || (n <= 2 && strspn(base, ".") == n);
    if (is_dots && realpath(dir, path)) base = strrchr(path, '/') + 1, n = strlen(base);
    if (n > FOLDER_NAME_MAX) n = FOLDER_NAME_MAX;
    while (n && (base[n] & 0xc0) == 0x80) n--; /* cut before a UTF-8 character, not inside */
    if (!n || !text_is_name(base, n))
        return err_set(err, STATUS_INVALID, "the name of the --dir folder is not a valid worker name: give --name too");
    memcpy(name, base, n);
    name[n] = '\0';
    return STATUS_OK;
}

enum status worker_dir_open_named(struct worker_dir *d, const char *path, char name[WIRE_NAME_MAX], struct err *err)
{
    if (!path) return worker_dir_choose(d, name, err);
    char base[WIRE_NAME_MAX];
    TRY(worker_dir_open(d, path, err));
    if (name[0]) return STATUS_OK;
    enum status status = name_after_folder(base, path, err);
    if (status != STATUS_OK) {
        worker_dir_close(d);
        return status;
    }
    memcpy(name, base, WIRE_NAME_MAX);
    return name_kept(d, base, name, err);
}

void worker_dir_close(struct worker_dir *d)
{
    if (d->lock_fd >= 0) {
        fork_close_remove(d->lock_fd);
        close(d->lock_fd);
    }
    d->lock_fd = -1;
}
