#include "tests/lib/store/powercut.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/lib/store/powercut_impl.h"

struct powercut_disk powercut_disk = {.lock = PTHREAD_MUTEX_INITIALIZER};
static struct powercut_disk *const d = &powercut_disk;

void *powercut_grown(void *list, size_t n, size_t size)
{
    void *more = realloc(list, n * size);
    if (!more) abort();
    return more;
}

_Noreturn void powercut_broken(const char *why, const char *what)
{
    fprintf(stderr, "powercut: %s: %s\n", why, what);
    abort();
}

static char *copied(const char *text)
{
    char *copy = strdup(text);
    if (!copy) abort();
    return copy;
}

/* Returns the place of a name, or POWERCUT_NONE. */
static int find(const struct powercut_names *names, const char *name)
{
    for (size_t i = 0; i < names->n; i++)
        if (!strcmp(names->list[i].name, name)) return (int)i;
    return POWERCUT_NONE;
}

static void drop(struct powercut_names *names, const char *name)
{
    int at = find(names, name);
    if (at >= 0) names->list[at] = names->list[--names->n];
}

static void give(struct powercut_names *names, char *name, int node)
{
    drop(names, name);
    names->list = powercut_grown(names->list, names->n + 1, sizeof *names->list);
    names->list[names->n++] = (struct powercut_name){name, node};
}

void powercut_apply(struct powercut_names *names, const struct powercut_change *c)
{
    if (c->what == NAME) give(names, c->name, c->named);
    if (c->what == UNNAME) drop(names, c->name);
    if (c->what != RENAME) return;
    int at = find(names, c->name);
    if (at < 0) powercut_broken("renamed, and not there", c->name);
    int node = names->list[at].node;
    drop(names, c->name);
    give(names, c->to, node);
}

static void record(struct powercut_change c)
{
    if (d->n_changes == d->room) {
        d->room = d->room ? 2 * d->room : 256;
        d->changes = powercut_grown(d->changes, d->room, sizeof c);
    }
    d->changes[d->n_changes++] = c;
    if (d->is_folder[c.node]) powercut_apply(&d->folders[c.node], &c);
}

static int new_node(bool folder)
{
    d->folders = powercut_grown(d->folders, (size_t)d->n_nodes + 1, sizeof *d->folders);
    d->is_folder = powercut_grown(d->is_folder, (size_t)d->n_nodes + 1, sizeof *d->is_folder);
    d->targets = powercut_grown(d->targets, (size_t)d->n_nodes + 1, sizeof *d->targets);
    d->targets[d->n_nodes] = NULL;
    d->folders[d->n_nodes] = (struct powercut_names){0};
    d->is_folder[d->n_nodes] = folder;
    return d->n_nodes++;
}

static int make(int folder, const char *name, bool is_folder)
{
    int node = new_node(is_folder);
    record((struct powercut_change){.what = NAME, .node = folder, .named = node, .name = copied(name)});
    return node;
}

/* The node that a path names at present. */
struct place {
    int folder, node; /* POWERCUT_NONE: outside the root; no node there */
    char name[NAME_MAX + 1];
};

static struct place place_of(const char *path)
{
    struct place p = {.folder = POWERCUT_NONE, .node = POWERCUT_NONE};
    char whole[2 * PATH_MAX], parent[PATH_MAX], real[PATH_MAX];
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    if (!d->on) return p;
    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (!strcmp(base, "..") || !strcmp(base, ".")) {
        if (!realpath(path, whole)) return p;
    } else {
        if (!realpath(parent, real)) return p;
        snprintf(whole, sizeof whole, "%s/%s", real, base);
    }
    size_t n = strlen(d->root);
    if (strncmp(whole, d->root, n) != 0 || (whole[n] && whole[n] != '/')) return p;
    p.node = POWERCUT_ROOT;
    for (char *rest = whole + n, *part; (part = strtok_r(rest, "/", &rest));) {
        if (p.node == POWERCUT_NONE || !d->is_folder[p.node]) powercut_broken("the folder does not exist", whole);
        p.folder = p.node;
        snprintf(p.name, sizeof p.name, "%s", part);
        int at = find(&d->folders[p.folder], part);
        p.node = at < 0 ? POWERCUT_NONE : d->folders[p.folder].list[at].node;
    }
    return p;
}

static int node_of(int fd)
{
    return d->on && fd >= 0 && fd < POWERCUT_FILES ? d->open[fd] - 1 : POWERCUT_NONE;
}

/* Returns whether this recorded call must fail. */
static bool fails(void)
{
    if (!d->failing || d->until--) return false;
    d->failing = false;
    errno = EIO;
    return true;
}

static void record_write(int node, size_t at, const void *data, size_t n)
{
    uint8_t *copy = powercut_grown(NULL, n ? n : 1, 1);
    memcpy(copy, data, n);
    record((struct powercut_change){.what = WRITE, .node = node, .at = at, .n = n, .data = copy});
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

ssize_t __real_pwrite(int fd, const void *data, size_t n, off_t at);
int __real_ftruncate(int fd, off_t length);
int __real_rename(const char *from, const char *to);
int __real_symlink(const char *target, const char *path);
int __real_link(const char *from, const char *to);
int __real_unlink(const char *path);
int __real_rmdir(const char *path);

int __wrap_open(const char *path, int flags, ...);
int __wrap_close(int fd);
ssize_t __wrap_write(int fd, const void *data, size_t n);
ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t at);
ssize_t __wrap_writev(int fd, const struct iovec *parts, int n);
int __wrap_ftruncate(int fd, off_t length);
int __wrap_fsync(int fd);
int __wrap_fdatasync(int fd);
int __wrap_rename(const char *from, const char *to);
int __wrap_link(const char *from, const char *to);
int __wrap_symlink(const char *target, const char *path);
int __wrap_unlink(const char *path);
int __wrap_unlinkat(int folder, const char *name, int flags);
int __wrap_rmdir(const char *path);
int __wrap_mkdir(const char *path, mode_t mode);

int __wrap_open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    int mode = flags & O_CREAT ? va_arg(more, int) : 0;
    va_end(more);
    pthread_mutex_lock(&d->lock);
    struct place p = place_of(path);
    bool bad = p.folder != POWERCUT_NONE && (flags & O_CREAT) && fails();
    int fd = bad ? -1 : __real_open(path, flags, mode), cause = errno;
    bool ours = fd >= 0 && (p.folder != POWERCUT_NONE || p.node == POWERCUT_ROOT);
    if (ours && p.node == POWERCUT_NONE)
        p.node = make(p.folder, p.name, false);
    else if (ours && (flags & O_TRUNC))
        record((struct powercut_change){.what = LENGTH, .node = p.node});
    if (fd >= 0 && fd < POWERCUT_FILES) d->open[fd] = ours ? p.node + 1 : 0;
    if (ours && fd >= POWERCUT_FILES) powercut_broken("too many open files", path);
    pthread_mutex_unlock(&d->lock);
    errno = cause;
    return fd;
}

int __wrap_close(int fd)
{
    pthread_mutex_lock(&d->lock);
    if (fd >= 0 && fd < POWERCUT_FILES) d->open[fd] = 0;
    int rc = __real_close(fd);
    pthread_mutex_unlock(&d->lock);
    return rc;
}

ssize_t __wrap_write(int fd, const void *data, size_t n)
{
    pthread_mutex_lock(&d->lock);
    int node = node_of(fd);
    off_t at = node == POWERCUT_NONE ? 0 : lseek(fd, 0, fcntl(fd, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
    bool bad = node != POWERCUT_NONE && fails();
    ssize_t done = bad && n < 2 ? -1 : __real_write(fd, data, bad ? n / 2 : n);
    if (bad && n >= 2) d->failing = true, d->until = 0; /* write the second half */
    if (node != POWERCUT_NONE && done > 0) record_write(node, (size_t)at, data, (size_t)done);
    pthread_mutex_unlock(&d->lock);
    return done;
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t at)
{
    pthread_mutex_lock(&d->lock);
    int node = node_of(fd);
    ssize_t done = node != POWERCUT_NONE && fails() ? -1 : __real_pwrite(fd, data, n, at);
    if (node != POWERCUT_NONE && done > 0) record_write(node, (size_t)at, data, (size_t)done);
    pthread_mutex_unlock(&d->lock);
    return done;
}

ssize_t __wrap_writev(int fd, const struct iovec *parts, int n)
{
    ssize_t all = 0;
    for (int i = 0; i < n; i++) {
        ssize_t done = parts[i].iov_len ? __wrap_write(fd, parts[i].iov_base, parts[i].iov_len) : 0;
        if (done < 0) return all ? all : -1;
        all += done;
        if ((size_t)done < parts[i].iov_len) break;
    }
    return all;
}

int __wrap_ftruncate(int fd, off_t length)
{
    pthread_mutex_lock(&d->lock);
    int node = node_of(fd), rc = node != POWERCUT_NONE && fails() ? -1 : __real_ftruncate(fd, length);
    if (node != POWERCUT_NONE && !rc)
        record((struct powercut_change){.what = LENGTH, .node = node, .n = (size_t)length});
    pthread_mutex_unlock(&d->lock);
    return rc;
}

int __wrap_fsync(int fd)
{
    pthread_mutex_lock(&d->lock);
    int node = node_of(fd);
    bool bad = node != POWERCUT_NONE && fails();
    if (node != POWERCUT_NONE && !bad) record((struct powercut_change){.what = SYNC, .node = node});
    pthread_mutex_unlock(&d->lock);
    return bad ? -1 : 0;
}

int __wrap_fdatasync(int fd)
{
    return __wrap_fsync(fd);
}

int __wrap_rename(const char *from, const char *to)
{
    pthread_mutex_lock(&d->lock);
    struct place a = place_of(from), b = place_of(to);
    int rc = a.folder != POWERCUT_NONE && fails() ? -1 : __real_rename(from, to), cause = errno;
    if (!rc && a.folder != b.folder) powercut_broken("renamed to another folder", to);
    if (!rc && a.folder != POWERCUT_NONE && a.node != b.node) /* two names of one file: rename keeps both */
        record(
            (struct powercut_change){.what = RENAME, .node = a.folder, .name = copied(a.name), .to = copied(b.name)});
    pthread_mutex_unlock(&d->lock);
    errno = cause;
    return rc;
}

int __wrap_link(const char *from, const char *to)
{
    pthread_mutex_lock(&d->lock);
    struct place a = place_of(from), b = place_of(to);
    int rc = b.folder != POWERCUT_NONE && fails() ? -1 : __real_link(from, to), cause = errno;
    if (!rc && b.folder != POWERCUT_NONE)
        record((struct powercut_change){.what = NAME, .node = b.folder, .named = a.node, .name = copied(b.name)});
    pthread_mutex_unlock(&d->lock);
    errno = cause;
    return rc;
}

/* File systems keep the target beside the name, so the link is safe or not as its name is. */
int __wrap_symlink(const char *target, const char *path)
{
    pthread_mutex_lock(&d->lock);
    struct place p = place_of(path);
    int rc = p.folder != POWERCUT_NONE && fails() ? -1 : __real_symlink(target, path), cause = errno;
    if (!rc && p.folder != POWERCUT_NONE) {
        int node = make(p.folder, p.name, false);
        d->targets[node] = copied(target);
    }
    pthread_mutex_unlock(&d->lock);
    errno = cause;
    return rc;
}

static int take_away(const char *path, int (*real)(const char *path))
{
    pthread_mutex_lock(&d->lock);
    struct place p = place_of(path);
    int rc = p.folder != POWERCUT_NONE && fails() ? -1 : real(path), cause = errno;
    if (!rc && p.folder != POWERCUT_NONE)
        record((struct powercut_change){.what = UNNAME, .node = p.folder, .name = copied(p.name)});
    pthread_mutex_unlock(&d->lock);
    errno = cause;
    return rc;
}

int __wrap_unlink(const char *path)
{
    return take_away(path, __real_unlink);
}

int __wrap_rmdir(const char *path)
{
    return take_away(path, __real_rmdir);
}

int __wrap_unlinkat(int folder, const char *name, int flags)
{
    char link[64], path[PATH_MAX + NAME_MAX + 2];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t n = readlink(link, path, PATH_MAX);
    if (n < 0) powercut_broken("no such folder is open", name);
    snprintf(path + n, sizeof path - (size_t)n, "/%s", name);
    return flags & AT_REMOVEDIR ? __wrap_rmdir(path) : __wrap_unlink(path);
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    pthread_mutex_lock(&d->lock);
    struct place p = place_of(path);
    int rc = p.folder != POWERCUT_NONE && fails() ? -1 : __real_mkdir(path, mode), cause = errno;
    if (!rc && p.folder != POWERCUT_NONE) (void)make(p.folder, p.name, true);
    pthread_mutex_unlock(&d->lock);
    errno = cause;
    return rc;
}

/* ---- recording --------------------------------------------------------------------------------------------------- */

/* Records the present contents as safe. */
static void record_present(int folder, const char *path)
{
    char at[PATH_MAX + NAME_MAX + 2];
    DIR *dir = opendir(path);
    if (!dir) powercut_broken("cannot be read", path);
    for (const struct dirent *e; (e = readdir(dir));) {
        struct stat st;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        snprintf(at, sizeof at, "%s/%s", path, e->d_name);
        if (lstat(at, &st)) powercut_broken("cannot be looked at", at);
        int node = make(folder, e->d_name, S_ISDIR(st.st_mode));
        if (S_ISLNK(st.st_mode)) {
            char target[PATH_MAX] = "";
            if (readlink(at, target, sizeof target - 1) < 0) powercut_broken("cannot be read", at);
            d->targets[node] = copied(target);
            continue;
        }
        if (S_ISDIR(st.st_mode)) {
            record_present(node, at);
            continue;
        }
        int fd = __real_open(at, O_RDONLY);
        uint8_t *data = powercut_grown(NULL, (size_t)st.st_size + 1, 1);
        if (fd < 0 || read(fd, data, (size_t)st.st_size) != st.st_size) powercut_broken("cannot be read", at);
        __real_close(fd);
        record_write(node, 0, data, (size_t)st.st_size);
        record((struct powercut_change){.what = SYNC, .node = node});
        free(data);
    }
    closedir(dir);
    record((struct powercut_change){.what = SYNC, .node = folder});
}

void powercut_begin(const char *root)
{
    if (d->n_nodes) powercut_broken("begun twice", root);
    if (!realpath(root, d->root)) powercut_broken("there is no folder", root);
    memset(d->open, 0, sizeof d->open);
    (void)new_node(true);
    record_present(POWERCUT_ROOT, d->root);
    d->first = d->n_changes;
    d->on = true;
}

size_t powercut_changes(void)
{
    pthread_mutex_lock(&d->lock);
    size_t n = d->n_changes - d->first;
    pthread_mutex_unlock(&d->lock);
    return n;
}

void powercut_fail(size_t call)
{
    d->failing = true;
    d->until = call;
}

bool powercut_failed(void)
{
    return !d->failing;
}

bool powercut_syncs(size_t i)
{
    return d->changes[d->first + i].what == SYNC;
}

void powercut_end(void)
{
    d->on = d->failing = false;
}

void powercut_free(void)
{
    powercut_end();
    for (size_t i = 0; i < d->n_changes; i++) {
        free(d->changes[i].data);
        free(d->changes[i].name);
        free(d->changes[i].to);
    }
    for (int i = 0; i < d->n_nodes; i++) {
        free(d->folders[i].list);
        free(d->targets[i]);
    }
    free(d->targets);
    d->targets = NULL;
    free(d->changes);
    free(d->folders);
    free(d->is_folder);
    d->changes = NULL;
    d->folders = NULL;
    d->is_folder = NULL;
    d->n_changes = d->room = d->first = 0;
    d->n_nodes = 0;
}
