/* Reads files of a run folder for the verbs. */
#ifndef COORDINATOR_RUN_FOLDER_H
#define COORDINATOR_RUN_FOLDER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

/* Writes DIR/NAME to out[cap]. LIMIT if it does not fit. */
enum status run_folder_path(char *out, size_t cap, const char *dir, const char *name, struct err *err) MUST_CHECK;
/* Copies a path to out[cap] without slashes at its end. LIMIT if it does not fit. */
enum status run_folder_name(char *out, size_t cap, const char *path, struct err *err) MUST_CHECK;
/* Finds the Hugging Face folder that `path` means: itself if it holds config.json, otherwise the newest checkpoint of
 * the run folder. A path .../latest gives the folder that it names now. NOTFOUND names the missing file; CORRUPT if
 * `latest` names no checkpoint. */
enum status run_folder_checkpoint(const char *path, char *out, size_t cap, struct err *err) MUST_CHECK;
/* Checks a checkpoint of run_folder_checkpoint as the coordinator does when it loads one. The error says what is
 * damaged and what to do. Writes what was checked, for a line of output. A folder without coordinator_state.bin has no
 * record to check against: names, shapes, sizes and finite values are then checked by its reader. */
enum status run_folder_check(const char *folder, bool *recorded_p, const char **what_p, struct err *err) MUST_CHECK;
/* Writes which round a checkpoint holds and how far its run is: "round 20 of runs/first, which is at round 24 of 30". A
 * folder that is no checkpoint of a run gives "". Returns out. */
const char *run_folder_age(const char *folder, char *out, size_t cap);
/* Reads the first line of a file without its line end. NOTFOUND if the file is missing or the line is empty, LIMIT if
 * it is too long. out[cap] is set on success only. */
enum status run_folder_read_line(const char *path, char *out, size_t cap, struct err *err) MUST_CHECK;
/* Returns the last event of this kind ("round") in RUN/metrics.jsonl, an object that the caller decrefs; NULL without
 * one. */
json_t *run_folder_last_event(const char *run, const char *kind);
/* Returns true if DIR/NAME exists. */
bool run_folder_has(const char *dir, const char *name);
/* Returns true if a live coordinator ("lock") or atoll launch ("launch.lock") holds this lock of the folder. */
bool run_folder_locked(const char *dir, const char *lock);
/* Returns true if the folder is missing or empty. */
bool run_folder_empty(const char *path);

#endif
