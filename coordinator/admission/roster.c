#include "coordinator/admission/roster.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "coordinator/admission/run_keys.h"

enum { PLACES = 2 * WORKER_LIST_MAX };
_Static_assert(WORKER_LIST_MAX <= UINT16_MAX, "a place holds the number of any worker");

struct roster {
    const char *run_dir;
    struct stat seen; /* of the file when it was read; zeros: it was missing */
    pthread_mutex_t lock;
    uint8_t enrol_key[WIRE_KEY];
    struct worker_list list;
    uint16_t places[PLACES]; /* hash table of the list: numbers of workers, from 1; 0: free */
};

/* The verbs replace the file, so a change shows as another inode, time or size. */
static struct stat stat_of(const char *run_dir)
{
    char path[FILEIO_PATH_MAX];
    struct stat st;
    snprintf(path, sizeof path, "%s/worker-keys", run_dir);
    return stat(path, &st) ? (struct stat){0} : st;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* The place of a key, or the free one where it would be: the list fills at most half of the places. */
static uint16_t *place_of(struct roster *r, const uint8_t key[WIRE_KEY])
{
    size_t at = hash64(key, WIRE_KEY) % PLACES;
    while (r->places[at] && memcmp(r->list.workers[r->places[at] - 1].key, key, WIRE_KEY) != 0) at = (at + 1) % PLACES;
    return &r->places[at];
}

static void fill_places(struct roster *r)
{
    assert(r->list.n <= WORKER_LIST_MAX);
    memset(r->places, 0, sizeof r->places);
    for (size_t i = 0; i < r->list.n; i++) {
        uint16_t *place = place_of(r, r->list.workers[i].key);
        if (!*place) *place = (uint16_t)(i + 1); /* of equal lines the first counts */
    }
}

/* Takes over `list`. */
static void replace(struct roster *r, struct worker_list *list)
{
    pthread_mutex_lock(&r->lock);
    struct worker_list before = r->list;
    r->list = *list;
    fill_places(r);
    pthread_mutex_unlock(&r->lock);
    worker_list_free(&before);
}

enum status roster_open(struct roster **r_p, const char *run_dir, const uint8_t enrol_key[WIRE_KEY], struct err *err)
{
    struct roster *r = mem_alloc(1, sizeof *r);
    if (!r) return err_set(err, STATUS_NOMEM, "no memory for the list of workers");
    r->run_dir = run_dir;
    r->seen = stat_of(run_dir);
    memcpy(r->enrol_key, enrol_key, WIRE_KEY);
    enum status status = worker_list_load(&r->list, run_dir, err);
    if (status != STATUS_OK) {
        mem_free(r);
        return status;
    }
    fill_places(r);
    pthread_mutex_init(&r->lock, NULL);
    *r_p = r;
    return STATUS_OK;
}

void roster_close(struct roster *r)
{
    if (!r) return;
    worker_list_free(&r->list);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

enum engine_right roster_right(struct roster *r, const uint8_t key[WIRE_KEY], char name[WIRE_NAME_MAX])
{
    enum engine_right right = ENGINE_RIGHT_NONE;
    name[0] = '\0';
    pthread_mutex_lock(&r->lock);
    uint16_t number = *place_of(r, key);
    const struct listed_worker *w = number ? &r->list.workers[number - 1] : NULL;
    if (!memcmp(key, r->enrol_key, WIRE_KEY)) {
        right = ENGINE_RIGHT_ENROL;
    } else if (w) {
        right = w->revoked ? ENGINE_RIGHT_NONE : ENGINE_RIGHT_WORKER;
        memcpy(name, w->name, WIRE_NAME_MAX);
    }
    pthread_mutex_unlock(&r->lock);
    return right;
}

bool roster_admits(void *roster, const uint8_t key[WIRE_KEY])
{
    char name[WIRE_NAME_MAX];
    return roster_right(roster, key, name) != ENGINE_RIGHT_NONE;
}

enum status roster_enrol(struct roster *r, const uint8_t key[WIRE_KEY], const char *name,
                         const struct worker_places *places, struct err *err)
{
    struct worker_list list;
    int lock;
    TRY(worker_list_lock(r->run_dir, &lock, err));
    enum status status = worker_list_load(&list, r->run_dir, err);
    if (status == STATUS_OK) {
        bool known = worker_list_find(&list, key) != NULL;
        status = worker_list_add(&list, key, name, places, err);
        if (status == STATUS_OK && !known) status = worker_list_save(&list, r->run_dir, err);
        if (status != STATUS_OK) worker_list_free(&list);
    }
    /* `seen` stays: if a verb changed the list meanwhile, roster_poll reports it. */
    if (status == STATUS_OK) replace(r, &list);
    close(lock);
    return status;
}

/* RUN/keys may have another enrolment key. The coordinator's own key never changes while it runs. */
static void follow_keys(struct roster *r)
{
    char path[FILEIO_PATH_MAX];
    struct run_keys keys;
    snprintf(path, sizeof path, "%s/keys", r->run_dir);
    if (!file_exists(path) || run_keys_read(r->run_dir, &keys, NULL) != STATUS_OK) return;
    pthread_mutex_lock(&r->lock);
    bool changed = memcmp(r->enrol_key, keys.enrol_public, WIRE_KEY) != 0;
    memcpy(r->enrol_key, keys.enrol_public, WIRE_KEY);
    pthread_mutex_unlock(&r->lock);
    explicit_bzero(&keys, sizeof keys);
    if (changed) log_info("the join line has changed: new workers need the one in %s/address", r->run_dir);
}

bool roster_poll(struct roster *r)
{
    struct stat now = stat_of(r->run_dir);
    struct worker_list list;
    struct err err = {0};
    static const struct stat missing;
    /* A missing list revokes nobody: the run folder is being removed. */
    if (same_file(&now, &r->seen) || same_file(&now, &missing)) return false;
    r->seen = now;
    if (worker_list_load(&list, r->run_dir, &err) != STATUS_OK) {
        log_error("keeping the previous list of workers: %s", err.msg);
        return false;
    }
    replace(r, &list);
    follow_keys(r);
    return true;
}

enum status roster_each(struct roster *r, roster_each_fn *each, void *ctx, struct err *err)
{
    /* Only this thread replaces the list: it needs no lock to read, and `each` may call the other functions. */
    for (size_t i = 0; i < r->list.n; i++) TRY(each(ctx, &r->list.workers[i], err));
    return STATUS_OK;
}
