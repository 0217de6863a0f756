/* What each key may do at a running coordinator: the enrolment key of RUN/keys, and the workers of RUN/worker-keys.
 *
 * - The transport's thread asks roster_admits; the coordinator's thread calls the other functions. A lock guards the
 *   content.
 * - The verbs edit the files at any time: roster_poll reads them again when they have changed. */
#ifndef COORDINATOR_ROSTER_H
#define COORDINATOR_ROSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "coordinator/admission/worker_list.h"
#include "coordinator/engine/state/engine_io.h"

struct roster;

/* Reads the list of workers. run_dir is borrowed. Errors as worker_list_load. */
enum status roster_open(struct roster **r_p, const char *run_dir, const uint8_t enrol_key[WIRE_KEY],
                        struct err *err) MUST_CHECK;
void roster_close(struct roster *r); /* accepts NULL */

/* transport_access.admits: the enrolment key, and workers that are enrolled. */
bool roster_admits(void *roster, const uint8_t key[WIRE_KEY]);
/* The right of a key, and the name of a worker. */
enum engine_right roster_right(struct roster *r, const uint8_t key[WIRE_KEY], char name[WIRE_NAME_MAX]);
/* Adds a worker, durably. Errors as worker_list_add, and of the file. */
enum status roster_enrol(struct roster *r, const uint8_t key[WIRE_KEY], const char *name,
                         const struct worker_places *places, struct err *err) MUST_CHECK;
/* Reads both files again if the list of workers has changed since the last call: `atoll revoke` changes the enrolment
 * key first. True: it has. A damaged list is logged, and the last good one stays; so it does if the file is missing. */
bool roster_poll(struct roster *r);
typedef enum status roster_each_fn(void *ctx, const struct listed_worker *w, struct err *err);
/* Calls `each` for every worker in the list, until it fails. */
enum status roster_each(struct roster *r, roster_each_fn *each, void *ctx, struct err *err) MUST_CHECK;

#endif
