/* The links of `atoll launch --link`: one relay for each worker whose link is not `none`. The relay writes a join file
 * (mode 0600, because the join line is a secret), with which the worker joins through it. */
#ifndef CLI_LAUNCH_LINK_H
#define CLI_LAUNCH_LINK_H

#include <stddef.h>

#include "cli/launch/supervisor.h"
#include "common/config/link_spec.h"
#include "common/os/fileio.h"

struct launch_link {
    struct link_spec *specs; /* [n], one for each worker; NULL: no links */
    size_t n;
    char folder[FILEIO_PATH_MAX];        /* RUN/links; "": not made */
    char (*join_files)[FILEIO_PATH_MAX]; /* [n], one for each relay */
};

/* Parses the SPEC of --link for n workers; "" and `none` need no relay. INVALID, NOMEM. */
enum status launch_link_parse(struct launch_link *l, const char *text, size_t n, struct err *err) MUST_CHECK;
/* Makes RUN/links and the relays of the supervisor, whose workers exist. `program` is the path of atoll. */
enum status launch_link_build(struct launch_link *l, struct supervisor *s, const char *program, const char *run,
                              const char *logs, struct err *err) MUST_CHECK;
/* Returns the file with which worker i joins; NULL: it has no relay. */
const char *launch_link_join_file(const struct launch_link *l, const struct supervisor *s, size_t i);
/* Removes RUN/links and frees everything, also the relays. */
void launch_link_finish(struct launch_link *l, struct supervisor *s);

#endif
