/* What the verbs about a stopped run share: the run folder, its lock, and one line for each reason against it. */
#ifndef CLI_STOPPED_RUN_H
#define CLI_STOPPED_RUN_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/os/fileio.h"

struct stopped_run {
    char dir[FILEIO_PATH_MAX];
    int lock; /* -1: not taken */
};

/* Checks that `path` is the folder of a whole run that nothing uses, and takes its lock; `to_do`: "then repair the
 * run", for the line if it is in use. NOTFOUND, EXISTS, INVALID. Close it in either case. */
enum status stopped_run_open(struct stopped_run *r, const char *path, const char *to_do, struct err *err) MUST_CHECK;
/* The same for a reader: changes nothing in the folder, which may be read-only. */
enum status stopped_run_open_read(struct stopped_run *r, const char *path, const char *to_do,
                                  struct err *err) MUST_CHECK;
void stopped_run_close(struct stopped_run *r);

#endif
