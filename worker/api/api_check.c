/* Checks of the caller's arguments at the call. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "worker/api/api_impl.h"

bool api_is_here(const struct atoll *a)
{
    return a && a->process == getpid();
}

enum atoll_status api_check(const struct atoll *a, bool given, const char *call, struct atoll_error *error)
{
    if (!a) return api_refuse(error, ATOLL_INVALID, "%s: the worker is NULL: call atoll_open first", call);
    if (!api_is_here(a))
        return api_refuse(error, ATOLL_INVALID,
                          "%s: a forked process used the worker of its parent: use it only in the process that opened "
                          "it",
                          call);
    if (!given) return api_refuse(error, ATOLL_INVALID, "%s: an argument is NULL: see include/atoll.h", call);
    return ATOLL_OK;
}

enum status api_check_text(const char *option, const char *text, size_t cap, bool is_name, struct err *err)
{
    if (!text) return STATUS_OK;
    size_t n = strnlen(text, cap);
    if (n == cap) return err_set(err, STATUS_INVALID, "%s is longer than %zu bytes", option, cap - 1);
    if (is_name ? text_is_name(text, n) : text_is_clean(text, n, false)) return STATUS_OK;
    return err_set(err, STATUS_INVALID, "%s must be UTF-8 without control%s characters", option,
                   is_name ? " or invisible" : "");
}
