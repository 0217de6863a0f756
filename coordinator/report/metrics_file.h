/* metrics.jsonl of a run: one object a line, written by one coordinator after the other.
 * - Every line is whole: opening the file drops the torn line that a crash or a full disk left.
 * - A round stands once: see rounds_in_file.
 * - A step may stand twice after a worker reconnects. Its (worker, round, step) is the key. */
#ifndef COORDINATOR_METRICS_FILE_H
#define COORDINATOR_METRICS_FILE_H

#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"
#include "coordinator/engine/state/engine_event.h"

struct metrics_file {
    FILE *file;
    int failed;              /* errno of the first failed write, after which nothing is written; 0: none */
    uint64_t rounds_in_file; /* the last round in the file when it was opened; 0: none */
};

/* Opens RUN/metrics.jsonl for appending. IO; after an error there is nothing to close. */
enum status metrics_file_open(struct metrics_file *m, const char *run_dir, struct err *err) MUST_CHECK;
void metrics_file_close(struct metrics_file *m);
/* Step lines are buffered until the next event of another kind or metrics_file_flush. */
void metrics_file_event(struct metrics_file *m, const struct engine_event *event);
/* IO: this write or an earlier one failed. */
enum status metrics_file_flush(struct metrics_file *m, struct err *err) MUST_CHECK;

#endif
