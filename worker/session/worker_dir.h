/* The folder of one worker: its key, its saved state, and a lock that keeps a second process out. */
#ifndef WORKER_SESSION_WORKER_DIR_H
#define WORKER_SESSION_WORKER_DIR_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "wire/msg.h"
#include "wire/transport.h"

struct worker_dir {
    char path[CONFIG_PATH_MAX];
    struct transport_key key;
    bool key_is_new;          /* made by this call */
    int lock_fd;              /* -1: not open */
    char base[WIRE_NAME_MAX]; /* the name that the host or the folder gave the worker; "": the user gave it */
};

/* Makes and locks the folder, reads or makes its key (DIR/key, mode 0600). Waits up to two seconds for the lock, and up
 * to 15 s more if the process that took it has ended (common/os/lock_holder.h): it holds this worker's saved state.
 * EXISTS: another process holds it. INVALID: the folder belongs to a coordinator, or its path is too long. CORRUPT:
 * malformed key. IO. */
enum status worker_dir_open(struct worker_dir *d, const char *path, struct err *err) MUST_CHECK;
/* Opens ./atoll-worker-NAME. If `name` is "", sets it to the first free of HOST, HOST-2, HOST-3, ... The folder of
 * a running worker is passed at once, that of an ended one after 15 s. A given name is kept. Errors as worker_dir_open.
 */
enum status worker_dir_choose(struct worker_dir *d, char name[WIRE_NAME_MAX], struct err *err) MUST_CHECK;
/* Opens `path` and, if `name` is "", names the worker after the folder; path NULL: worker_dir_choose. A name of
 * worker_dir_rename is kept in DIR/name, and comes first. Errors as worker_dir_open. */
enum status worker_dir_open_named(struct worker_dir *d, const char *path, char name[WIRE_NAME_MAX],
                                  struct err *err) MUST_CHECK;
/* Reads the key in a worker's folder, also while the worker runs. NOTFOUND, CORRUPT, IO; INVALID: the path is too long.
 */
enum status worker_dir_read_key(struct transport_key *key, const char *folder, struct err *err) MUST_CHECK;
/* INVALID: `name` is not a worker's name, or cannot name the folder and the worker has no --dir. */
enum status worker_name_check(const char *name, bool has_dir, struct err *err) MUST_CHECK;
/* For a worker whose name is not given, and belongs to another worker of the run: the next one of BASE-2, BASE-3, ...,
 * in DIR/name, and a new key. The coordinator may have enrolled the old key under the old name. EXISTS: no name is
 * left; IO. */
enum status worker_dir_rename(struct worker_dir *d, char name[WIRE_NAME_MAX], struct err *err) MUST_CHECK;
/* Releases the lock. */
void worker_dir_close(struct worker_dir *d);

#endif
