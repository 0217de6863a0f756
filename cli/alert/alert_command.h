/* Runs the command of `atoll alert` for one message.
 *
 * - No shell reads the message: it may hold names that strangers chose. The command gets it as environment variables
 *   ATOLL_ALERT_*, as one line on standard input, and in place of each argument {}. */
#ifndef CLI_ALERT_COMMAND_H
#define CLI_ALERT_COMMAND_H

#include "cli/alert/alert_follow.h"
#include "common/base/status.h"

/* INVALID: there is no such program. */
enum status alert_command_check(const char *program, struct err *err) MUST_CHECK;
/* Runs `command` (ends with NULL) in its own process group for at most limit_s seconds. OK: it ended with 0. STATE with
 * text: it did not, was killed, or took too long. INTERRUPTED: *stop became nonzero; the command is killed. */
enum status alert_command_run(char *const *command, const struct alert_message *message, const char *run,
                              double limit_s, enum status (*stopped)(struct err *err), struct err *err) MUST_CHECK;

#endif
