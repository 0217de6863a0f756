/* RUN/worker-keys: the workers of a run, one line for each key. The coordinator adds keys that enrol, the verbs `atoll
 * workers` and `atoll revoke` edit the list, with and without a running coordinator.
 *
 *     KEY STATE ENROLLED READMIT NAME
 *
 * KEY: public key, 64 hexadecimal digits. STATE: enrolled or revoked. ENROLLED, READMIT: seconds since the epoch; 0:
 * never. NAME: to the end of the line.
 *
 * - The file has mode 0600 and is replaced atomically. A writer holds RUN/worker-keys.lock while it reads, changes and
 *   writes the list. A reader needs no lock.
 * - A name may have several keys: a worker that lost its folder enrols again.
 * - A full list loses the key that enrolled first, of those without a place in the run and enrolled for a day. Its
 *   worker enrols again; a revoked one cannot, because the join line has changed since. */
#ifndef COORDINATOR_WORKER_LIST_H
#define COORDINATOR_WORKER_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "wire/msg.h"

enum { WORKER_LIST_MAX = 4096 };

struct listed_worker {
    uint8_t key[WIRE_KEY];
    char name[WIRE_NAME_MAX];
    bool revoked;
    uint64_t enrolled_s; /* time of its enrolment */
    uint64_t readmit_s;  /* time at which an operator readmitted it; 0: never */
};

struct worker_list {
    struct listed_worker *workers; /* [n], owned */
    size_t n;
};

/* A missing file is an empty list. CORRUPT names the line; IO, NOMEM, LIMIT. The caller frees the list. */
enum status worker_list_load(struct worker_list *list, const char *run_dir, struct err *err) MUST_CHECK;
enum status worker_list_save(const struct worker_list *list, const char *run_dir, struct err *err) MUST_CHECK;
void worker_list_free(struct worker_list *list);

/* Take the lock; the caller closes *fd_p. Waits up to two seconds. */
enum status worker_list_lock(const char *run_dir, int *fd_p, struct err *err) MUST_CHECK;

/* NULL: not in the list. */
struct listed_worker *worker_list_find(const struct worker_list *list, const uint8_t key[WIRE_KEY]);
/* Whether this worker has a place in the run. */
struct worker_places {
    bool (*has)(void *ctx, const uint8_t key[WIRE_KEY]);
    void *ctx;
};

/* Add a key. One that is there is left as it is. places NULL: unknown, a full list loses no key. REFUSED: the key is
 * revoked; LIMIT: the list is full; NOMEM. */
enum status worker_list_add(struct worker_list *list, const uint8_t key[WIRE_KEY], const char *name,
                            const struct worker_places *places, struct err *err) MUST_CHECK;
/* The number of keys that are not revoked and whose name, or whose key in hex, is `word`. Calls `change` for each. */
size_t worker_list_each(struct worker_list *list, const char *word, void (*change)(struct listed_worker *w));

#endif
