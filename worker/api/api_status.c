#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "worker/api/api_impl.h"

static enum atoll_status status_of(enum status status)
{
    switch (status) {
    case STATUS_OK: return ATOLL_OK;
    case STATUS_INVALID:
    case STATUS_CORRUPT:
    case STATUS_NOTFOUND:
    case STATUS_EXISTS:
    case STATUS_MISMATCH:
    case STATUS_LIMIT:
    case STATUS_UNSUPPORTED: return ATOLL_INVALID;
    case STATUS_REFUSED: return ATOLL_REFUSED;
    case STATUS_AGAIN:
    case STATUS_CLOSED:
    case STATUS_INTERRUPTED: return ATOLL_UNREACHABLE;
    case STATUS_SPENT: return ATOLL_STOPPED;
    case STATUS_NONFINITE: return ATOLL_NONFINITE;
    case STATUS_NOMEM: return ATOLL_NOMEM;
    case STATUS_IO:
    case STATUS_FULL: return ATOLL_IO;
    case STATUS_END:
    case STATUS_STATE: break;
    }
    return ATOLL_FAILED;
}

/* Removes the first n bytes of each `part`. */
static void cut(char *text, const char *part, size_t n)
{
    for (char *at = text; (at = strstr(at, part));) memmove(at, at + n, strlen(at + n) + 1);
}

enum atoll_status api_error(struct atoll_error *error, enum status status, const struct err *err)
{
    enum atoll_status code = status_of(status);
    if (!error || code == ATOLL_OK) return code;
    error->status = code;
    snprintf(error->text, sizeof error->text, "%s", err->msg[0] ? err->msg : status_text(status));
    cut(error->text, "--name, or name=", strlen("--name, or "));
    cut(error->text, "--dir", 2);
    cut(error->text, "--name", 2);
    text_make_clean(error->text); /* it may contain a text of the coordinator, or end inside a character */
    return code;
}

enum atoll_status api_refuse(struct atoll_error *error, enum atoll_status status, const char *fmt, ...)
{
    if (!error) return status;
    va_list args;
    va_start(args, fmt);
    vsnprintf(error->text, sizeof error->text, fmt, args);
    va_end(args);
    text_make_clean(error->text);
    error->status = status;
    return status;
}

/* --- log ---------------------------------------------------------------------------------------------------------- */

static void (*caller_log)(void *ctx, enum atoll_log_level level, const char *line);
static void *caller_ctx;
static atomic_bool log_chosen;

static void drop(void *ctx, enum log_level level, const char *line)
{
    (void)ctx, (void)level, (void)line;
}

static void forward(void *ctx, enum log_level level, const char *line)
{
    (void)ctx;
    API_CALL_BACK;
    if (level <= LOG_DEBUG) caller_log(caller_ctx, (enum atoll_log_level)level, line);
}

void api_log_init(void)
{
    if (!atomic_exchange(&log_chosen, true)) log_set_sink(drop, NULL);
}

/* The sink is called under the log's lock, which log_set_sink takes: no thread is in `forward` while the pair changes.
 */
void atoll_set_log(void (*log)(void *ctx, enum atoll_log_level level, const char *line), void *ctx)
{
    atomic_store(&log_chosen, true);
    log_set_sink(drop, NULL);
    caller_log = log;
    caller_ctx = ctx;
    if (log) log_set_sink(forward, NULL);
    log_set_level(log ? LOG_DEBUG : LOG_ERROR);
}
