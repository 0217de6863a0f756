/* A call that may take seconds, on a thread of its own. */
#ifndef COORDINATOR_LONG_CALL_H
#define COORDINATOR_LONG_CALL_H

#include <stdint.h>

enum { LONG_CALL_EVERY_US = 250000 };

/* Runs work(arg) on another thread and waits for it. The caller's thread calls meanwhile(ctx) at *due_us (of
 * clock_monotonic_us), and then every LONG_CALL_EVERY_US. *due_us becomes the time of the next call: many calls of 50
 * ms in a row are one long wait for the workers. Without a thread the caller runs `work` itself. */
void long_call(void (*work)(void *arg), void *arg, uint64_t *due_us, void (*meanwhile)(void *ctx), void *ctx);
/* The end of work that the caller ran itself: calls meanwhile(ctx) if it is due. */
void long_call_passed(uint64_t *due_us, void (*meanwhile)(void *ctx), void *ctx);

#endif
