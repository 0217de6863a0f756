/* Ctrl-C in a program that writes files and has nothing of its own to do then: what is under construction
 * (file_out_put) fails with INTERRUPTED, and the program cleans up as after any other failure. */
#ifndef COMMON_INTERRUPT_H
#define COMMON_INTERRUPT_H

#include "common/status.h"

/* From now on the first SIGINT, SIGTERM or SIGHUP is only noted; a second one kills. Those that are ignored (nohup, a
 * shell's background) stay so. */
void interrupt_catch(void);
/* INTERRUPTED once a signal was noted. OK always where nobody called interrupt_catch. */
enum status interrupt_check(struct err *err) MUST_CHECK;

#endif
