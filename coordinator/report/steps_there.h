/* Which step records metrics.jsonl has. A worker sends those again that may not have arrived (worker/metrics_queue.h):
 * who has them knows them by what they say, also after a restart. A step that was trained again is another record, for
 * it took another time. */
#ifndef COORDINATOR_STEPS_THERE_H
#define COORDINATOR_STEPS_THERE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "common/base/status.h"

enum { STEPS_THERE_SETS = 1 << 14, STEPS_THERE_WAYS = 8, STEPS_THERE_TAIL = 16 << 20 };
/* Of a number in the file. */
enum { STEPS_THERE_DIGITS = 13 };

/* Fingerprints; the low bits give the set, which keeps the newest ones, the newest first. What is forgotten so may
 * stand in the file twice. 0: none. */
struct steps_there {
    uint64_t (*sets)[STEPS_THERE_WAYS]; /* [STEPS_THERE_SETS] */
};

/* Those of the last STEPS_THERE_TAIL bytes of `file`, whose place changes. */
enum status steps_there_init(struct steps_there *s, FILE *file) MUST_CHECK;
void steps_there_finish(struct steps_there *s);
/* step: the object of a line with "event": "step". False: it is there already. */
bool steps_there_add(struct steps_there *s, const json_t *step);

#endif
