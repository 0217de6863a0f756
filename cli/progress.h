/* The progress of a long call on stderr, for people. A terminal shows one line that is redrawn and erased at the end; a
 * log gets a line every PROGRESS_LOG_US. A call that ends before that stays silent. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

enum { PROGRESS_LOG_US = 10000000 };

struct progress {
    uint64_t begun_us, next_us;
    bool terminal;
    bool quiet; /* a log gets no lines: another program reads stderr */
    bool shown; /* a line is on the terminal */
};

/* The first line of a terminal appears after patience_us. Begins again after a call before it; the first time, *p is
 * zero, or has only `quiet` set. */
void progress_begin(struct progress *p, uint64_t patience_us);
/* Shows a line if it is time for one. p NULL: nothing. */
void progress_show(struct progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Shows "WHAT 1.2 GB of 100 GB, 812 MB/s, 2 min 2 s left" if it is time for it. */
void progress_show_bytes(struct progress *p, const char *what, uint64_t done, uint64_t total);
/* Erases the line. */
void progress_end(struct progress *p);

#endif
