#include "common/base/status.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

const char *status_text(enum status code)
{
    switch (code) {
#define STATUS_CASE(name, value, text)                                                                                 \
    case STATUS_##name: return text;
        STATUS_MAP(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown status";
}

bool status_is_permanent(enum status code)
{
    switch (code) {
    case STATUS_INVALID:
    case STATUS_CORRUPT:
    case STATUS_MISMATCH:
    case STATUS_UNSUPPORTED:
    case STATUS_REFUSED:
    case STATUS_EXISTS:
    case STATUS_FULL: return true;
    default: return false;
    }
}

enum status status_of_errno(int error)
{
    switch (error) {
    case ENOENT: return STATUS_NOTFOUND;
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return STATUS_FULL;
    default: return STATUS_IO;
    }
}

/* EIO: a bad sector. EBADMSG and EUCLEAN: the file system found a wrong checksum or a damaged structure. */
enum status status_of_read(int error)
{
    return error == EIO || error == EBADMSG || error == EUCLEAN ? STATUS_CORRUPT : status_of_errno(error);
}

enum status err_set(struct err *err, enum status code, const char *fmt, ...)
{
    assert(code != STATUS_OK);
    if (err) {
        va_list args;
        va_start(args, fmt);
        vsnprintf(err->msg, sizeof err->msg, fmt, args);
        va_end(args);
        err->code = code;
    }
    return code;
}

enum status err_prefix(struct err *err, const char *fmt, ...)
{
    if (!err) return STATUS_INVALID;
    char tail[sizeof err->msg + 2];
    size_t tail_len = (size_t)snprintf(tail, sizeof tail, ": %s", err->msg);
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof err->msg) { /* cut the old message when both do not fit */
        size_t room = sizeof err->msg - 1 - (size_t)n, keep = tail_len < room ? tail_len : room;
        memcpy(err->msg + n, tail, keep);
        err->msg[(size_t)n + keep] = 0;
    }
    return err->code;
}
