/* What a coordinator tells people and scripts: metrics.jsonl (coordinator/report/metrics_file.h), one line a round on
 * standard output, summary.json. */
#ifndef COORDINATOR_REPORT_H
#define COORDINATOR_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "coordinator/engine/engine_event.h"
#include "coordinator/report/metrics_file.h"

struct report {
    const struct config *config; /* borrowed */
    struct metrics_file metrics;
    FILE *out;     /* where lines go, borrowed */
    bool terminal; /* out is one */
    bool bar;      /* a progress bar is drawn: for a terminal, or for atoll launch, which says so in
                      ATOLL_PROGRESS_BAR and takes what ends with \r as one */
    bool bar_shown;
    uint64_t told;               /* the last round that there is a line of */
    uint64_t up, down;           /* bytes on the socket, of this process */
    uint64_t line_up, line_down; /* as of the last round line */
    double round_s;              /* smoothed seconds of a round */
    uint64_t held;               /* rounds since the last line (ddp prints every log.every_steps) */
    double held_s;
};

/* Opens (appends to) RUN/metrics.jsonl. */
enum status report_open(struct report *r, const struct config *config, const char *run_dir, FILE *out,
                        struct err *err) MUST_CHECK;
void report_close(struct report *r);
/* Bytes counted by the transport so far. */
void report_bytes(struct report *r, uint64_t up, uint64_t down);
void report_event(struct report *r, const struct engine_event *event);
/* One line, above the progress bar. */
void report_line(struct report *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Everything is on its way to the disk. IO when something could not be written. */
enum status report_flush(struct report *r, struct err *err) MUST_CHECK;
/* RUN/summary.json. */
enum status report_summary(const struct report *r, const struct engine_summary *s, const char *run_dir,
                           struct err *err) MUST_CHECK;

#endif
