/* Ctrl-C in a program that writes files and has nothing of its own to do then: what is under construction
 * (file_out_put) fails with INTERRUPTED, and the program cleans up as after any other failure. */
#ifndef COMMON_INTERRUPT_H
#define COMMON_INTERRUPT_H

#include <signal.h>

#include "common/base/status.h"

/* A signal that follows the first one sooner is the same request: timeout(1) and service managers signal a process and
 * its group, and whoever leads that hands it on. */
enum { INTERRUPT_SAME_US = 1000000 };

/* A handler for SIGINT, SIGTERM and SIGHUP, which calls interrupt_on_signal first; for sigaction. */
struct sigaction interrupt_action(void (*handler)(int number));
/* In it: returns for the first signal and for what belongs to it. A later one kills, as if nobody had caught it. */
void interrupt_on_signal(int number);

/* From now on the first SIGINT, SIGTERM or SIGHUP is only noted; a second one, later, kills. Those that are ignored
 * (nohup, a shell's background) stay so. */
void interrupt_catch(void);
/* INTERRUPTED once a signal was noted. OK always where nobody called interrupt_catch. */
enum status interrupt_check(struct err *err) MUST_CHECK;

#endif
