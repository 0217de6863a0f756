/* Reads the join line of a coordinator on this machine from its run folder (RUN/address), and the state of that run. */
#ifndef WORKER_JOIN_LINE_H
#define WORKER_JOIN_LINE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"
#include "wire/msg.h"

/* Copies the first line of `path` to out[cap]. NOTFOUND: no such file yet; CORRUPT: the line is not an address. */
enum status join_line_read(const char *path, char *out, size_t cap, struct err *err) MUST_CHECK;
/* Reads the run's id from `path` (RUN/run_id); zeros if the file is missing or malformed. */
void join_run_id_read(const char *path, uint8_t run_id[WIRE_UUID]);
/* The run is complete (RUN/summary.json exists) and its coordinator has exited (RUN/lock is free). */
bool join_run_is_over(const char *run_dir);

#endif
