/* What verbs find in a run folder. */
#ifndef CLI_RUN_FOLDER_H
#define CLI_RUN_FOLDER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

/* DIR/NAME into out; LIMIT when it does not fit. */
enum status run_folder_path(char *out, size_t cap, const char *dir, const char *name, struct err *err) MUST_CHECK;
/* The folder's path without slashes at its end: what is printed and built upon. */
enum status run_folder_name(char *out, size_t cap, const char *path, struct err *err) MUST_CHECK;
/* The Hugging Face folder meant by `path`: itself when it holds config.json, otherwise the newest checkpoint of the run
 * folder. NOTFOUND says what is missing; CORRUPT: what says which is the newest names none. */
enum status run_folder_checkpoint(const char *path, char *out, size_t cap, struct err *err) MUST_CHECK;
/* First line of a file without its end. NOTFOUND when there is no such file or the line is empty; out is set on success
 * only. */
enum status run_folder_read_line(const char *path, char *out, size_t cap, struct err *err) MUST_CHECK;
/* The last round that RUN/metrics.jsonl tells of, an object the caller decrefs; NULL when it tells of none. */
json_t *run_folder_last_round(const char *run);
/* There is no such folder, or nothing in it. */
bool run_folder_empty(const char *path);

#endif
