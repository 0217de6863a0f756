/* Finds the coordinator that a user names. A join line holds a secret, so no message shows its keys. */
#ifndef WIRE_JOIN_TARGET_H
#define WIRE_JOIN_TARGET_H

#include "common/base/status.h"
#include "common/config/config.h"

enum { JOIN_LINE_MAX = 1024 };

/* The variable that holds the same as --join; join_target_read removes it, so that children do not inherit it. */
#define JOIN_ENV "ATOLL_JOIN"

/* A coordinator: one of the two is set. */
struct join_target {
    char line[JOIN_LINE_MAX];      /* join line */
    char run_dir[CONFIG_PATH_MAX]; /* run folder on this machine; it need not exist yet */
};

/* Reads `given`, or ATOLL_JOIN if `given` is NULL: a join line, a file whose first line is one, "-" for the first line
 * of standard input, or a run folder. `given` is a word of the command line: if it is a join line, its keys are
 * overwritten there, and a warning says how to keep them out of the list of processes. NOTFOUND: neither is given;
 * INVALID: a malformed or mistyped join line; IO. */
enum status join_target_read(struct join_target *target, char *given, struct err *err) MUST_CHECK;
/* The same for a library: `given` is not a word of the command line, and ATOLL_JOIN stays. */
enum status join_target_find(struct join_target *target, const char *given, struct err *err) MUST_CHECK;

#endif
