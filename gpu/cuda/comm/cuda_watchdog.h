/* Watchdog for the GPUs of one worker. It runs in its own threads, because a rank that hangs inside a call cannot
 * report it.
 *
 * - A rank fails: the watchdog aborts the communication of all ranks, so that their calls return.
 * - No rank makes progress for ATOLL_GPU_TIMEOUT seconds (default 600; 0: never checked): the watchdog names the rank
 *   that the others wait for, and counts it as failed.
 * - The process still runs ATOLL_GPU_GRACE seconds (default 60) after a failure: the watchdog calls `end`, the last
 *   resort for a GPU or a library that never responds.
 *
 * Time is counted in polls, ten a second, so the time of a stopped process (debugger, sleep) does not count. The
 * polling thread never blocks; calls that may block run in a helper thread. Independent of CUDA. */
#ifndef GPU_CUDA_WATCHDOG_H
#define GPU_CUDA_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

struct cuda_watchdog;

/* What the watchdog watches. All functions get ctx and run in the watchdog's threads. */
struct cuda_watch {
    void *ctx;
    /* These never block. */
    bool (*busy)(void *ctx);                    /* a rank is working, so progress is expected; NULL: always */
    uint64_t (*moves)(void *ctx);               /* a counter that grows with the progress of any rank */
    bool (*failed)(void *ctx, struct err *err); /* a failure that no rank has noticed yet; NULL: none */
    /* Writes to `why` one line that names the missing rank after `seconds` without progress. With `ask` it queries the
     * GPUs and may block; without `ask` it never blocks. */
    void (*blame)(void *ctx, unsigned seconds, bool ask, struct err *why);
    void (*abort)(void *ctx);      /* called once, after the first failure; may block; NULL: nothing to abort */
    void (*end)(const char *line); /* does not return; NULL: no last resort */
};

/* Copies `watch`. Errors: INVALID if ATOLL_GPU_TIMEOUT or ATOLL_GPU_GRACE is no number; NOMEM; LIMIT if no thread
 * starts. */
enum status cuda_watchdog_start(const struct cuda_watch *watch, struct cuda_watchdog **out, struct err *err) MUST_CHECK;
/* Replaces what is watched. On return no function of the old watch runs any more, and an abort that had begun has
 * ended. An earlier failure and its last resort stay in force. w may be NULL. */
void cuda_watchdog_turn(struct cuda_watchdog *w, const struct cuda_watch *watch);
/* On return no function of the watch runs any more, and an abort that had begun has ended. After a failure the last
 * resort stays armed until the process ends. NULL is allowed. */
void cuda_watchdog_stop(struct cuda_watchdog *w);

/* Reports a failed rank. The first failure counts. CLOSED means that the rank only follows another failure. Any thread
 * may call it. */
void cuda_watchdog_fail(struct cuda_watchdog *w, const struct err *why);
/* The first failure, or NULL. It never changes and stays valid until stop. Any thread may call it, at low cost. */
const struct err *cuda_watchdog_failure(const struct cuda_watchdog *w);

#endif
