/* A call that may take seconds, on a thread of its own. */
#ifndef COORDINATOR_LONG_CALL_H
#define COORDINATOR_LONG_CALL_H

/* Runs work(arg) on another thread and waits for it. The caller's thread calls meanwhile(ctx) a tenth of a second after
 * the start, and then twice a second. Without a thread the caller runs `work` itself. */
void long_call(void (*work)(void *arg), void *arg, void (*meanwhile)(void *ctx), void *ctx);

#endif
