/* A status (common/os/run_status.h) as text for people: unknown values and zeros are left out. */
#ifndef CLI_STATUS_VIEW_H
#define CLI_STATUS_VIEW_H

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

/* Prints lines of the run, then a table of its workers, to a page of `width` columns; 0: no limit. `end` ends each
 * line. A status of another version may lack any key. */
void status_view_print(const json_t *status, unsigned width, const char *end, FILE *out);
/* Writes the status as one line, for --watch into a pipe. */
void status_view_line(const json_t *status, char *line, size_t cap);

#endif
