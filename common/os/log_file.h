/* The log of a process as a file, in addition to the terminal: a run that was started by hand keeps its story. */
#ifndef COMMON_OS_LOG_FILE_H
#define COMMON_OS_LOG_FILE_H

/* Set by a parent that keeps the output of this process in a file already (atoll launch, atoll.launch). */
#define LOGGED_ENV "ATOLL_LOGGED"

/* Appends all lines of the log from here on to DIR/NAME, and makes DIR. Logs a warning and goes on if that fails. Does
 * nothing if LOGGED_ENV is set. */
void log_file_open(const char *dir, const char *name);

#endif
