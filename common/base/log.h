/* Log lines with a level, written to stderr or to a sink of the caller.
 *
 * - error: data was lost or the program cannot continue. warn: the program continues, but the user should act. info: at
 *   most a few lines a round. debug: a few lines a step. trace: every message.
 * - Messages are lower case: event first, then values with units.
 * - Thread-safe: one line is one write. */
#ifndef COMMON_LOG_H
#define COMMON_LOG_H

#include <stdbool.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_TRACE };

/* Receives one line. `line` has no newline and is valid only during the call. Called under the log's lock. */
typedef void (*log_sink_fn)(void *ctx, enum log_level level, const char *line);

void log_set_level(enum log_level level);
/* Lines of this level are written: for lines that cost work. */
bool log_enabled(enum log_level level);
/* Replace the sink; NULL restores the default one (stderr). */
void log_set_sink(log_sink_fn sink, void *ctx);
/* Write the lines of the default sink to this file, too; -1: to none. The caller owns the descriptor. */
void log_set_copy(int fd);
/* Write a line to the copy only: it was shown already, in another form. */
void log_copy(const char *line);
/* Name at the start of every line of the default sink ("coordinator", "worker-0"); copied. */
void log_set_name(const char *name);
/* "info" -> LOG_INFO; returns -1 when the name is unknown. */
int log_level_parse(const char *name);

/* Write a printf-formatted line, cut at 1023 bytes, if `level` is enabled. */
void log_write(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_write(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)
#define log_trace(...) log_write(LOG_TRACE, __VA_ARGS__)

#endif
