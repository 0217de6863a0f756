/* Where a worker finds its coordinator: a join line as it was printed, or the run folder of a coordinator on this
 * machine (which keeps its join line in RUN/address). */
#ifndef WORKER_JOIN_LINE_H
#define WORKER_JOIN_LINE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"
#include "wire/msg.h"

/* First line of `path`, without the end of line. NOTFOUND: no such file (yet); CORRUPT: no address is in it. */
enum status join_line_read(const char *path, char *out, size_t cap, struct err *err) MUST_CHECK;
/* The id of the run that the file (RUN/run_id) names; zeros when there is none, as in folders of older versions. */
void join_run_id_read(const char *path, uint8_t run_id[WIRE_UUID]);
/* The run's summary is written, and no coordinator is left to tell late workers so. */
bool join_run_is_over(const char *run_dir);

#endif
