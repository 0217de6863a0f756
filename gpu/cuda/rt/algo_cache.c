#include "gpu/cuda/rt/algo_cache.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"

enum {
    FILE_MAX = 4 << 20,
    LINE_BYTES = ALGO_KEY_BYTES + ALGO_WORDS * 17 + 4, /* longest line without GPU-VERSION */
    LOCK_PAUSE_US = 5000,
    LOCK_TRIES = 400,   /* to read or append a line */
    ENTER_TRIES = 2000, /* to wait while another process measures; each product takes about a second */
};

static enum status remember(struct algo_cache *cache, const struct algo_choice *choice)
{
    for (size_t i = 0; i < cache->n; i++)
        if (!strcmp(cache->all[i].key, choice->key)) {
            cache->all[i] = *choice;
            return STATUS_OK;
        }
    if (cache->n == cache->cap) {
        size_t cap = cache->cap ? 2 * cache->cap : 64;
        struct algo_choice *all = mem_alloc(cap, sizeof *all);
        if (!all) return STATUS_NOMEM;
        if (cache->n) memcpy(all, cache->all, cache->n * sizeof *all);
        mem_free(cache->all);
        cache->all = all;
        cache->cap = cap;
    }
    cache->all[cache->n++] = *choice;
    return STATUS_OK;
}

/* Parses "KEY W0 ... W7"; false if malformed. */
static bool parse(const char *line, struct algo_choice *choice)
{
    size_t key = strcspn(line, " ");
    if (!key || key >= ALGO_KEY_BYTES) return false;
    memcpy(choice->key, line, key);
    choice->key[key] = '\0';
    line += key;
    for (int i = 0; i < ALGO_WORDS; i++) {
        char *end;
        if (*line != ' ' || !isxdigit((unsigned char)line[1])) return false;
        errno = 0;
        choice->words[i] = strtoull(line + 1, &end, 16);
        if (errno || end - line > 17) return false;
        line = end;
    }
    return *line == '\0';
}

/* Waits for a bounded time, then proceeds without the lock: lines are short, and some file systems have no locks. */
static void lock(int fd, int how, int tries)
{
    for (int i = 0; i < tries && flock(fd, how | LOCK_NB) != 0 && errno == EWOULDBLOCK; i++) usleep(LOCK_PAUSE_US);
}

/* Reads the lines of this kind of GPU and skips all others. */
static enum status read_lines(struct algo_cache *cache, char *data, size_t size)
{
    struct algo_choice choice;
    size_t kind = strlen(cache->kind);
    for (char *line = data, *end = data + size, *next; line < end; line = next) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        next = stop ? stop + 1 : end;
        if (!stop) break; /* an unterminated last line may be incomplete: its writer was interrupted */
        *stop = '\0';
        if (strncmp(line, cache->kind, kind) != 0 || line[kind] != ' ' || !parse(line + kind + 1, &choice)) continue;
        TRY(remember(cache, &choice));
    }
    return STATUS_OK;
}

static enum status read_locked(struct algo_cache *cache)
{
    void *data = NULL;
    size_t size;
    enum status status = file_read(cache->path, FILE_MAX, &data, &size, NULL);
    if (status != STATUS_OK) return status == STATUS_NOMEM ? status : STATUS_OK;
    status = read_lines(cache, data, size);
    mem_free(data);
    return status;
}

static enum status read_file(struct algo_cache *cache)
{
    int fd;
    if (!cache->path || file_open_plain(cache->path, O_RDONLY, 0, &fd, NULL) != STATUS_OK) return STATUS_OK;
    lock(fd, LOCK_SH, LOCK_TRIES);
    enum status status = read_locked(cache);
    close(fd);
    return status;
}

/* Replaces characters that do not fit into a file name or a blank-separated word. */
static void sanitize(char *text)
{
    for (char *c = text; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '-' && *c != '.') *c = '-';
}

/* Path of the cache file; creates its folder. NULL if no folder is known or on an error. */
static char *cache_path(const char *kind)
{
    const char *override = getenv("ATOLL_ALGO_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *path = mem_alloc(FILEIO_PATH_MAX, 1);
    int n = -1;
    if (!path) return NULL;
    if (override)
        n = *override ? snprintf(path, FILEIO_PATH_MAX, "%s", override) : -1;
    else if (xdg && *xdg == '/')
        n = snprintf(path, FILEIO_PATH_MAX, "%s/atoll", xdg);
    else if (home && *home == '/')
        n = snprintf(path, FILEIO_PATH_MAX, "%s/.cache/atoll", home);
    if (n > 0 && n < FILEIO_PATH_MAX && !override) {
        size_t used = (size_t)n;
        if (dir_make(path, NULL) == STATUS_OK)
            n += snprintf(path + used, FILEIO_PATH_MAX - used, "/gemm-%s.txt", kind);
        else
            n = -1;
    }
    if (n > 0 && n < FILEIO_PATH_MAX) return path;
    mem_free(path);
    return NULL;
}

enum status algo_cache_open(struct algo_cache *cache, const char *gpu, unsigned version)
{
    *cache = (struct algo_cache){.held = -1};
    snprintf(cache->kind, sizeof cache->kind, "%s-%u", gpu, version);
    sanitize(cache->kind);
    cache->path = cache_path(cache->kind);
    enum status status = read_file(cache);
    if (status != STATUS_OK) algo_cache_close(cache);
    return status;
}

void algo_cache_close(struct algo_cache *cache)
{
    mem_free(cache->path);
    mem_free(cache->all);
    *cache = (struct algo_cache){0};
}

bool algo_cache_find(const struct algo_cache *cache, const char *key, uint64_t words[ALGO_WORDS])
{
    for (size_t i = 0; i < cache->n; i++)
        if (!strcmp(cache->all[i].key, key)) {
            memcpy(words, cache->all[i].words, sizeof cache->all[i].words);
            return true;
        }
    return false;
}

static int open_locked(const char *path, int tries)
{
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd >= 0) lock(fd, LOCK_EX, tries);
    return fd;
}

void algo_cache_lock(struct algo_cache *cache)
{
    struct stat st;
    if (cache->path && stat(cache->path, &st) == 0 && !S_ISREG(st.st_mode))
        return; /* such as /dev/null: nothing to share */
    if (cache->path) cache->held = open_locked(cache->path, ENTER_TRIES);
    if (cache->held >= 0) (void)!read_locked(cache); /* without memory the products are timed again */
}

void algo_cache_unlock(struct algo_cache *cache)
{
    if (cache->held >= 0) close(cache->held);
    cache->held = -1;
}

/* Appends a line, which begins with a newline. The newline is skipped unless the file ends in an incomplete line. */
static enum status append(const struct algo_cache *cache, char *line, size_t size, struct err *err)
{
    char last = '\n';
    const char *path = cache->path;
    int fd = cache->held >= 0 ? cache->held : open_locked(path, LOCK_TRIES);
    if (fd < 0) return err_set(err, STATUS_IO, "cannot write %s: %s", path, strerror(errno));
    off_t end = lseek(fd, 0, SEEK_END);
    bool good = end < FILE_MAX || ftruncate(fd, 0) == 0; /* readers stop at FILE_MAX: start over */
    if (end > 0 && end < FILE_MAX) good = pread(fd, &last, 1, end - 1) == 1;
    const char *from = last == '\n' ? line + 1 : line;
    size -= (size_t)(from - line);
    good = good && write(fd, from, size) == (ssize_t)size;
    int error = errno;
    if (fd != cache->held) close(fd);
    return good ? STATUS_OK : err_set(err, STATUS_IO, "cannot write %s: %s", path, strerror(error));
}

static enum status write_line(const struct algo_cache *cache, const struct algo_choice *choice, struct err *err)
{
    char line[ALGO_KIND_BYTES + LINE_BYTES];
    size_t used = (size_t)snprintf(line, sizeof line, "\n%s %s", cache->kind, choice->key);
    for (int w = 0; w < ALGO_WORDS; w++)
        used += (size_t)snprintf(line + used, sizeof line - used, " %" PRIx64, choice->words[w]);
    line[used++] = '\n';
    return append(cache, line, used, err);
}

enum status algo_cache_put(struct algo_cache *cache, const char *key, const uint64_t words[ALGO_WORDS], struct err *err)
{
    struct algo_choice choice;
    if (!*key || strlen(key) >= sizeof choice.key || strpbrk(key, " \n"))
        return err_set(err, STATUS_LIMIT, "algorithm cache: malformed key \"%s\"", key);
    snprintf(choice.key, sizeof choice.key, "%s", key);
    memcpy(choice.words, words, sizeof choice.words);
    if (remember(cache, &choice) != STATUS_OK) return err_set(err, STATUS_NOMEM, "algorithm cache: out of memory");
    return cache->path ? write_line(cache, &choice, err) : STATUS_OK;
}
