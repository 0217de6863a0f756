/* Where a worker finds its coordinator: a join line as it was printed, or the run folder of a coordinator on this
 * machine (which keeps its join line in RUN/address). */
#ifndef WORKER_JOIN_LINE_H
#define WORKER_JOIN_LINE_H

#include <stddef.h>

#include "common/status.h"

/* First line of `path`, without the end of line. NOTFOUND: no such file (yet). */
enum status join_line_read(const char *path, char *out, size_t cap, struct err *err) MUST_CHECK;

#endif
