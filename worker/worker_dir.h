/* The folder of one worker: its identity (uuid), its saved state, and a lock, so that two processes never share one. */
#ifndef WORKER_WORKER_DIR_H
#define WORKER_WORKER_DIR_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "wire/msg.h"

struct worker_dir {
    char path[CONFIG_PATH_MAX];
    uint8_t uuid[WIRE_UUID];
    int lock_fd; /* -1: not open */
};

/* Make and lock the folder, read or make its uuid. EXISTS: another process has it, for two seconds. INVALID: it is a
 * coordinator's. */
enum status worker_dir_open(struct worker_dir *d, const char *path, struct err *err) MUST_CHECK;
/* Without names from the user: name = host name (then HOST-2, HOST-3, ...), folder ./atoll-worker-NAME: the first that
 * no process has. A given name (not "") is kept. */
enum status worker_dir_choose(struct worker_dir *d, char name[WIRE_NAME_MAX], struct err *err) MUST_CHECK;
void worker_dir_close(struct worker_dir *d);

#endif
