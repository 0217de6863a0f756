#include "cli/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/text.h"
#include "common/base/units.h"
#include "common/os/columns.h"

enum { DRAW_US = 200000, LINE_MAX_BYTES = 512 };

void progress_begin(struct progress *p, uint64_t patience_us)
{
    bool quiet = p->quiet;
    progress_end(p);
    *p = (struct progress){.begun_us = clock_monotonic_us(), .terminal = isatty(STDERR_FILENO), .quiet = quiet};
    p->next_us = p->begun_us + (p->terminal ? patience_us : PROGRESS_LOG_US);
}

static bool is_due(struct progress *p)
{
    uint64_t now = clock_monotonic_us();
    if (now < p->next_us || (!p->terminal && p->quiet)) return false;
    p->next_us = now + (p->terminal ? DRAW_US : PROGRESS_LOG_US);
    return true;
}

void progress_show(struct progress *p, const char *fmt, ...)
{
    char line[LINE_MAX_BYTES];
    va_list args;
    if (!p || !is_due(p)) return;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    unsigned width = columns_of(STDERR_FILENO);
    if (width && width < sizeof line) line[width - 1] = '\0'; /* a line that wraps cannot be erased */
    text_make_clean(line);
    fprintf(stderr, p->terminal ? "\r\033[K%s" : "%s\n", line);
    fflush(stderr);
    p->shown = p->terminal;
}

void progress_show_bytes(struct progress *p, const char *what, uint64_t done, uint64_t total)
{
    double s = (double)(clock_monotonic_us() - p->begun_us) * 1e-6, rate = s > 0 ? (double)done / s : 0;
    if (!(rate > 0)) return;
    progress_show(p, "%s %s of %s, %s/s, %s left", what, units_bytes((double)done).text,
                  units_bytes((double)total).text, units_bytes(rate).text,
                  units_duration(total > done ? (double)(total - done) / rate : 0).text);
}

void progress_end(struct progress *p)
{
    if (p->shown) fputs("\r\033[K", stderr);
    p->shown = false;
}
