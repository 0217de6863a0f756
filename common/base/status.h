/* Status codes: every fallible function returns one.
 *
 * - 0 is success, negative values are errors, positive values mean "not yet" and are not errors.
 * - Functions at an edge (configuration, files, protocol, command line) also fill a struct err with one line for the
 *   user: what is wrong, where, and what to do.
 * - The function that detects an error fills err or logs it; its callers only forward it. */
#ifndef COMMON_STATUS_H
#define COMMON_STATUS_H

#include <stdarg.h>
#include <stdbool.h>

/* name, value, text */
#define STATUS_MAP(X)                                                                                                  \
    X(OK, 0, "success")                                                                                                \
    X(AGAIN, 1, "not yet")                                                                                             \
    X(END, 2, "end of data")                                                                                           \
    X(INVALID, -1, "invalid argument or configuration")                                                                \
    X(NOMEM, -2, "out of memory")                                                                                      \
    X(IO, -3, "input/output error")                                                                                    \
    X(CORRUPT, -4, "corrupt or malformed data")                                                                        \
    X(NOTFOUND, -5, "not found")                                                                                       \
    X(EXISTS, -6, "already exists")                                                                                    \
    X(MISMATCH, -7, "does not match")                                                                                  \
    X(LIMIT, -8, "limit exceeded")                                                                                     \
    X(STATE, -9, "not allowed in this state")                                                                          \
    X(UNSUPPORTED, -10, "not supported by this build or machine")                                                      \
    X(NONFINITE, -11, "NaN or infinity")                                                                               \
    X(CLOSED, -12, "closed by the other side")                                                                         \
    X(REFUSED, -13, "refused")                                                                                         \
    X(INTERRUPTED, -14, "interrupted")                                                                                 \
    X(FULL, -15, "no space left on the disk")                                                                          \
    X(SPENT, -16, "the budget of the run is used up")

enum status {
#define STATUS_ENUM(name, value, text) STATUS_##name = (value),
    STATUS_MAP(STATUS_ENUM)
#undef STATUS_ENUM
};

#define MUST_CHECK __attribute__((warn_unused_result))

/* One line for the user. `msg` is always terminated; empty when no error was recorded. */
struct err {
    enum status code;
    char msg[512];
};

/* Static text of a code, never NULL. */
const char *status_text(enum status code);

/* True when the same command on the same machine would fail again until its user acts: wrong settings, a feature that
 * machine or build lacks, damaged files, a refusal, a taken port or folder, a full disk. Other failures of memory,
 * disks, networks and GPUs may be temporary. */
bool status_is_permanent(enum status code);
/* The status of a failed call on a file: NOTFOUND, FULL or IO. */
enum status status_of_errno(int error);
/* The same of a call that reads. CORRUPT: the disk cannot give these bytes, which is damage like a changed byte. */
enum status status_of_read(int error);

/* Exit codes of every program. EXIT_RESUMABLE also if the budget of the run is used up: a restart helps with a larger
 * one. EXIT_PERMANENT is used only between `atoll launch` and its children: starting the program again would repeat the
 * failure (status_is_permanent). */
enum exit_code { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_RESUMABLE = 75, EXIT_PERMANENT = 78 };

/* Record `code` and a printf-formatted message in `err` (may be NULL) and return `code`. */
enum status err_set(struct err *err, enum status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Put "prefix: " before the message already recorded (err may be NULL); returns err->code. */
enum status err_prefix(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Forward a failure. Positive codes are forwarded, too: use it only where the caller handles "not yet" alike. */
#define TRY(expr)                                                                                                      \
    do {                                                                                                               \
        enum status try_status_ = (expr);                                                                              \
        if (try_status_ != STATUS_OK) return try_status_;                                                              \
    } while (0)

/* The same, with the code in `status` and a jump to the label that cleans up. */
#define TRY_GOTO(expr, label)                                                                                          \
    do {                                                                                                               \
        status = (expr);                                                                                               \
        if (status != STATUS_OK) goto label;                                                                           \
    } while (0)

#endif
