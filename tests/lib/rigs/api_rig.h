/* A run with a real coordinator in a child process, and library workers (include/atoll.h) of its GPT-2 with one layer.
 * "Training" adds a constant to every parameter. */
#ifndef TESTS_LIB_API_RIG_H
#define TESTS_LIB_API_RIG_H

#include <stdint.h>

#include "common/tensor/layout.h"
#include "include/atoll.h"

enum { API_RIG_SEQ = 8, API_RIG_SAMPLES = 100 };

/* Starts the coordinator in tmpdir/run. settings: "section: {key: value}" lines after the defaults (H 2, batch_size 2,
 * local-sgd, 6 steps, fp32). */
void api_rig_start(const char *settings);
/* Kills it, if it still runs. */
void api_rig_stop(void);
const char *api_rig_run(void); /* its run folder */

/* Options of worker `name`, whose folder is tmpdir/name, with all tensors of the run's model. Valid until the next call
 * with this `slot` (0 or 1). */
struct atoll_options api_rig_options(int slot, const char *name);
const struct layout *api_rig_layout(void);

/* atoll_wait until `event` arrives, at most 20 s; other events fail the test. */
void api_rig_wait(struct atoll *a, enum atoll_event event);
/* Waits in turn until each of the two workers has this event. */
void api_rig_wait_both(struct atoll *workers[2], enum atoll_event expected);
/* atoll_wait fails with this status and a text that contains `what`, and does so again. */
void api_rig_fails(struct atoll *a, enum atoll_status expected, const char *what);
/* A whole round: begin, steps, push. Adds `shift` to the parameters. Returns the status of atoll_push. */
enum atoll_status api_rig_round(struct atoll *a, float shift, struct atoll_error *error);

#endif
