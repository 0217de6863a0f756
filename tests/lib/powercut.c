#include "tests/lib/powercut.h"

#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FILES_OPEN = 1024, BLOCK = 512, ROOT = 0, NONE = -1 };

/* ---- what is recorded ---------------------------------------------------------------------------------------------
 * Files and folders are nodes, numbered as they appear; names lead to them. */

enum what { WRITE, LENGTH, SYNC, NAME, UNNAME, RENAME };

struct change {
    enum what what;
    int node;      /* the file or folder that is changed */
    size_t at, n;  /* WRITE: where, and how much; LENGTH: n */
    uint8_t *data; /* WRITE: [n] */
    int named;     /* NAME */
    char *name, *to; /* NAME, UNNAME, RENAME; `to`: RENAME */
};

struct name {
    char *name; /* borrowed from a change */
    int node;
};

/* A folder's names. */
struct names {
    struct name *list;
    size_t n;
};

static struct {
    pthread_mutex_t lock;
    bool on;
    char root[PATH_MAX];
    struct change *changes;
    size_t n_changes, room, first; /* first: those before it made what was there at the beginning */
    struct names *folders;         /* by node, as programs see them; a file has none */
    bool *is_folder;
    int n_nodes;
    int open[FILES_OPEN]; /* by descriptor: node + 1 */
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *grown(void *list, size_t n, size_t size)
{
    void *more = realloc(list, n * size);
    if (!more) abort();
    return more;
}

static _Noreturn void broken(const char *why, const char *what)
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

static int find(const struct names *names, const char *name)
{
    for (size_t i = 0; i < names->n; i++)
        if (!strcmp(names->list[i].name, name)) return (int)i;
    return NONE;
}

static void drop(struct names *names, const char *name)
{
    int at = find(names, name);
    if (at >= 0) names->list[at] = names->list[--names->n];
}

static void give(struct names *names, char *name, int node)
{
    drop(names, name);
    names->list = grown(names->list, names->n + 1, sizeof *names->list);
    names->list[names->n++] = (struct name){name, node};
}

/* What a change makes of its folder's names. */
static void apply_name(struct names *names, const struct change *c)
{
    if (c->what == NAME) give(names, c->name, c->named);
    if (c->what == UNNAME) drop(names, c->name);
    if (c->what != RENAME) return;
    int at = find(names, c->name);
    if (at < 0) broken("renamed, and not there", c->name);
    int node = names->list[at].node;
    drop(names, c->name);
    give(names, c->to, node);
}

static void record(struct change c)
{
    if (disk.n_changes == disk.room) {
        disk.room = disk.room ? 2 * disk.room : 256;
        disk.changes = grown(disk.changes, disk.room, sizeof c);
    }
    disk.changes[disk.n_changes++] = c;
    if (disk.is_folder[c.node]) apply_name(&disk.folders[c.node], &c);
}

static int new_node(bool folder)
{
    disk.folders = grown(disk.folders, (size_t)disk.n_nodes + 1, sizeof *disk.folders);
    disk.is_folder = grown(disk.is_folder, (size_t)disk.n_nodes + 1, sizeof *disk.is_folder);
    disk.folders[disk.n_nodes] = (struct names){0};
    disk.is_folder[disk.n_nodes] = folder;
    return disk.n_nodes++;
}

static int make(int folder, const char *name, bool is_folder)
{
    int node = new_node(is_folder);
    record((struct change){.what = NAME, .node = folder, .named = node, .name = copied(name)});
    return node;
}

/* Where a path leads, by the names that programs see. */
struct place {
    int folder, node; /* NONE: outside of the root; nothing there */
    char name[NAME_MAX + 1];
};

static struct place place_of(const char *path)
{
    struct place p = {.folder = NONE, .node = NONE};
    char whole[2 * PATH_MAX], parent[PATH_MAX], real[PATH_MAX];
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    if (!disk.on) return p;
    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (!strcmp(base, "..") || !strcmp(base, ".")) {
        if (!realpath(path, whole)) return p;
    } else {
        if (!realpath(parent, real)) return p;
        snprintf(whole, sizeof whole, "%s/%s", real, base);
    }
    size_t n = strlen(disk.root);
    if (strncmp(whole, disk.root, n) != 0 || (whole[n] && whole[n] != '/')) return p;
    p.node = ROOT;
    for (char *rest = whole + n, *part; (part = strtok_r(rest, "/", &rest));) {
        if (p.node == NONE || !disk.is_folder[p.node]) broken("nothing was made there", whole);
        p.folder = p.node;
        snprintf(p.name, sizeof p.name, "%s", part);
        int at = find(&disk.folders[p.folder], part);
        p.node = at < 0 ? NONE : disk.folders[p.folder].list[at].node;
    }
    return p;
}

static int node_of(int fd)
{
    return disk.on && fd >= 0 && fd < FILES_OPEN ? disk.open[fd] - 1 : NONE;
}

static void record_write(int node, size_t at, const void *data, size_t n)
{
    uint8_t *copy = grown(NULL, n ? n : 1, 1);
    memcpy(copy, data, n);
    record((struct change){.what = WRITE, .node = node, .at = at, .n = n, .data = copy});
}

/* ---- the calls ----------------------------------------------------------------------------------------------------
 */

int __real_open(const char *path, int flags, ...);
int __real_close(int fd);
ssize_t __real_write(int fd, const void *data, size_t n);
ssize_t __real_pwrite(int fd, const void *data, size_t n, off_t at);
ssize_t __real_writev(int fd, const struct iovec *parts, int n);
int __real_ftruncate(int fd, off_t length);
int __real_rename(const char *from, const char *to);
int __real_link(const char *from, const char *to);
int __real_unlink(const char *path);
int __real_unlinkat(int folder, const char *name, int flags);
int __real_rmdir(const char *path);
int __real_mkdir(const char *path, mode_t mode);

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
    pthread_mutex_lock(&disk.lock);
    struct place p = place_of(path);
    int fd = __real_open(path, flags, mode), cause = errno;
    bool ours = fd >= 0 && (p.folder != NONE || p.node == ROOT);
    if (ours && p.node == NONE)
        p.node = make(p.folder, p.name, false);
    else if (ours && (flags & O_TRUNC))
        record((struct change){.what = LENGTH, .node = p.node});
    if (fd >= 0 && fd < FILES_OPEN) disk.open[fd] = ours ? p.node + 1 : 0;
    if (ours && fd >= FILES_OPEN) broken("too many open files", path);
    pthread_mutex_unlock(&disk.lock);
    errno = cause;
    return fd;
}

int __wrap_close(int fd)
{
    pthread_mutex_lock(&disk.lock);
    if (fd >= 0 && fd < FILES_OPEN) disk.open[fd] = 0;
    int rc = __real_close(fd);
    pthread_mutex_unlock(&disk.lock);
    return rc;
}

ssize_t __wrap_write(int fd, const void *data, size_t n)
{
    pthread_mutex_lock(&disk.lock);
    int node = node_of(fd);
    off_t at = node == NONE ? 0 : lseek(fd, 0, fcntl(fd, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
    ssize_t done = __real_write(fd, data, n);
    if (node != NONE && done > 0) record_write(node, (size_t)at, data, (size_t)done);
    pthread_mutex_unlock(&disk.lock);
    return done;
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t at)
{
    pthread_mutex_lock(&disk.lock);
    int node = node_of(fd);
    ssize_t done = __real_pwrite(fd, data, n, at);
    if (node != NONE && done > 0) record_write(node, (size_t)at, data, (size_t)done);
    pthread_mutex_unlock(&disk.lock);
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
    pthread_mutex_lock(&disk.lock);
    int node = node_of(fd), rc = __real_ftruncate(fd, length);
    if (node != NONE && !rc) record((struct change){.what = LENGTH, .node = node, .n = (size_t)length});
    pthread_mutex_unlock(&disk.lock);
    return rc;
}

int __wrap_fsync(int fd)
{
    pthread_mutex_lock(&disk.lock);
    int node = node_of(fd);
    if (node != NONE) record((struct change){.what = SYNC, .node = node});
    pthread_mutex_unlock(&disk.lock);
    return 0;
}

int __wrap_fdatasync(int fd)
{
    return __wrap_fsync(fd);
}

int __wrap_rename(const char *from, const char *to)
{
    pthread_mutex_lock(&disk.lock);
    struct place a = place_of(from), b = place_of(to);
    int rc = __real_rename(from, to), cause = errno;
    if (!rc && a.folder != b.folder) broken("renamed to another folder", to);
    if (!rc && a.folder != NONE && a.node != b.node) /* two names of one file: both stay */
        record((struct change){.what = RENAME, .node = a.folder, .name = copied(a.name), .to = copied(b.name)});
    pthread_mutex_unlock(&disk.lock);
    errno = cause;
    return rc;
}

int __wrap_link(const char *from, const char *to)
{
    pthread_mutex_lock(&disk.lock);
    struct place a = place_of(from), b = place_of(to);
    int rc = __real_link(from, to), cause = errno;
    if (!rc && b.folder != NONE)
        record((struct change){.what = NAME, .node = b.folder, .named = a.node, .name = copied(b.name)});
    pthread_mutex_unlock(&disk.lock);
    errno = cause;
    return rc;
}

static void record_gone(const struct place *p)
{
    if (p->folder != NONE) record((struct change){.what = UNNAME, .node = p->folder, .name = copied(p->name)});
}

int __wrap_unlink(const char *path)
{
    pthread_mutex_lock(&disk.lock);
    struct place p = place_of(path);
    int rc = __real_unlink(path), cause = errno;
    if (!rc) record_gone(&p);
    pthread_mutex_unlock(&disk.lock);
    errno = cause;
    return rc;
}

int __wrap_unlinkat(int folder, const char *name, int flags)
{
    char link[64], path[PATH_MAX + NAME_MAX + 2];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t n = readlink(link, path, PATH_MAX);
    if (n < 0) broken("no such folder is open", name);
    snprintf(path + n, sizeof path - (size_t)n, "/%s", name);
    return flags & AT_REMOVEDIR ? __wrap_rmdir(path) : __wrap_unlink(path);
}

int __wrap_rmdir(const char *path)
{
    pthread_mutex_lock(&disk.lock);
    struct place p = place_of(path);
    int rc = __real_rmdir(path), cause = errno;
    if (!rc) record_gone(&p);
    pthread_mutex_unlock(&disk.lock);
    errno = cause;
    return rc;
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    pthread_mutex_lock(&disk.lock);
    struct place p = place_of(path);
    int rc = __real_mkdir(path, mode), cause = errno;
    if (!rc && p.folder != NONE) (void)make(p.folder, p.name, true);
    pthread_mutex_unlock(&disk.lock);
    errno = cause;
    return rc;
}

/* ---- recording ----------------------------------------------------------------------------------------------------
 */

/* What is there already, safe. */
static void take_in(int folder, const char *path)
{
    char at[PATH_MAX + NAME_MAX + 2];
    DIR *dir = opendir(path);
    if (!dir) broken("cannot be read", path);
    for (const struct dirent *e; (e = readdir(dir));) {
        struct stat st;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        snprintf(at, sizeof at, "%s/%s", path, e->d_name);
        if (stat(at, &st)) broken("cannot be looked at", at);
        int node = make(folder, e->d_name, S_ISDIR(st.st_mode));
        if (S_ISDIR(st.st_mode)) {
            take_in(node, at);
            continue;
        }
        int fd = __real_open(at, O_RDONLY);
        uint8_t *data = grown(NULL, (size_t)st.st_size + 1, 1);
        if (fd < 0 || read(fd, data, (size_t)st.st_size) != st.st_size) broken("cannot be read", at);
        __real_close(fd);
        record_write(node, 0, data, (size_t)st.st_size);
        record((struct change){.what = SYNC, .node = node});
        free(data);
    }
    closedir(dir);
    record((struct change){.what = SYNC, .node = folder});
}

void powercut_begin(const char *root)
{
    if (disk.n_nodes) broken("begun twice", root);
    if (!realpath(root, disk.root)) broken("there is no folder", root);
    memset(disk.open, 0, sizeof disk.open);
    (void)new_node(true);
    take_in(ROOT, disk.root);
    disk.first = disk.n_changes;
    disk.on = true;
}

size_t powercut_changes(void)
{
    pthread_mutex_lock(&disk.lock);
    size_t n = disk.n_changes - disk.first;
    pthread_mutex_unlock(&disk.lock);
    return n;
}

bool powercut_syncs(size_t i)
{
    return disk.changes[disk.first + i].what == SYNC;
}

void powercut_end(void)
{
    disk.on = false;
}

void powercut_free(void)
{
    disk.on = false;
    for (size_t i = 0; i < disk.n_changes; i++) {
        free(disk.changes[i].data);
        free(disk.changes[i].name);
        free(disk.changes[i].to);
    }
    for (int i = 0; i < disk.n_nodes; i++) free(disk.folders[i].list);
    free(disk.changes);
    free(disk.folders);
    free(disk.is_folder);
    disk.changes = NULL;
    disk.folders = NULL;
    disk.is_folder = NULL;
    disk.n_changes = disk.room = disk.first = 0;
    disk.n_nodes = 0;
}

/* ---- images -------------------------------------------------------------------------------------------------------
 */

static uint64_t mixed(uint64_t x)
{
    x = (x ^ (x >> 31)) * 0x7fb5d329728ea185u;
    x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44du;
    return x ^ (x >> 33);
}

struct image {
    size_t end; /* of the changes that were made */
    uint64_t draw, seed;
};

/* A number below n, another one each time. */
static size_t some(struct image *im, size_t n)
{
    im->seed = mixed(im->seed + 0x9e3779b97f4a7c15u);
    return (size_t)(im->seed % n);
}

/* The last change of a node that is safe: its last fsync. Where there is none, 0, which is one of the root's. */
static size_t safe_until(const struct image *im, int node)
{
    size_t safe = 0;
    for (size_t i = 0; i < im->end; i++)
        if (disk.changes[i].node == node && disk.changes[i].what == SYNC) safe = i;
    return safe;
}

struct content {
    uint8_t *bytes;
    size_t n;
};

static void apply_bytes(struct content *c, const struct change *change)
{
    size_t n = c->n;
    if (change->what == LENGTH) n = change->n;
    if (change->what == WRITE && change->at + change->n > n) n = change->at + change->n;
    c->bytes = grown(c->bytes, n + 1, 1);
    if (n > c->n) memset(c->bytes + c->n, 0, n - c->n);
    c->n = n;
    if (change->what == WRITE) memcpy(c->bytes + change->at, change->data, change->n);
}

/* Of the old content and the new one: each block is of one of them. */
static void mix(struct image *im, struct content *now, const struct content *old, const size_t *lengths, size_t n)
{
    size_t end = lengths[some(im, n)];
    now->bytes = grown(now->bytes, (now->n > end ? now->n : end) + 1, 1);
    if (end > now->n) memset(now->bytes + now->n, 0, end - now->n);
    now->n = end;
    for (size_t at = 0; at < end; at += BLOCK) {
        if (some(im, 2)) continue;
        for (size_t i = at; i < at + BLOCK && i < end; i++) now->bytes[i] = i < old->n ? old->bytes[i] : 0;
    }
}

static void lay_file(struct image *im, int node, const char *path)
{
    im->seed = mixed(im->draw * 1000003 + im->end * 8191 + (size_t)node); /* by all of its names it is the same */
    struct content old = {0}, now = {0};
    size_t safe = safe_until(im, node), n_lengths = 0, *lengths = NULL;
    for (size_t i = 0; i < im->end; i++) {
        const struct change *c = &disk.changes[i];
        if (c->node != node) continue;
        if (i <= safe) apply_bytes(&old, c);
        apply_bytes(&now, c);
        if (i < safe) continue;
        lengths = grown(lengths, n_lengths + 1, sizeof *lengths);
        lengths[n_lengths++] = now.n;
    }
    if (im->draw == 0 || im->draw == 2) {
        struct content none = now;
        now = old;
        old = none;
    } else if (im->draw == 4) {
        for (size_t i = 0; i < now.n; i++) now.bytes[i] = i < old.n ? old.bytes[i] : 0;
    } else if (im->draw >= POWERCUT_PLAIN && n_lengths) {
        mix(im, &now, &old, lengths, n_lengths);
    }
    int fd = __real_open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0 || (now.n && __real_write(fd, now.bytes, now.n) != (ssize_t)now.n)) broken("cannot be written", path);
    __real_close(fd);
    free(old.bytes);
    free(now.bytes);
    free(lengths);
}

static void lay_folder(struct image *im, int node, const char *path)
{
    struct names names = {0};
    size_t safe = safe_until(im, node), later = 0;
    for (size_t i = safe + 1; i < im->end; i++) later += disk.changes[i].node == node;
    im->seed = mixed(im->draw * 1000003 + im->end * 8191 + (size_t)node);
    size_t kept = im->draw == 0 || im->draw == 3 ? 0 : im->draw < POWERCUT_PLAIN ? later : some(im, later + 1);
    for (size_t i = 0; i < im->end; i++) {
        if (disk.changes[i].node != node) continue;
        if (i > safe && !kept--) break;
        apply_name(&names, &disk.changes[i]);
    }
    if (__real_mkdir(path, 0777)) broken("cannot be made", path);
    for (size_t i = 0; i < names.n; i++) {
        char at[PATH_MAX];
        if (snprintf(at, sizeof at, "%s/%s", path, names.list[i].name) >= (int)sizeof at) broken("too long", path);
        if (disk.is_folder[names.list[i].node])
            lay_folder(im, names.list[i].node, at);
        else
            lay_file(im, names.list[i].node, at);
    }
    free(names.list);
}

void powercut_image(size_t instant, uint64_t draw, const char *to)
{
    struct image im = {.end = disk.first + instant, .draw = draw};
    if (im.end > disk.n_changes) broken("later than anything that was recorded", to);
    lay_folder(&im, ROOT, to);
}
