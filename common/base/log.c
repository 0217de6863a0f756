#include "common/base/log.h"

#include <assert.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/text.h"

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static log_sink_fn log_sink;
static void *log_sink_ctx;
static char log_name[64];
static int log_copy_fd = -1;
static atomic_int log_level_now = LOG_INFO;

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

void log_set_level(enum log_level level)
{
    atomic_store(&log_level_now, level);
}

bool log_enabled(enum log_level level)
{
    return (int)level <= atomic_load(&log_level_now);
}

int log_level_parse(const char *name)
{
    for (int i = 0; i < (int)(sizeof level_names / sizeof *level_names); i++)
        if (!strcmp(name, level_names[i])) return i;
    return -1;
}

void log_set_sink(log_sink_fn sink, void *ctx)
{
    pthread_mutex_lock(&log_lock);
    log_sink = sink;
    log_sink_ctx = ctx;
    pthread_mutex_unlock(&log_lock);
}

void log_set_name(const char *name)
{
    pthread_mutex_lock(&log_lock);
    snprintf(log_name, sizeof log_name, "%s", name);
    pthread_mutex_unlock(&log_lock);
}

void log_set_copy(int fd)
{
    pthread_mutex_lock(&log_lock);
    log_copy_fd = fd;
    pthread_mutex_unlock(&log_lock);
}

static void write_all(int fd, const char *p, int n)
{
    while (fd >= 0 && n > 0) {
        ssize_t put = write(fd, p, (size_t)n);
        if (put <= 0) break;
        p += put;
        n -= (int)put;
    }
}

/* "2026-11-24 12:34:56.789 worker-0 warn: text". One write(2) a line keeps lines of several processes on one terminal
 * apart. */
static void write_line(bool shown, enum log_level level, const char *text)
{
    struct timespec now;
    struct tm tm;
    char line[1200];
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &tm);
    int n = snprintf(line, sizeof line, "%04d-%02d-%02d %02d:%02d:%02d.%03ld %s%s%s%s%s\n", tm.tm_year + 1900,
                     tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, now.tv_nsec / 1000000, log_name,
                     log_name[0] ? " " : "", level == LOG_INFO ? "" : level_names[level], level == LOG_INFO ? "" : ": ",
                     text);
    if (n >= (int)sizeof line) {
        n = (int)sizeof line - 1;
        line[n - 1] = '\n';
    }
    if (shown) write_all(STDERR_FILENO, line, n);
    write_all(log_copy_fd, line, n);
}

void log_copy(const char *line)
{
    pthread_mutex_lock(&log_lock);
    if (log_copy_fd >= 0) write_line(false, LOG_INFO, line);
    pthread_mutex_unlock(&log_lock);
}

void log_write(enum log_level level, const char *fmt, ...)
{
    assert(level >= LOG_ERROR && level <= LOG_TRACE);
    if (!log_enabled(level)) return;
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    text_make_clean(text); /* it may contain a name from a file or the network */
    pthread_mutex_lock(&log_lock);
    if (log_sink)
        log_sink(log_sink_ctx, level, text);
    else
        write_line(true, level, text);
    pthread_mutex_unlock(&log_lock);
}
