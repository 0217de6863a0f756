#include "coordinator/admission/worker_list.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/number.h"
#include "common/base/text.h"
#include "common/os/fileio.h"

enum { DAY_S = 86400, KEY_DIGITS = 2 * WIRE_KEY, LINE_MAX_BYTES = KEY_DIGITS + 64 + WIRE_NAME_MAX };

static const char *const states[] = {"enrolled", "revoked"};

static void path_of(const char *run_dir, const char *suffix, char out[FILEIO_PATH_MAX])
{
    snprintf(out, FILEIO_PATH_MAX, "%s/worker-keys%s", run_dir, suffix);
}

/* Reads one word of a line and advances *at behind the space that ends it. */
static bool take_word(const char **at, char *word, size_t cap)
{
    size_t n = strcspn(*at, " ");
    if (!n || n >= cap || (*at)[n] != ' ') return false;
    memcpy(word, *at, n);
    word[n] = '\0';
    *at += n + 1;
    return true;
}

static bool parse_line(const char *line, struct listed_worker *w)
{
    char key[KEY_DIGITS + 1], state[16], enrolled[24], readmit[24];
    *w = (struct listed_worker){.enrolled_s = 0};
    if (!take_word(&line, key, sizeof key) || strlen(key) != KEY_DIGITS || !number_hex(key, w->key, WIRE_KEY) ||
        !take_word(&line, state, sizeof state) || !take_word(&line, enrolled, sizeof enrolled) ||
        !take_word(&line, readmit, sizeof readmit))
        return false;
    w->revoked = !strcmp(state, states[true]);
    size_t n = strlen(line);
    if (!n || n >= sizeof w->name || !text_is_clean(line, n, false)) return false;
    memcpy(w->name, line, n + 1);
    return (w->revoked || !strcmp(state, states[false])) && number_whole(enrolled, &w->enrolled_s) &&
           number_whole(readmit, &w->readmit_s);
}

static enum status parse(struct worker_list *list, char *text, const char *path, struct err *err)
{
    unsigned number = 0;
    for (char *save = NULL, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        struct listed_worker w;
        number++;
        if (!parse_line(line, &w))
            return err_set(err, STATUS_CORRUPT,
                           "%.300s, line %u: expected KEY STATE TIME TIME NAME: correct or remove it", path, number);
        if (list->n == WORKER_LIST_MAX)
            return err_set(err, STATUS_LIMIT, "%.300s has more than %d lines: remove some", path, WORKER_LIST_MAX);
        list->workers[list->n++] = w;
    }
    return STATUS_OK;
}

enum status worker_list_load(struct worker_list *list, const char *run_dir, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    void *data;
    size_t size, lines = 0;
    path_of(run_dir, "", path);
    *list = (struct worker_list){.n = 0};
    enum status status = file_read(path, (size_t)WORKER_LIST_MAX * LINE_MAX_BYTES, &data, &size, err);
    if (status != STATUS_OK && status != STATUS_NOTFOUND) return status;
    if (status == STATUS_NOTFOUND) data = NULL, size = 0;
    for (size_t i = 0; i < size; i++) lines += ((char *)data)[i] == '\n';
    list->workers = mem_alloc(lines + 1, sizeof *list->workers);
    status = list->workers ? STATUS_OK : err_set(err, STATUS_NOMEM, "no memory for %.300s", path);
    if (status == STATUS_OK && data) status = parse(list, data, path, err);
    mem_free(data);
    if (status != STATUS_OK) worker_list_free(list);
    return status;
}

enum status worker_list_save(const struct worker_list *list, const char *run_dir, struct err *err)
{
    char path[FILEIO_PATH_MAX], key[KEY_DIGITS + 1], *text = mem_alloc(list->n + 1, LINE_MAX_BYTES);
    size_t size = 0;
    path_of(run_dir, "", path);
    if (!text) return err_set(err, STATUS_NOMEM, "no memory for %.300s", path);
    for (size_t i = 0; i < list->n; i++) {
        const struct listed_worker *w = &list->workers[i];
        size += (size_t)snprintf(text + size, LINE_MAX_BYTES, "%s %s %" PRIu64 " %" PRIu64 " %s\n",
                                 number_hex_text(w->key, WIRE_KEY, key), states[w->revoked], w->enrolled_s,
                                 w->readmit_s, w->name);
    }
    enum status status = file_write_private(path, text, size, err);
    mem_free(text);
    return status;
}

void worker_list_free(struct worker_list *list)
{
    mem_free(list->workers);
    *list = (struct worker_list){.n = 0};
}

enum status worker_list_lock(const char *run_dir, int *fd_p, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    path_of(run_dir, ".lock", path);
    TRY(file_open_plain(path, O_RDWR | O_CREAT, FILE_PRIVATE, fd_p, err));
    if (file_lock(*fd_p, true)) return STATUS_OK;
    close(*fd_p);
    return err_set(err, STATUS_STATE, "another program has held %.300s for 2 s: try again", path);
}

struct listed_worker *worker_list_find(const struct worker_list *list, const uint8_t key[WIRE_KEY])
{
    for (size_t i = 0; i < list->n; i++)
        if (!memcmp(list->workers[i].key, key, WIRE_KEY)) return &list->workers[i];
    return NULL;
}

/* Makes room in a full list; false: every key has a place or is new. */
static bool drop_oldest(struct worker_list *list, const struct worker_places *places)
{
    uint64_t before = (uint64_t)time(NULL) - DAY_S;
    struct listed_worker *oldest = NULL;
    for (size_t i = 0; places && i < list->n; i++) {
        struct listed_worker *w = &list->workers[i];
        if (w->enrolled_s > before || (oldest && w->enrolled_s >= oldest->enrolled_s)) continue;
        if (w->revoked || !places->has(places->ctx, w->key)) oldest = w;
    }
    if (!oldest) return false;
    log_info("the list of workers is full: removing the key of '%s', which has no place in the run", oldest->name);
    memmove(oldest, oldest + 1, (size_t)(&list->workers[--list->n] - oldest) * sizeof *oldest);
    return true;
}

enum status worker_list_add(struct worker_list *list, const uint8_t key[WIRE_KEY], const char *name,
                            const struct worker_places *places, struct err *err)
{
    const struct listed_worker *known = worker_list_find(list, key);
    assert(name[0] && strlen(name) < WIRE_NAME_MAX);
    if (known && known->revoked)
        return err_set(err, STATUS_REFUSED, "the key of worker '%s' was revoked: ask the operator of this run",
                       known->name);
    if (known) return STATUS_OK;
    if (list->n == WORKER_LIST_MAX && !drop_oldest(list, places))
        return err_set(err, STATUS_LIMIT,
                       "the list of workers is full (%d keys, each with a place in the run or enrolled in the last "
                       "day): remove lines from RUN/worker-keys",
                       WORKER_LIST_MAX);
    struct listed_worker *workers = mem_alloc(list->n + 1, sizeof *workers);
    if (!workers) return err_set(err, STATUS_NOMEM, "no memory for the list of workers");
    if (list->n) memcpy(workers, list->workers, list->n * sizeof *workers);
    mem_free(list->workers);
    list->workers = workers;
    struct listed_worker *w = &workers[list->n++];
    memcpy(w->key, key, WIRE_KEY);
    snprintf(w->name, sizeof w->name, "%s", name);
    w->enrolled_s = (uint64_t)time(NULL);
    if (list->n == WORKER_LIST_MAX / 4 * 3)
        log_warn("RUN/worker-keys holds %zu keys, and %d are the most: when it is full, the oldest key without a place "
                 "goes; remove lines that are not needed",
                 list->n, WORKER_LIST_MAX);
    return STATUS_OK;
}

size_t worker_list_each(struct worker_list *list, const char *word, void (*change)(struct listed_worker *w))
{
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) {
        struct listed_worker *w = &list->workers[i];
        char key[KEY_DIGITS + 1];
        if (w->revoked || (strcmp(w->name, word) != 0 && strcmp(number_hex_text(w->key, WIRE_KEY, key), word) != 0))
            continue;
        change(w);
        n++;
    }
    return n;
}
