/* The coordinator's reports: metrics.jsonl (coordinator/report/metrics_file.h), lines on standard output, and
 * summary.json. */
#ifndef COORDINATOR_REPORT_H
#define COORDINATOR_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "coordinator/engine/state/engine_event.h"
#include "coordinator/report/metrics_file.h"

struct report {
    const struct config *config; /* borrowed */
    struct metrics_file metrics;
    FILE *out;     /* receives the lines; borrowed */
    bool terminal; /* out is a terminal */
    bool bar;      /* draw a progress bar: for a terminal, or for atoll launch, which sets ATOLL_PROGRESS_BAR and
                      takes a line that ends with \r as the bar */
    bool bar_shown;
    uint64_t reported;           /* the last round with a line */
    uint64_t up, down;           /* bytes on the socket, of this process */
    uint64_t line_up, line_down; /* up and down at the last round line */
    uint64_t held;               /* rounds since the last line (ddp prints one every LOG_EVERY_STEPS) */
    double held_s;               /* seconds of these rounds */
};

/* Opens RUN/metrics.jsonl for appending. */
enum status report_open(struct report *r, const struct config *config, const char *run_dir, FILE *out,
                        struct err *err) MUST_CHECK;
void report_close(struct report *r);
/* Sets the bytes that the transport has counted so far. */
void report_bytes(struct report *r, uint64_t up, uint64_t down);
void report_event(struct report *r, const struct engine_event *event);
/* Prints one line above the progress bar. */
void report_line(struct report *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Flushes lines and metrics to the operating system. IO: a write failed. */
enum status report_flush(struct report *r, struct err *err) MUST_CHECK;
/* Writes RUN/summary.json. */
enum status report_summary(const struct report *r, const struct engine_summary *s, const char *run_dir,
                           struct err *err) MUST_CHECK;

#endif
