/* The schema of `atoll status --json` and STATUS_REPLY: one set of keys for a running, a stopped and a finished run
 * (docs/run-folder.md). */
#ifndef COMMON_RUN_STATUS_H
#define COMMON_RUN_STATUS_H

#include <jansson.h>
#include <stdbool.h>

/* An object with all keys in their order: null, or an empty list or object. The caller owns it. NULL: no memory. */
json_t *run_status_new(void);
/* Replaces the value of a key of the schema; takes ownership of `value`. */
void run_status_set(json_t *status, const char *key, json_t *value);
/* The same with null for a number that is not finite. */
void run_status_real(json_t *status, const char *key, double value);
/* Sets round, rounds and percent. rounds 0: not known yet. */
void run_status_progress(json_t *status, json_int_t round, json_int_t rounds);
/* Sets budget: hours and gb that are used, NaN: unknown; max_hours and max_gb, 0: no limit. */
void run_status_budget(json_t *status, double hours, double max_hours, double gb, double max_gb);
/* True if the key "state" of a status, or of one of its workers, is `state`. */
bool run_status_is(const json_t *object, const char *state);

#endif
