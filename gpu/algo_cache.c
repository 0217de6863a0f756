#include "gpu/algo_cache.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/fileio.h"
#include "common/mem.h"

enum { FILE_MAX = 4 << 20, LINE_BYTES = ALGO_KEY_BYTES + ALGO_WORDS * 17 + 2 };

static enum status keep(struct algo_cache *cache, const struct algo_choice *choice)
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

/* "KEY W0 ... W7"; false: not that. */
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

/* Lines of the file that `cache` has no choice for. */
static enum status read_file(struct algo_cache *cache)
{
    void *data = NULL;
    size_t size;
    struct algo_choice choice;
    uint64_t had[ALGO_WORDS];
    if (!cache->path || file_read(cache->path, FILE_MAX, &data, &size, NULL) != STATUS_OK) return STATUS_OK;
    enum status status = STATUS_OK;
    char *rest = data;
    for (char *line = strsep(&rest, "\n"); line && status == STATUS_OK; line = strsep(&rest, "\n"))
        if (parse(line, &choice) && !algo_cache_find(cache, choice.key, had)) status = keep(cache, &choice);
    mem_free(data);
    return status;
}

/* NULL, too, where there is no place. Makes the folder. */
static char *place_of(const char *gpu, unsigned version)
{
    const char *set = getenv("ATOLL_ALGO_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *path = mem_alloc(FILEIO_PATH_MAX, 1);
    int n = -1;
    if (!path) return NULL;
    if (set) n = *set ? snprintf(path, FILEIO_PATH_MAX, "%s", set) : -1;
    else if (xdg && *xdg == '/') n = snprintf(path, FILEIO_PATH_MAX, "%s/atoll", xdg);
    else if (home && *home == '/') n = snprintf(path, FILEIO_PATH_MAX, "%s/.cache/atoll", home);
    if (n > 0 && n < FILEIO_PATH_MAX && !set) {
        size_t used = (size_t)n;
        if (dir_make(path, NULL) == STATUS_OK)
            n += snprintf(path + used, FILEIO_PATH_MAX - used, "/gemm-%s-%u.txt", gpu, version);
        else
            n = -1;
        for (char *c = path + used + 1; n > 0 && n < FILEIO_PATH_MAX && *c; c++)
            if (!isalnum((unsigned char)*c) && *c != '-' && *c != '.') *c = '-';
    }
    if (n > 0 && n < FILEIO_PATH_MAX) return path;
    mem_free(path);
    return NULL;
}

enum status algo_cache_open(struct algo_cache *cache, const char *gpu, unsigned version)
{
    *cache = (struct algo_cache){.path = place_of(gpu, version)};
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

/* Beside its place under a name of this thread's own, then renamed: two writers do not meet in one file. */
static enum status write_file(const struct algo_cache *cache, struct err *err)
{
    char own[FILEIO_PATH_MAX + 64];
    char *text = mem_alloc(cache->n, LINE_BYTES);
    size_t used = 0;
    if (!text) return err_set(err, STATUS_NOMEM, "no memory for %s", cache->path);
    for (size_t i = 0; i < cache->n; i++) { /* a line has room for the longest */
        used += (size_t)snprintf(text + used, LINE_BYTES, "%s", cache->all[i].key);
        for (int w = 0; w < ALGO_WORDS; w++)
            used += (size_t)snprintf(text + used, 18, " %" PRIx64, cache->all[i].words[w]);
        text[used++] = '\n';
    }
    snprintf(own, sizeof own, "%s.%ld.%p", cache->path, (long)getpid(), (const void *)cache);
    enum status status = file_write(own, text, used, err);
    mem_free(text);
    if (status == STATUS_OK && rename(own, cache->path) != 0) {
        status = err_set(err, STATUS_IO, "cannot rename %s: %s", own, strerror(errno));
        (void)unlink(own);
    }
    return status;
}

enum status algo_cache_put(struct algo_cache *cache, const char *key, const uint64_t words[ALGO_WORDS],
                           struct err *err)
{
    struct algo_choice choice;
    if (!*key || strlen(key) >= sizeof choice.key || strpbrk(key, " \n"))
        return err_set(err, STATUS_LIMIT, "not the name of a matrix product: \"%s\"", key);
    snprintf(choice.key, sizeof choice.key, "%s", key);
    memcpy(choice.words, words, sizeof choice.words);
    if (keep(cache, &choice) != STATUS_OK || read_file(cache) != STATUS_OK)
        return err_set(err, STATUS_NOMEM, "no memory for the choice of an algorithm");
    return cache->path ? write_file(cache, err) : STATUS_OK;
}
