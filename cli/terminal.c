#include "cli/terminal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/os/columns.h"

/* PATIENCE_US: total time to wait for a blocked reader until it reads again. */
enum { TEXT_MAX = 8192, PATIENCE_US = 200000, RETRY_US = 1000 };

static const char round_field[] = "round ";
static char bar[512];
static size_t bar_size;

static uint64_t patience_us = PATIENCE_US;
static unsigned long dropped_lines; /* lines dropped since the last complete write */
static bool line_incomplete;        /* the last write was incomplete */

bool terminal_interactive(void)
{
    const char *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
}

/* --- non-blocking output ------------------------------------------------------------------------------------------ */

/* Returns standard output. A pipe or terminal is opened again, because O_NONBLOCK on the shared description would
 * affect other processes. */
static int out_fd(void)
{
    static int fd = -1;
    struct stat st;
    if (fd >= 0) return fd;
    if (!fstat(STDOUT_FILENO, &st) && (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode)))
        fd = open("/proc/self/fd/1", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) fd = STDOUT_FILENO;
    return fd;
}

static bool wait_for_reader(int fd, uint64_t at_least_us)
{
    struct pollfd out = {.fd = fd, .events = POLLOUT};
    uint64_t since = clock_monotonic_us();
    if (at_least_us) usleep((useconds_t)at_least_us);
    bool ready = poll(&out, 1, at_least_us ? 0 : (int)(patience_us / 1000)) > 0;
    uint64_t waited = clock_monotonic_us() - since;
    patience_us -= waited < patience_us ? waited : patience_us;
    return ready;
}

/* Returns false if the reader did not take all of it in time. */
static bool write_out(const char *text, size_t size)
{
    int fd = out_fd();
    struct pollfd out = {.fd = fd, .events = POLLOUT};
    for (size_t done = 0; done < size;) {
        if (poll(&out, 1, 0) <= 0 && !wait_for_reader(fd, 0)) return false;
        ssize_t n = write(fd, text + done, size - done);
        if (n > 0) {
            line_incomplete = true;
            done += (size_t)n;
        } else if (n < 0 && errno == EAGAIN) { /* poll reports room, but too little for this write */
            wait_for_reader(fd, RETRY_US);
            if (!patience_us) return false;
        } else if (n < 0 && errno != EINTR) { /* record the error on stdout for std_streams_close */
            fwrite(text + done, 1, size - done, stdout);
            fflush(stdout);
            return true;
        }
    }
    return true;
}

/* Erases the bar of `before` bytes, prints a line (prefix NULL: none) after a note about dropped ones, and draws the
 * bar. */
static void draw(size_t before, const char *prefix, const char *line, size_t size)
{
    char note[128] = "", text[TEXT_MAX];
    if (dropped_lines)
        snprintf(note, sizeof note, "launch: dropped %lu lines because the reader was too slow: see the logs\n",
                 dropped_lines);
    int n =
        snprintf(text, sizeof text, "%s%s%s%s%.*s%s%.*s%s", line_incomplete ? "\n" : "", before ? "\033[K" : "", note,
                 prefix ? prefix : "", (int)size, line, prefix ? "\n" : "", (int)bar_size, bar, bar_size ? "\r" : "");
    assert(n >= 0 && n < TEXT_MAX);
    if (!write_out(text, (size_t)n)) {
        dropped_lines += prefix != NULL;
        return;
    }
    patience_us = PATIENCE_US;
    dropped_lines = 0;
    line_incomplete = false;
}

/* --- lines and the bar -------------------------------------------------------------------------------------------- */

void terminal_line(const char *prefix, const char *text, size_t size)
{
    unsigned width = columns_of(STDOUT_FILENO), used = (unsigned)strlen(prefix);
    bool fields = size >= sizeof round_field && !memcmp(text, round_field, sizeof round_field - 1);
    if (fields && width) size = columns_fit(text, size, width > used ? width - used : 1);
    draw(bar_size, prefix, text, size);
}

void terminal_bar(const char *text, size_t size)
{
    if (!terminal_interactive()) return;
    unsigned width = columns_of(STDOUT_FILENO);
    size_t before = bar_size;
    bar_size = size < sizeof bar ? size : sizeof bar;
    if (width && bar_size >= width) bar_size = width - 1; /* a wrapped bar cannot be erased */
    memcpy(bar, text, bar_size);
    draw(before, NULL, "", 0);
}

void terminal_bar_clear(void)
{
    size_t before = bar_size;
    bar_size = 0;
    draw(before, NULL, "", 0);
}
