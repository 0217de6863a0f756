/* Signals in programs that write files: after SIGINT, SIGTERM or SIGHUP the next file_out_put fails with INTERRUPTED,
 * and the program cleans up as after any other failure. */
#ifndef COMMON_INTERRUPT_H
#define COMMON_INTERRUPT_H

#include <signal.h>

#include "common/base/status.h"

/* A signal within this time after the first one counts as the same request. timeout(1) and service managers signal a
 * process and its group, and the leader of the group may forward the signal. */
enum { INTERRUPT_SAME_US = 1000000 };

/* Argument of sigaction for a handler of SIGINT, SIGTERM and SIGHUP. The handler calls interrupt_on_signal first. */
struct sigaction interrupt_action(void (*handler)(int number));
/* Called by the handler: returns for the first request. A later request ends the process by the default action. */
void interrupt_on_signal(int number);

/* Install the handler: the first SIGINT, SIGTERM or SIGHUP is recorded, a second request ends the process. Signals that
 * are ignored (nohup, a shell's background) stay ignored. */
void interrupt_catch(void);
/* INTERRUPTED after a signal was recorded. Always OK without interrupt_catch. */
enum status interrupt_check(struct err *err) MUST_CHECK;

#endif
