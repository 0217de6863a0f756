/* Watches the GPUs of one worker, one or several, from threads of its own: a rank that hangs inside a call cannot.
 *
 * - A rank fails: the communication of all ranks is aborted, so that the calls of the others return.
 * - No rank makes progress for ATOLL_GPU_TIMEOUT seconds (default 600; 0: never checked): the rank that the others miss
 * is named and counts as failed.
 * - The process is still there ATOLL_GPU_GRACE seconds (default 60) after a failure: `end` is called, the last resort
 * for a GPU or a library that never answers.
 *
 * Time is counted in looks, ten a second, so a process that was stopped (debugger, sleep) was not idle. The thread that
 * looks calls nothing that may block; calls that may block have a thread of their own. Independent of CUDA. */
#ifndef GPU_CUDA_WATCHDOG_H
#define GPU_CUDA_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

struct cuda_watchdog;

/* What is watched. All functions get ctx and run in the watchdog's threads. */
struct cuda_watch {
    void *ctx;
    /* These never block. */
    bool (*busy)(void *ctx);                    /* a rank is at work, so progress is expected; NULL: always */
    uint64_t (*moves)(void *ctx);               /* a number that grows with the progress of any rank */
    bool (*failed)(void *ctx, struct err *err); /* a failure that no rank has seen yet; NULL: there is none */
    /* Write the line that names the rank that is missed after so many seconds without progress. Only with `ask` it asks
     * the GPUs, and may block. */
    void (*blame)(void *ctx, unsigned seconds, bool ask, struct err *why);
    void (*abort)(void *ctx);      /* once, after the first failure; may block; NULL: there is nothing to abort */
    void (*end)(const char *line); /* does not return; NULL: there is no last resort */
};

/* INVALID: the environment holds no number; NOMEM, LIMIT: no thread. `watch` is copied. */
enum status cuda_watchdog_start(const struct cuda_watch *watch, struct cuda_watchdog **out, struct err *err) MUST_CHECK;
/* Watch something else from now on. On return the functions of the old watch no longer run: an abort that began has
 * ended. A failure before stays, and its last resort with it. w NULL is allowed. */
void cuda_watchdog_turn(struct cuda_watchdog *w, const struct cuda_watch *watch);
/* On return no function of the watch runs: an abort that began has ended. After a failure the last resort stays until
 * the process ends. NULL is allowed. */
void cuda_watchdog_stop(struct cuda_watchdog *w);

/* A rank failed. The first failure counts; CLOSED means that the rank only follows another one. By any thread. */
void cuda_watchdog_fail(struct cuda_watchdog *w, const struct err *why);
/* NULL, or the first failure: it stays as it is, and valid until stop. By any thread, often. */
const struct err *cuda_watchdog_failure(const struct cuda_watchdog *w);

#endif
